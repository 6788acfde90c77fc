//! What the observer is told beyond the ledger's events.

use std::sync::Arc;

use contextpilot_residency::{Arrival, BufferId, ContextId, SequenceId, TaskId, Wishes};

/// Nanoseconds of a clock that only goes forward. Zero: not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Seconds from an earlier one to this; `None` if one of them was not taken.
    pub(crate) fn seconds_since(self, earlier: Self) -> Option<f64> {
        let taken = self.0 > 0 && earlier.0 > 0;
        taken.then(|| self.0.saturating_sub(earlier.0) as f64 / 1e9)
    }
}

/// The time of a call, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Of the clock that [`Stamp`]s are of.
    pub stamp: Stamp,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}

/// Something that matters to nobody but the observer. Kept in order with the ledger's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A request for inference was received in whole. Stamped with that moment.
    Received {
        /// The request.
        arrival: Arrival,
    },
    /// What a request asks for beyond its prompt, said before its first task is numbered. Left out
    /// where it asks for nothing.
    Wishes {
        /// The request.
        arrival: Arrival,
        /// What it asks for.
        wishes: Wishes,
    },
    /// A request for inference without a (usable) id made the server number a task.
    Posted {
        /// The request.
        arrival: Arrival,
        /// The number.
        task: TaskId,
    },
    /// A request for inference without an id was answered, or its client left.
    Answered {
        /// The request.
        arrival: Arrival,
    },
    /// The slot was not let work on the task whose launch was said last: it is refused.
    Declined {
        /// The slot.
        sequence: SequenceId,
    },
    /// The next event saves so many bytes to this buffer.
    Size {
        /// The buffer.
        buffer: BufferId,
        /// Its size.
        bytes: u64,
    },
    /// The engine's word on how large the state of a sequence is.
    Measured {
        /// Where.
        context: ContextId,
        /// Tokens that it has.
        tokens: u32,
        /// Its size.
        bytes: u64,
    },
    /// What the engine says of a context when it was made.
    Context {
        /// Which.
        context: ContextId,
        /// Tokens that a slot can hold.
        capacity: Option<u32>,
        /// How many slots there are (`llama_n_seq_max`).
        slots: Option<u32>,
        /// `llama_model_desc`.
        model: Option<Arc<str>>,
    },
}
