//! What the library has seen of itself, in numbers. Only ever counted up.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that any thread may raise.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters.
#[derive(Debug)]
pub(crate) struct Status {
    /// Inference requests that carried an id.
    pub(crate) with_id: Counter,
    /// Inference requests without one.
    pub(crate) without_id: Counter,
    /// Inference requests whose id was not usable.
    pub(crate) refused_id: Counter,
    /// Connections on which no request can be told from the next.
    pub(crate) unreadable_connections: Counter,
    /// Events that found no room in the channel.
    pub(crate) events_lost: Counter,
    /// Requests whose ids found no room even beside the channel: the index goes on believing.
    pub(crate) ids_lost: Counter,
    /// Times that the ledger had to start anew.
    pub(crate) gaps: Counter,
    /// Contexts created so far.
    pub(crate) contexts: Counter,
    /// Evaluations of batches whose content is not known.
    pub(crate) untracked_batches: Counter,
    /// Saved sequences whose release could not have been noticed.
    pub(crate) untracked_buffers: Counter,
    /// Lines that the log file could not take.
    pub(crate) log_lines_lost: Counter,
}

pub(crate) static STATUS: Status = Status {
    with_id: Counter::new(),
    without_id: Counter::new(),
    refused_id: Counter::new(),
    unreadable_connections: Counter::new(),
    events_lost: Counter::new(),
    ids_lost: Counter::new(),
    gaps: Counter::new(),
    contexts: Counter::new(),
    untracked_batches: Counter::new(),
    untracked_buffers: Counter::new(),
    log_lines_lost: Counter::new(),
};
