//! The `cache_salt` of requests, for the prefix store: prompts of different salts share nothing there.
//!
//! As with [`uncached`](super::uncached), a task's number is known to the request's thread when it is drawn, and to the
//! server's thread when a slot takes it, and neither waits for the other. Here a loss would not cost time but a secret. So
//! whatever is not certain gets [`Salt::Unknown`], of which nothing is loaded or stored.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use contextpilot_request::CacheSalt;
use contextpilot_residency::TaskId;
use sha2::{Digest, Sha256};

/// Among whom a prompt is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Salt {
    /// All who name none.
    #[default]
    None,
    /// All who know the text that this is a digest of.
    Of([u8; 16]),
    /// Nobody: there is one that cannot be used, or it was forgotten.
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
    fn to_numbers(self) -> (u64, u64) {
        match self {
            Self::None => (0, 0),
            Self::Unknown => (u64::MAX, u64::MAX),
            Self::Of(digest) => {
                let whole = u128::from_le_bytes(digest);
                (whole as u64, (whole >> 64) as u64)
            }
        }
    }

    fn from_numbers((low, high): (u64, u64)) -> Self {
        match (low, high) {
            (0, 0) => Self::None,
            (u64::MAX, u64::MAX) => Self::Unknown,
            _ => Self::Of((u128::from(high) << 64 | u128::from(low)).to_le_bytes()),
        }
    }
}

/// A request had a salt. Until then nothing here costs anything.
static ANY: AtomicBool = AtomicBool::new(false);

/// A request had a salt that no slot can be told to have.
static LOST: AtomicBool = AtomicBool::new(false);

/// Two numbers that stand for a salt.
struct Kept(AtomicU64, AtomicU64);

impl Kept {
    const fn new() -> Self {
        Self(AtomicU64::new(0), AtomicU64::new(0))
    }

    fn set(&self, salt: Salt) {
        let (low, high) = salt.to_numbers();
        self.0.store(low, Ordering::Relaxed);
        self.1.store(high, Ordering::Relaxed);
    }

    fn get(&self) -> Salt {
        let low = self.0.load(Ordering::Relaxed);
        Salt::from_numbers((low, self.1.load(Ordering::Relaxed)))
    }
}

/// The salts of tasks that no slot has taken yet, each at its number's place. Numbers grow: who finds a greater one in its
/// place has been forgotten.
static TASKS: [(AtomicI32, Kept); 4096] = [const { (AtomicI32::new(NONE), Kept::new()) }; 4096];
const NONE: TaskId = -1;
/// Somebody is writing there.
const OPEN: TaskId = TaskId::MAX;

/// The salt of the prompt in each slot.
static SLOTS: [Kept; 512] = [const { Kept::new() }; 512];

/// Whether any request had a salt.
pub(crate) fn are_any() -> bool {
    ANY.load(Ordering::Acquire)
}

/// Whether there was a salt, and it is not certain which slot has it.
pub(crate) fn are_lost() -> bool {
    LOST.load(Ordering::Acquire)
}

/// A request has this salt, and nobody will say which slot takes it.
pub(super) fn lose() {
    LOST.store(true, Ordering::Release);
    ANY.store(true, Ordering::Release);
}

/// The request that has this task names this salt.
pub(super) fn note(task: TaskId, salt: Salt) {
    if task < 0 || salt == Salt::None {
        return;
    }
    ANY.store(true, Ordering::Release);
    let Some((number, kept)) = place(task) else {
        return;
    };
    // Another thread with a task of the same place would have to be 4,096 tasks ahead or behind.
    number.store(OPEN, Ordering::SeqCst);
    kept.set(salt);
    number.store(task, Ordering::SeqCst);
}

/// A slot takes a task.
pub(crate) fn launched(sequence: i32, task: TaskId) {
    if !are_any() {
        return;
    }
    let salt = salt_of(task);
    let slot = usize::try_from(sequence).ok().and_then(|at| SLOTS.get(at));
    match slot {
        Some(slot) => slot.set(salt),
        None if salt == Salt::None => {}
        None => lose(),
    }
}

fn salt_of(task: TaskId) -> Salt {
    let Some((number, kept)) = place(task) else {
        return Salt::Unknown;
    };
    let before = number.load(Ordering::SeqCst);
    let salt = kept.get();
    let after = number.load(Ordering::SeqCst);
    match before {
        _ if before != after => Salt::Unknown,
        _ if before == task => salt,
        // A task without a salt leaves what an earlier one has left there.
        _ if before < task => Salt::None,
        _ => Salt::Unknown,
    }
}

fn place(task: TaskId) -> Option<&'static (AtomicI32, Kept)> {
    let task = usize::try_from(task).ok()?;
    TASKS.get(task % TASKS.len())
}

/// The salt of the prompt that this slot was given last.
pub(crate) fn in_slot(sequence: i32) -> Salt {
    if !are_any() {
        return Salt::None;
    }
    let slot = usize::try_from(sequence).ok().and_then(|at| SLOTS.get(at));
    slot.map_or(Salt::None, Kept::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn salt(text: &str) -> Salt {
        Salt::of(&CacheSalt::Text(text.into()))
    }

    #[test]
    fn a_salt_is_as_it_was_kept() {
        for one in [Salt::None, Salt::Unknown, salt("a"), salt("b")] {
            assert_eq!(Salt::from_numbers(one.to_numbers()), one);
        }
        assert_ne!(salt("a"), salt("b"));
        assert_eq!(Salt::of(&CacheSalt::Unreadable), Salt::Unknown);
    }

    /// One test, as the tables are the process's.
    #[test]
    fn a_slot_has_the_salt_of_its_task_and_what_was_forgotten_is_nobodys() {
        assert_eq!(in_slot(3), Salt::None);
        note(10, salt("a"));
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
        note(10 + 4096, salt("b"));
        launched(4, 10);
        assert_eq!(in_slot(4), Salt::Unknown);
        launched(4, 10 + 4096);
        assert_eq!(in_slot(4), salt("b"));
        // What an earlier task left is nothing to a later one.
        launched(4, 10 + 2 * 4096);
        assert_eq!(in_slot(4), Salt::None);
        note(12, Salt::Unknown);
        launched(5, 12);
        assert_eq!(in_slot(5), Salt::Unknown);
        assert!(!are_lost());
        launched(512, 13);
        assert!(!are_lost());
        note(14, salt("a"));
        launched(512, 14);
        assert!(are_lost());
    }
}
