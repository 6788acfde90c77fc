//! Notes: what the observer and the recorder need to know besides the ledger's events.

use std::sync::Arc;

use contextpilot_control::Title;
use contextpilot_kept_tokens::Other;
use contextpilot_request::Sent;
use contextpilot_residency::{Arrival, BufferId, ContextId, SequenceId, Token, Wishes};

/// A moment, in nanoseconds of a monotonic clock. Zero: the time was not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The seconds since an earlier moment. `None` if one of the two was not taken.
    pub(crate) fn seconds_since(self, earlier: Self) -> Option<f64> {
        let taken = self.0 > 0 && earlier.0 > 0;
        taken.then(|| self.0.saturating_sub(earlier.0) as f64 / 1e9)
    }
}

/// How long the prompts of a request took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// When the first of them was launched.
    since: Stamp,
    until: Stamp,
}

impl Took {
    /// Another prompt was launched and evaluated then. Returns the seconds from the launch of the first prompt to the end of the
    /// last: slots evaluate several side by side.
    pub(crate) fn add(&mut self, since: Stamp, until: Stamp) -> Option<f64> {
        if self.since == Stamp(0) || since < self.since {
            self.since = since;
        }
        self.until = self.until.max(until);
        self.until.seconds_since(self.since)
    }
}

/// The time of a call, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// On the monotonic clock.
    pub stamp: Stamp,
    /// On the wall clock, milliseconds since 1970.
    pub unix_ms: u64,
}

/// A prompt that got tokens of earlier answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptPrompt {
    /// Its tokens.
    pub tokens: u32,
    /// How many of them are an answer's own, where the tokenizer has others.
    pub kept: u32,
    /// Where they differ from the tokenizer's.
    pub others: Arc<[Other]>,
}

impl KeptPrompt {
    /// What it takes, in tokens.
    #[must_use]
    pub fn weight(&self) -> usize {
        const EACH: usize = size_of::<Other>() / size_of::<Token>();
        let of = |other: &Other| other.canonical.len() + EACH;
        self.others.iter().map(of).sum()
    }
}

/// Something that matters to the observer or the recorder, but not to the ledger. Notes and the ledger's
/// events come in the order in which they happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A request for inference was received completely. Its stamp is that moment.
    Received {
        /// The request.
        arrival: Arrival,
    },
    /// What a request asks for besides its prompt. Sent before its first task is numbered, and not at all
    /// if it asks for nothing.
    Wishes {
        /// The request.
        arrival: Arrival,
        /// What it asks for.
        wishes: Wishes,
    },
    /// The sections of a request for a chat. Sent before its first task is numbered.
    Sections {
        /// The request.
        arrival: Arrival,
        /// Bytes of the body's JSON that are the system's, that define tools, and that are other messages.
        bytes: [u64; 3],
    },
    /// How many tokens a request's only prompt has. Sent before its first task is numbered, and not at all if it has
    /// several prompts, or they cannot be counted.
    Counted {
        /// The request.
        arrival: Arrival,
        /// The tokens of its prompt.
        tokens: u32,
    },
    /// What a request is about, if text may be shown. Sent before its first task is numbered.
    Titled {
        /// The request.
        arrival: Arrival,
        /// Its title.
        title: Arc<Title>,
    },
    /// Which dates and numbers a request for a chat has, if text may be shown. Sent before its first task is numbered.
    Sent {
        /// The request.
        arrival: Arrival,
        /// What it has.
        sent: Arc<Sent>,
    },
    /// A prompt of a request got tokens of earlier answers. Sent before its task is numbered.
    Kept {
        /// The request.
        arrival: Arrival,
        /// The prompt.
        kept: KeptPrompt,
    },
    /// The launch that was reported last for this slot failed (`launch_slot_with_task` returned false):
    /// the request is refused. For the recorder only.
    Declined {
        /// The slot.
        sequence: SequenceId,
    },
    /// A client has asked the server to empty this slot, which it does when the slot is idle.
    Erasing {
        /// The slot.
        sequence: SequenceId,
    },
    /// The next event saves this many bytes to this buffer.
    Size {
        /// The buffer.
        buffer: BufferId,
        /// Its size.
        bytes: u64,
    },
    /// The size of a sequence's state, as the engine states it.
    Measured {
        /// The context.
        context: ContextId,
        /// Tokens in the sequence.
        tokens: u32,
        /// Its size in bytes.
        bytes: u64,
    },
    /// Facts about a context that was just created.
    Context {
        /// The context.
        context: ContextId,
        /// It can go back to certain positions only: the tokens that its layers look back.
        window: Option<u32>,
        /// Tokens of the context that a slot can have.
        capacity: Option<u32>,
        /// Tokens that a slot may hold, if these are fewer (`--kv-unified-per-slot`).
        limit: Option<u32>,
        /// The number of slots (`llama_n_seq_max`).
        slots: Option<u32>,
        /// Whether tokens can be moved to other positions (`llama_memory_can_shift`).
        can_shift: Option<bool>,
        /// The model's description (`llama_model_desc`).
        model: Option<Arc<str>>,
    },
    /// The special tokens of the server's prompts for `/infill`, if it puts the prefix first.
    Infill {
        /// `llama_vocab_fim_pre`, `llama_vocab_fim_suf`, `llama_vocab_fim_mid`.
        markers: [Token; 3],
    },
    /// A context of a program that is no llama-server is about to be freed: see
    /// [`program`](contextpilot_residency::program).
    ContextFreed {
        /// The context.
        context: ContextId,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_known_between_moments_that_were_taken() {
        let since = |later, earlier| Stamp(later).seconds_since(Stamp(earlier));
        assert_eq!(since(2_500_000_000, 1_000_000_000), Some(1.5));
        assert_eq!(since(1_000_000_000, 2_500_000_000), Some(0.0));
        assert_eq!(since(1, 1), Some(0.0));
        for (later, earlier) in [(0, 1), (1, 0), (0, 0)] {
            assert_eq!(since(later, earlier), None);
        }
    }
}
