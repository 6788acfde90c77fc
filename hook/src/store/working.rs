//! Whether the store works, and whether engines of this process are at work.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::base::mode;
use crate::capture::uncached;

/// A store is asked for, and nothing was found that makes it impossible.
static ON: AtomicBool = AtomicBool::new(false);

/// Called by the constructor: a store is asked for.
pub(crate) fn engage() {
    ON.store(true, Ordering::SeqCst);
    uncached::engage();
}

/// Whether a store is asked for.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Whether the store works.
pub(super) fn works() -> bool {
    is_on() && mode::is_active()
}

/// There is no store after all.
pub(super) fn give_up() {
    ON.store(false, Ordering::SeqCst);
}

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
