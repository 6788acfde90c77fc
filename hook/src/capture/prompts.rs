//! Whether requests are tied to slots by their prompts, and what stands in for the server's own
//! numbers then: see [`contextpilot_residency::Prompts`].

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use contextpilot_residency::{Arrival, Prompt, TaskId};

static ENGAGED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicI32 = AtomicI32::new(1);

/// What the worker is told of the prompts that wait.
pub(crate) enum Waiting {
    /// A request waits with this prompt.
    Prompt {
        arrival: Arrival,
        task: TaskId,
        prompt: Prompt,
    },
    /// It waits no more: it was served, or refused, or its client has left.
    Over { arrival: Arrival, served: bool },
}

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
