//! What a prefix store has, told by a thread that is not the ledger's.

use std::sync::Arc;

use contextpilot_kv_events::{KvEvent, Run, Runs};

use crate::outlet::{Beside, Outlet};

/// Blocks and tokens of what is published at a time, so that no batch is too long for a subscriber's queue.
const AT_A_TIME: usize = 1 << 16;

/// The part of a publication that is about a prefix store. A thread of its own has it.
///
/// Whenever the ledger's thread says that nothing is cached, and begins anew, all of this is said anew, too.
#[derive(Debug)]
pub struct Stored {
    outlet: Arc<Outlet>,
    runs: Runs,
    /// What is to be published next, in order.
    events: Vec<KvEvent>,
    /// How often the ledger's thread had begun anew when the first of these events were made.
    beginnings: u64,
}

impl Stored {
    pub(crate) fn new(outlet: Arc<Outlet>, block_size: u32) -> Self {
        Self {
            outlet,
            runs: Runs::new(block_size),
            events: Vec::new(),
            beginnings: 0,
        }
    }

    /// What a run of so many tokens may count at most, of [`MOST_BLOCKS`](contextpilot_kv_events::MOST_BLOCKS).
    #[must_use]
    pub fn size_of(&self, tokens: usize) -> usize {
        2 + tokens / self.outlet.block_size() as usize
    }

    /// The store has a run of tokens. See [`Runs::add`].
    pub fn add(&mut self, run: Run) {
        self.runs.add(run, &mut self.events);
    }

    /// The store has it no longer, nor what continues it.
    pub fn remove(&mut self, name: &[u8; 16]) {
        self.runs.remove(name, &mut self.events);
    }

    /// The store has nothing any more. See [`Runs::clear`].
    pub fn clear(&mut self, has_states: bool) {
        self.runs.clear(has_states, &mut self.events);
    }

    /// Publishes some of what has changed. Returns whether that was all; else ask again a moment later.
    pub fn publish(&mut self) -> bool {
        let mut weight = 0;
        let is_next = |event: &&KvEvent| {
            let before = weight;
            weight += event.weight();
            before == 0 || weight <= AT_A_TIME
        };
        let count = self.events.iter().take_while(is_next).count();
        match self
            .outlet
            .inbox
            .push_beside(&mut self.events, count, self.beginnings)
        {
            Beside::Taken => self.events.is_empty(),
            Beside::Full => false,
            Beside::Anew(beginnings) => {
                self.beginnings = beginnings;
                self.events.clear();
                self.runs.tell_all(&mut self.events);
                self.events.is_empty()
            }
        }
    }
}
