//! Whether requests are tied to slots by their prompts, and the numbers that replace the server's task
//! numbers then: see [`contextpilot_residency::Prompts`].

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use contextpilot_residency::TaskId;

static ENGAGED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicI32 = AtomicI32::new(1);

/// Called by the constructor, if requests have to be tied by their prompts.
pub(crate) fn engage() {
    ENGAGED.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn are_engaged() -> bool {
    ENGAGED.load(Ordering::Relaxed)
}

/// A number for a prompt, in place of the server's task number.
pub(crate) fn next_task() -> TaskId {
    // Numbers repeat after two thousand million.
    NEXT.fetch_add(1, Ordering::Relaxed) & TaskId::MAX
}
