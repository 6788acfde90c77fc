//! The `cache_salt` of requests, for the prefix store: prompts of different salts share nothing there.
//!
//! A loss on the way from a task to its slot would not cost time but a secret. So whatever is not certain gets
//! [`Salt::Unknown`], of which nothing is loaded or stored.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use contextpilot_request::CacheSalt;
use contextpilot_residency::TaskId;
use sha2::{Digest, Sha256};

use super::by_task::{ByTask, Said};

/// Which requests share a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Salt {
    /// All requests that name no salt.
    #[default]
    None,
    /// All requests that name the text that this is a digest of.
    Of([u8; 16]),
    /// No other request: there is a salt that cannot be used, or it was forgotten.
    Unknown,
}

impl Salt {
    pub(crate) fn of(request: &CacheSalt) -> Self {
        match request {
            CacheSalt::None => Self::None,
            CacheSalt::Text(text) => {
                let mut hash = Sha256::new();
                hash.update(b"cache_salt");
                hash.update(text.as_bytes());
                let whole = hash.finalize();
                Self::Of(std::array::from_fn(|at| whole[at]))
            }
            CacheSalt::Unreadable => Self::Unknown,
        }
    }

    /// Two numbers that no digest has stand for the other two.
    fn to_numbers(self) -> [u64; 2] {
        match self {
            Self::None => [0, 0],
            Self::Unknown => [u64::MAX, u64::MAX],
            Self::Of(digest) => {
                let whole = u128::from_le_bytes(digest);
                [whole as u64, (whole >> 64) as u64]
            }
        }
    }

    fn from_numbers([low, high]: [u64; 2]) -> Self {
        match (low, high) {
            (0, 0) => Self::None,
            (u64::MAX, u64::MAX) => Self::Unknown,
            _ => Self::Of((u128::from(high) << 64 | u128::from(low)).to_le_bytes()),
        }
    }
}

/// The salts of tasks that no slot has taken yet.
static TASKS: ByTask<4096> = ByTask::new();

/// The salt of the prompt in each slot: two numbers that stand for it. Only the server's thread writes and reads them.
static SLOTS: [[AtomicU64; 2]; 512] = [const { [const { AtomicU64::new(0) }; 2] }; 512];

/// A request had a salt, and it is not certain which slot has it.
static LOST: AtomicBool = AtomicBool::new(false);

/// Whether any request had a salt.
pub(crate) fn are_any() -> bool {
    TASKS.are_any() || are_lost()
}

/// Whether there was a salt, and it is not certain which slot has it.
pub(crate) fn are_lost() -> bool {
    LOST.load(Ordering::Acquire)
}

/// A request has a salt, and nothing will say which slot takes it.
pub(super) fn lose() {
    LOST.store(true, Ordering::Release);
}

/// The request that has this task names this salt.
pub(super) fn note_salt(task: TaskId, salt: Salt) {
    if salt != Salt::None {
        TASKS.note_task(task, salt.to_numbers());
    }
}

/// A slot takes a task.
pub(crate) fn launched(sequence: i32, task: TaskId) {
    if !are_any() {
        return;
    }
    let salt = match TASKS.said_of(task) {
        Said::This(numbers) => Salt::from_numbers(numbers),
        Said::Nothing => Salt::None,
        Said::Forgotten => Salt::Unknown,
    };
    match slot(sequence) {
        Some(slot) => {
            let words = slot.iter().zip(salt.to_numbers());
            words.for_each(|(word, number)| word.store(number, Ordering::Relaxed));
        }
        None if salt == Salt::None => {}
        None => lose(),
    }
}

/// The salt of the prompt that this slot was given last.
pub(crate) fn in_slot(sequence: i32) -> Salt {
    let slot = slot(sequence).filter(|_| are_any());
    let numbers = |slot: &[AtomicU64; 2]| slot.each_ref().map(|word| word.load(Ordering::Relaxed));
    slot.map_or(Salt::None, |slot| Salt::from_numbers(numbers(slot)))
}

fn slot(sequence: i32) -> Option<&'static [AtomicU64; 2]> {
    SLOTS.get(usize::try_from(sequence).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn salt(text: &str) -> Salt {
        Salt::of(&CacheSalt::Text(text.into()))
    }

    #[test]
    fn a_salt_is_as_it_was_kept() {
        for given in [Salt::None, Salt::Unknown, salt("a"), salt("b")] {
            assert_eq!(Salt::from_numbers(given.to_numbers()), given);
        }
        assert_ne!(salt("a"), salt("b"));
        assert_eq!(Salt::of(&CacheSalt::Unreadable), Salt::Unknown);
    }

    /// One test, as the tables are the process's.
    #[test]
    fn a_slot_has_the_salt_of_its_task_and_what_was_forgotten_is_nobodys() {
        assert_eq!(in_slot(3), Salt::None);
        note_salt(10, salt("a"));
        launched(3, 10);
        assert_eq!(in_slot(3), salt("a"));
        assert_eq!(in_slot(4), Salt::None);
        // A task without one.
        launched(3, 11);
        assert_eq!(in_slot(3), Salt::None);
        // Launched again: the server had put it back into its queue.
        launched(4, 10);
        assert_eq!(in_slot(4), salt("a"));
        // So many tasks later, another one has its place.
        note_salt(10 + 4096, salt("b"));
        launched(4, 10);
        assert_eq!(in_slot(4), Salt::Unknown);
        launched(4, 10 + 4096);
        assert_eq!(in_slot(4), salt("b"));
        // What an earlier task left is nothing to a later one.
        launched(4, 10 + 2 * 4096);
        assert_eq!(in_slot(4), Salt::None);
        note_salt(12, Salt::Unknown);
        launched(5, 12);
        assert_eq!(in_slot(5), Salt::Unknown);
        assert!(!are_lost());
        launched(512, 13);
        assert!(!are_lost());
        note_salt(14, salt("a"));
        launched(512, 14);
        assert!(are_lost());
    }
}
