//! Prompts of requests with `"cache_prompt": false`, for the prefix store: a client that asks for that wants all of the
//! prompt to be evaluated, for a measurement.
//!
//! A task's number is known to the request's thread when it is drawn, and to the server's when a slot takes it. Neither
//! waits for the other.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use contextpilot_residency::TaskId;

/// There is a prefix store.
static ENGAGED: AtomicBool = AtomicBool::new(false);

/// Tasks that no slot has taken yet. If there are more, the oldest are forgotten: then such a prompt is loaded.
static TASKS: [AtomicI32; 256] = [const { AtomicI32::new(NONE) }; 256];
const NONE: TaskId = -1;

/// The slots whose prompt is one of these.
static SLOTS: [AtomicBool; 512] = [const { AtomicBool::new(false) }; 512];

/// There is a prefix store.
pub(crate) fn engage() {
    ENGAGED.store(true, Ordering::Relaxed);
}

pub(super) fn are_of_interest() -> bool {
    ENGAGED.load(Ordering::Relaxed)
}

/// The request that has this task forbids the cache.
pub(super) fn note_task(task: TaskId) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % TASKS.len();
    TASKS[next].store(task, Ordering::Release);
}

/// A slot takes a task.
pub(crate) fn launched(sequence: i32, task: TaskId) {
    if !are_of_interest() || task == NONE {
        return;
    }
    let take = |known: &AtomicI32| {
        let taken = known.compare_exchange(task, NONE, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    let is_uncached = TASKS.iter().any(take);
    if let Some(slot) = slot(sequence) {
        slot.store(is_uncached, Ordering::Relaxed);
    }
}

/// Whether the prompt of this slot is to be evaluated.
pub(crate) fn is(sequence: i32) -> bool {
    slot(sequence).is_some_and(|slot| slot.load(Ordering::Relaxed))
}

fn slot(sequence: i32) -> Option<&'static AtomicBool> {
    SLOTS.get(usize::try_from(sequence).ok()?)
}
