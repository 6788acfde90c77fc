//! A row for each context: its record, and what other threads may see of it.
//!
//! A row's locks are taken by the thread that uses the context, and llama.cpp allows one at a time. So that thread never
//! waits for them, and needs no other lock for what it knows of its own context. The one exception is
//! [`Row::basis`], which threads of ours read: it is written only if no thread reads it at that moment, else by the next call.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use contextpilot_kv_engine::Journal;

use super::context::{Basis, ContextStore};
use super::engine::Context;
use super::hidden_rows::Batch;
use crate::base::bounds::CONTEXTS;
use crate::base::{faults, guard, mode};

/// How long the end of the process may wait for the store's files.
pub(crate) const FLUSH: Duration = Duration::from_secs(2);

/// How long a call waits in all for a thread of ours that has the index, and on a busy machine may lose the processor: at least.
/// If evaluating what depends on the index takes longer than this, the call waits so long.
pub(super) const PATIENCE: Duration = Duration::from_millis(5);
/// No call waits longer than this.
pub(super) const LONGEST: Duration = Duration::from_millis(100);

/// What is kept of a context.
pub(super) struct Row {
    /// Its address. Zero: the row is free.
    context: AtomicUsize,
    /// Rows that were taken before this one; a free row has the greatest number.
    age: AtomicU64,
    /// A batch of ours (`llama_batch_ext`), as an address; zero: there is none.
    pub(super) batch: AtomicUsize,
    /// How long the call that lasts may still wait for the index, in microseconds.
    patience: AtomicU32,
    /// `None`: nothing was noted yet, or the library has stopped and the context is as its host believes.
    record: Mutex<Option<Box<ContextStore>>>,
    journal: Mutex<Journal>,
    hidden: Mutex<Batch>,
    /// What threads of ours may know.
    basis: Mutex<Option<Arc<Basis>>>,
}

static ROWS: [Row; CONTEXTS] = [const { Row::new() }; CONTEXTS];

/// The row of a context, if it has one.
pub(super) fn find(context: Context<'_>) -> Option<&'static Row> {
    let address = context.pointer().addr();
    let is_it = |row: &&Row| address != 0 && row.context.load(Ordering::Acquire) == address;
    ROWS.iter().find(is_it)
}

/// The row of a context, which is taken if this is the first that is heard of it. `None`: all are taken.
pub(super) fn row(context: Context<'_>) -> Option<&'static Row> {
    find(context).or_else(|| take_row(context))
}

#[cold]
fn take_row(context: Context<'_>) -> Option<&'static Row> {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let address = context.pointer().expose_provenance();
    let take = |row: &&Row| {
        let free = &row.context;
        let taken = free.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed);
        address != 0 && taken.is_ok()
    };
    let row = ROWS.iter().find(take)?;
    let age = TAKEN.fetch_add(1, Ordering::Relaxed);
    row.age.store(age, Ordering::Release);
    Some(row)
}

/// The oldest context: the one with the server's slots.
fn oldest_row() -> Option<&'static Row> {
    let taken = ROWS
        .iter()
        .filter(|row| row.context.load(Ordering::Acquire) != 0);
    taken.min_by_key(|row| row.age.load(Ordering::Acquire))
}

/// Whether this context is that one.
pub(super) fn is_oldest(context: Context<'_>) -> bool {
    oldest_row().is_some_and(|row| row.context.load(Ordering::Acquire) == context.pointer().addr())
}

/// What threads of ours may know of the oldest context.
pub(super) fn oldest() -> Option<Arc<Basis>> {
    let oldest = oldest_row()?;
    let basis = oldest.basis.lock().unwrap_or_else(PoisonError::into_inner);
    basis.clone()
}

/// The lock, without waiting for it.
pub(super) fn try_lock<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match lock.try_lock() {
        Ok(held) => Some(held),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Row {
    const fn new() -> Self {
        Self {
            context: AtomicUsize::new(0),
            age: AtomicU64::new(u64::MAX),
            batch: AtomicUsize::new(0),
            patience: AtomicU32::new(0),
            record: Mutex::new(None),
            journal: Mutex::new(Journal::EMPTY),
            hidden: Mutex::new(Batch::NONE),
            basis: Mutex::new(None),
        }
    }

    /// Runs `work` on the record, which is made if there is none.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut ContextStore) -> R) -> R {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let address = self.context.load(Ordering::Acquire);
        let known = record.get_or_insert_with(|| Box::new(ContextStore::new(address)));
        let result = work(known);
        if known.has_news {
            if let Some(mut basis) = try_lock(&self.basis) {
                *basis = known.basis().map(Arc::new);
                known.has_news = false;
            }
        }
        result
    }

    /// The record, which is gone then.
    pub(super) fn take_record(&self) -> Option<Box<ContextStore>> {
        lock(&self.record)?.take()
    }

    pub(super) fn journal(&self) -> Option<MutexGuard<'_, Journal>> {
        lock(&self.journal)
    }

    /// Hidden states that the host gets.
    pub(super) fn hidden(&self) -> Option<MutexGuard<'_, Batch>> {
        lock(&self.hidden)
    }

    /// The context is freed: another one may get its address, and its row.
    pub(super) fn free(&self) {
        drop(self.take_record());
        if let Some(mut journal) = self.journal() {
            *journal = Journal::EMPTY;
        }
        if let Some(mut hidden) = self.hidden() {
            *hidden = Batch::NONE;
        }
        if let Some(mut basis) = try_lock(&self.basis) {
            *basis = None;
        }
        self.age.store(u64::MAX, Ordering::Release);
        self.context.store(0, Ordering::Release);
    }

    /// How long the call that lasts may wait for the index, in all.
    pub(super) fn set_patience(&self, patience: Duration) {
        let patience = u32::try_from(patience.as_micros()).unwrap_or(u32::MAX);
        self.patience.store(patience, Ordering::Relaxed);
    }

    /// How long the call may still wait for the index.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_micros(self.patience.load(Ordering::Relaxed).into())
    }
}

/// A lock of a row, on the thread that uses the context. In a forked child a thread that is no more may have held it:
/// there the call does not wait.
fn lock<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if mode::is_active() {
        Some(lock.lock().unwrap_or_else(PoisonError::into_inner))
    } else {
        try_lock(lock)
    }
}

/// How long the call that lasts may wait for the index, in all.
pub(super) fn be_patient(context: Context<'_>, patience: Duration) {
    if let Some(row) = row(context) {
        row.set_patience(patience);
    }
}

/// The call that lasts decides about so many tokens: whether they are loaded or evaluated, stored or lost.
pub(super) fn be_patient_for(context: Context<'_>, tokens: usize) {
    let evaluating = with_record(context, |record| record.rates.evaluating(tokens));
    let patience = evaluating.flatten().unwrap_or(PATIENCE);
    be_patient(context, patience.clamp(PATIENCE, LONGEST));
}

/// Runs `work` on the record of a context, which is made if this is the first that is heard of it. `None` if it did not
/// run to its end: the library has stopped.
pub(super) fn with_record<R>(
    context: Context<'_>,
    work: impl FnOnce(&mut ContextStore) -> R,
) -> Option<R> {
    in_row(context, |_, record| work(record))
}

/// As [`with_record`], with the row.
pub(super) fn in_row<R>(
    context: Context<'_>,
    work: impl FnOnce(&'static Row, &mut ContextStore) -> R,
) -> Option<R> {
    if !mode::is_active() {
        return None;
    }
    let row = row(context)?;
    guard::compute(|| {
        faults::at_record();
        let result = row.with(|record| work(row, record));
        faults::behind_record();
        result
    })
}
