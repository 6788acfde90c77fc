//! What was written while events were lost, and other content that the ledger did not see.

/// Whether events were lost, and what may be unknown since then.
#[derive(Debug, Default)]
pub(crate) struct Gap {
    /// Events were lost at some time. The engine may load what was saved before that.
    pub(crate) stepped_out: bool,
    /// Sequences without an event since events were lost may hold unknown tokens.
    pub(crate) unheard: bool,
    /// How many contents have got placeholder tokens ([`unseen_token`](crate::unseen_token)).
    unseen: u32,
}

impl Gap {
    /// Events were lost again.
    pub(crate) fn open(&mut self) {
        self.stepped_out = true;
        self.unheard = true;
    }

    /// A number for the next content that gets placeholder tokens.
    pub(crate) fn next_unseen(&mut self) -> u32 {
        self.unseen = self.unseen.wrapping_add(1);
        self.unseen
    }
}
