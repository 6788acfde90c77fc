//! Whether engines of this process are at work.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many batches are being evaluated, as far as the store knows: one, or one on each of several threads.
static EVALUATING: AtomicUsize = AtomicUsize::new(0);

/// Whether an engine evaluates a batch now, or what the store has of one is loaded.
pub(super) fn is_busy() -> bool {
    EVALUATING.load(Ordering::Relaxed) > 0
}

/// A batch that is being evaluated, or a state that is being loaded.
pub(super) struct Busy;

impl Busy {
    pub(super) fn begin() -> Self {
        EVALUATING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Busy {
    /// Also if the engine throws an exception.
    fn drop(&mut self) {
        EVALUATING.fetch_sub(1, Ordering::Relaxed);
    }
}
