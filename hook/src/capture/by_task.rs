//! What requests say of their prompts, until slots take these.
//!
//! A task's number is known to the request's thread when it is drawn, and to the server's thread when a slot takes it. Neither
//! waits for the other.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use contextpilot_residency::TaskId;

/// Two numbers of each task that has something to say, at the place of the task's own number. Task numbers grow, so a task
/// that finds a greater number there has been forgotten.
pub(super) struct ByTask<const PLACES: usize> {
    any: AtomicBool,
    places: [Place; PLACES],
}

/// All zeros at first: so the tables are no bytes of the library's file.
struct Place {
    mark: AtomicU32,
    said: [AtomicU64; 2],
}

/// No task has said anything there.
const NONE: u32 = 0;
/// A thread is writing there.
const OPEN: u32 = u32::MAX;

/// What is known of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    This([u64; 2]),
    Nothing,
    /// It may have said something, and a later task has its place.
    Forgotten,
}

impl<const PLACES: usize> ByTask<PLACES> {
    pub(super) const fn new() -> Self {
        Self {
            any: AtomicBool::new(false),
            places: [const {
                Place {
                    mark: AtomicU32::new(NONE),
                    said: [const { AtomicU64::new(0) }; 2],
                }
            }; PLACES],
        }
    }

    /// Whether any task has said something. Until then nothing here costs anything.
    pub(super) fn are_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// A request that has this task says this.
    pub(super) fn note_task(&self, task: TaskId, said: [u64; 2]) {
        let Some((place, mark)) = self.place(task) else {
            return;
        };
        self.any.store(true, Ordering::Release);
        // Another thread with a task of the same place would have to be as many tasks ahead or behind as there are places.
        place.mark.store(OPEN, Ordering::SeqCst);
        for (word, said) in place.said.iter().zip(said) {
            word.store(said, Ordering::Relaxed);
        }
        place.mark.store(mark, Ordering::SeqCst);
    }

    /// What this task has said.
    pub(super) fn said_of(&self, task: TaskId) -> Said {
        let Some((place, mark)) = self.place(task) else {
            return Said::Forgotten;
        };
        let before = place.mark.load(Ordering::SeqCst);
        let said = std::array::from_fn(|nth| place.said[nth].load(Ordering::Relaxed));
        let after = place.mark.load(Ordering::SeqCst);
        match before {
            _ if before != after => Said::Forgotten,
            _ if before == mark => Said::This(said),
            // What an earlier task has left there.
            _ if before < mark => Said::Nothing,
            _ => Said::Forgotten,
        }
    }

    /// The place of a task, and the mark that is there if it is the task that has said something.
    fn place(&self, task: TaskId) -> Option<(&Place, u32)> {
        let number = u32::try_from(task).ok()?;
        let place = self.places.get(number as usize % PLACES)?;
        Some((place, number + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_said_is_known_until_a_later_one_has_its_place() {
        static ALL: ByTask<8> = ByTask::new();
        assert!(!ALL.are_any() && ALL.said_of(3) == Said::Nothing);
        ALL.note_task(3, [1, 2]);
        assert!(ALL.are_any());
        assert_eq!(
            [3, 3, 4, 11].map(|task| ALL.said_of(task)),
            [
                Said::This([1, 2]),
                Said::This([1, 2]),
                Said::Nothing,
                Said::Nothing,
            ]
        );
        ALL.note_task(11, [5, 6]);
        assert_eq!(
            [3, 11, -1].map(|task| ALL.said_of(task)),
            [Said::Forgotten, Said::This([5, 6]), Said::Forgotten,]
        );
    }
}
