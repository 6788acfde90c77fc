//! Which thread has the index, and how long a call waits for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::StoreIndex;
use crate::base::{faults, guard};
use crate::store::context::ContextStore;
use crate::store::engine::Context;
use crate::store::records::{Row, in_row, try_lock};

/// The store itself, once its folder has been read.
static INDEX: Mutex<Option<StoreIndex>> = Mutex::new(None);

/// The host's threads use the index in turn, and threads of ours do not take part: they have a lower priority, and
/// a thread that waited for one of them would have the same.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `work` on the index, on a thread of ours, which needs no guard.
pub(in crate::store) fn on_index<R>(work: impl FnOnce(&mut Option<StoreIndex>) -> R) -> R {
    let mut index = INDEX.lock().unwrap_or_else(PoisonError::into_inner);
    faults::hold_index();
    work(&mut index)
}

/// As [`with_record`](crate::store::records::with_record), with the index. It is `None` before its folder has been read, or if another thread has it.
pub(in crate::store) fn with_index<R>(
    context: Context<'_>,
    work: impl FnOnce(&mut Option<StoreIndex>, &mut ContextStore) -> R,
) -> Option<R> {
    in_row(context, |row, record| match IndexHeld::wait_for(row) {
        Some(mut held) => work(&mut held.index, record),
        None => work(&mut None, record),
    })
}

/// The index, on a thread of the host's.
pub(in crate::store) struct IndexHeld {
    pub(in crate::store) index: MutexGuard<'static, Option<StoreIndex>>,
    _turn: MutexGuard<'static, ()>,
}

impl IndexHeld {
    /// `None`: another thread has it, and the call has waited long enough. A call without any patience does not wait.
    fn wait_for(row: &Row) -> Option<Self> {
        let mut patience = row.patience();
        let held = Self::within(&mut patience);
        row.set_patience(patience);
        held
    }

    /// The same, of a call that may wait so long.
    pub(in crate::store) fn within(patience: &mut Duration) -> Option<Self> {
        let turn = if patience.is_zero() {
            try_lock(&TURN)?
        } else {
            TURN.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let index = lock_within(&INDEX, patience)?;
        Some(Self { index, _turn: turn })
    }
}

/// The index, on a thread of ours that waits for it no longer than this.
pub(in crate::store) fn wait_for(
    mut patience: Duration,
) -> Option<MutexGuard<'static, Option<StoreIndex>>> {
    lock_within(&INDEX, &mut patience)
}

/// The lock, if it is free within this time, from which the wait is taken.
fn lock_within<'a, T>(lock: &'a Mutex<T>, patience: &mut Duration) -> Option<MutexGuard<'a, T>> {
    const TURN: Duration = Duration::from_micros(50);
    if let Some(held) = try_lock(lock) {
        return Some(held);
    }
    let start = Instant::now();
    let most = std::mem::take(patience);
    while start.elapsed() < most {
        std::thread::sleep(TURN);
        if let Some(held) = try_lock(lock) {
            *patience = most.saturating_sub(start.elapsed());
            return Some(held);
        }
    }
    None
}

/// The process ends: waits until what is queued is written, at most until then.
pub(crate) fn finish(until: Instant) {
    guard::compute(|| {
        let mut left = until.saturating_duration_since(Instant::now());
        let mut index = lock_within(&INDEX, &mut left);
        if let Some(index) = index.as_mut().and_then(|index| index.as_mut()) {
            index.flush(left);
            if Instant::now() < until {
                index.write_index();
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_somebody_has_is_waited_for_as_long_as_the_call_may() {
        let lock = Mutex::new(());
        let mut patience = Duration::from_millis(3);
        assert!(lock_within(&lock, &mut patience).is_some());
        assert_eq!(patience, Duration::from_millis(3));
        let held = lock.lock().unwrap();
        let start = Instant::now();
        assert!(lock_within(&lock, &mut patience).is_none());
        assert!(start.elapsed() >= Duration::from_millis(3));
        // What comes after it in the same call does not wait.
        assert_eq!(patience, Duration::ZERO);
        assert!(lock_within(&lock, &mut patience).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lock_within(&lock, &mut Duration::from_secs(60)).is_some());
            std::thread::sleep(Duration::from_millis(1));
            drop(held);
            assert!(waits.join().unwrap());
        });
    }
}
