//! Whether requests are tied to slots by their prompts, and what stands in for the server's own
//! numbers then: see [`contextpilot_residency::Prompts`].

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use contextpilot_residency::TaskId;

static ENGAGED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicI32 = AtomicI32::new(1);

/// The constructor's verdict that there is no other way.
pub(crate) fn engage() {
    ENGAGED.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn are_engaged() -> bool {
    ENGAGED.load(Ordering::Relaxed)
}

/// A number for a prompt, as the server has for its tasks.
pub(crate) fn next_task() -> TaskId {
    // After two thousand million of them the first are used again.
    NEXT.fetch_add(1, Ordering::Relaxed) & TaskId::MAX
}
