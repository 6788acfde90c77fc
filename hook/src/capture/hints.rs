//! What requests say of how long their prompts are worth keeping (`cache_control`), for the prefix store.
//!
//! From the request's thread to the slot's, as with [`uncached`](super::uncached). A hint that is forgotten on the way does no harm.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use contextpilot_residency::TaskId;

/// For how many seconds a prompt is to be kept. 0: no longer.
pub(crate) type Lifetime = u32;

/// A request had a hint. Until then nothing here costs anything.
static ANY: AtomicBool = AtomicBool::new(false);

/// Tasks that no slot has taken yet, each at its number's place, with their lifetimes.
static TASKS: [AtomicU64; 1024] = [const { AtomicU64::new(NONE) }; 1024];
const NONE: u64 = u64::MAX;

/// The lifetime that the prompt in each slot is to have, until that was seen to.
static SLOTS: [AtomicI64; 512] = [const { AtomicI64::new(NOTHING) }; 512];
const NOTHING: i64 = -1;

/// The request that has this task says this.
pub(super) fn note(task: TaskId, lifetime: Option<Lifetime>) {
    let (Some(lifetime), Ok(number)) = (lifetime, u32::try_from(task)) else {
        return;
    };
    ANY.store(true, Ordering::Release);
    if let Some(place) = TASKS.get(number as usize % TASKS.len()) {
        place.store(
            u64::from(number) << 32 | u64::from(lifetime),
            Ordering::Release,
        );
    }
}

/// A slot takes a task.
pub(crate) fn launched(sequence: i32, task: TaskId) {
    if !ANY.load(Ordering::Acquire) {
        return;
    }
    let lifetime = u32::try_from(task).ok().and_then(|number| {
        let place = TASKS.get(number as usize % TASKS.len())?;
        let known = place.load(Ordering::Acquire);
        (known != NONE && known >> 32 == u64::from(number)).then_some(known as u32)
    });
    if let Some(slot) = slot(sequence) {
        slot.store(lifetime.map_or(NOTHING, i64::from), Ordering::Relaxed);
    }
}

/// What is to be done with the prompt in this slot, once.
pub(crate) fn take(sequence: i32) -> Option<Lifetime> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let taken = slot(sequence)?.swap(NOTHING, Ordering::Relaxed);
    u32::try_from(taken).ok()
}

fn slot(sequence: i32) -> Option<&'static AtomicI64> {
    SLOTS.get(usize::try_from(sequence).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, as the tables are the process's.
    #[test]
    fn a_hint_gets_to_the_slot_of_its_task_once() {
        assert_eq!(take(3), None);
        note(10, Some(300));
        note(11, None);
        note(12, Some(0));
        for (slot, task) in [(3, 10), (4, 11), (5, 12), (512, 10), (6, 10 + 1024)] {
            launched(slot, task);
        }
        assert_eq!(
            [3, 4, 5, 512, 6].map(take),
            [Some(300), None, Some(0), None, None]
        );
        assert_eq!([3, 5].map(take), [None, None]);
        launched(3, 10);
        launched(3, 11);
        assert_eq!(take(3), None, "another request has it");
    }
}
