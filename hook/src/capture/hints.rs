//! What requests say of how long their prompts are worth keeping (`cache_control`), for the prefix store.
//!
//! A hint that is forgotten on the way from a task to its slot does no harm.

use std::sync::atomic::{AtomicU64, Ordering};

use contextpilot_residency::TaskId;

use super::by_task::{ByTask, Said};

/// For how many seconds a prompt is to be kept. 0: no longer.
pub(crate) type Lifetime = u32;

/// The lifetimes of tasks that no slot has taken yet.
static TASKS: ByTask<1024> = ByTask::new();

/// One second more than the lifetime that the prompt in each slot is to have, until that was seen to. All zeros at first: so
/// they are no bytes of the library's file.
static SLOTS: [AtomicU64; 512] = [const { AtomicU64::new(NOTHING) }; 512];
const NOTHING: u64 = 0;

/// Whether any request had a hint.
pub(crate) fn are_any() -> bool {
    TASKS.are_any()
}

/// The request that has this task says this.
pub(super) fn note_lifetime(task: TaskId, lifetime: Option<Lifetime>) {
    if let Some(lifetime) = lifetime {
        TASKS.note_task(task, [lifetime.into(), 0]);
    }
}

/// A slot takes a task.
pub(crate) fn launched(sequence: i32, task: TaskId) {
    let Some(slot) = slot(sequence).filter(|_| are_any()) else {
        return;
    };
    let lifetime = match TASKS.said_of(task) {
        Said::This([lifetime, _]) => lifetime + 1,
        Said::Nothing | Said::Forgotten => NOTHING,
    };
    slot.store(lifetime, Ordering::Relaxed);
}

/// What is to be done with the prompt in this slot, once.
pub(crate) fn take_lifetime(sequence: i32) -> Option<Lifetime> {
    let slot = slot(sequence).filter(|_| are_any())?;
    let more = slot.swap(NOTHING, Ordering::Relaxed);
    u32::try_from(more.checked_sub(1)?).ok()
}

fn slot(sequence: i32) -> Option<&'static AtomicU64> {
    SLOTS.get(usize::try_from(sequence).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, as the tables are the process's.
    #[test]
    fn a_hint_gets_to_the_slot_of_its_task_once() {
        assert_eq!(take_lifetime(3), None);
        note_lifetime(10, Some(300));
        note_lifetime(11, None);
        note_lifetime(12, Some(0));
        for (slot, task) in [(3, 10), (4, 11), (5, 12), (512, 10), (6, 10 + 1024)] {
            launched(slot, task);
        }
        assert_eq!(
            [3, 4, 5, 512, 6].map(take_lifetime),
            [Some(300), None, Some(0), None, None]
        );
        assert_eq!([3, 5].map(take_lifetime), [None, None]);
        launched(3, 10);
        launched(3, 11);
        assert_eq!(take_lifetime(3), None, "another request has it");
    }
}
