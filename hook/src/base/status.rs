//! Counters of what the library has seen. They only grow.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that any thread may increment.
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
    /// Connections on which it is not certain where a request begins.
    pub(crate) unreadable_connections: Counter,
    /// Events that did not fit into the channel.
    pub(crate) events_lost: Counter,
    /// Ids that could not even be stranded: the index keeps them.
    pub(crate) ids_lost: Counter,
    /// Times that the ledger had to start from empty.
    pub(crate) gaps: Counter,
    /// Contexts created so far.
    pub(crate) contexts: Counter,
    /// Evaluations of batches whose content is not known.
    pub(crate) untracked_batches: Counter,
    /// Saved sequences whose release could not be noticed.
    pub(crate) untracked_buffers: Counter,
    /// Lines of the log file that were dropped.
    pub(crate) log_lines_lost: Counter,
    /// Prompts that got tokens of an earlier answer.
    pub(crate) kept_prompts: Counter,
    /// Tokens of earlier answers that prompts got.
    pub(crate) kept_tokens: Counter,
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
    kept_prompts: Counter::new(),
    kept_tokens: Counter::new(),
};
