//! What the sender thread shares with the threads that feed it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::outbox::{Limits, Outbox};

/// The figures of delivery. Counts run since the start of the sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Ids waiting to be sent.
    pub waiting: usize,
    /// How many of these were refused when they were sent alone. Each is tried again now and
    /// then, and others do not wait for it.
    pub set_aside: usize,
    /// Ids in the current POST.
    pub in_flight: usize,
    /// Ids that the index confirmed.
    pub sent: u64,
    /// Ids posted to an index that was not initialized: nothing to evict there.
    pub not_needed: u64,
    /// Ids dropped because the index named them as not acceptable.
    pub rejected: u64,
    /// Ids dropped because too many waited.
    pub overflowed: u64,
    /// POSTs that were answered in a way that settles them.
    pub posts: u64,
    /// POSTs that failed and are retried.
    pub failed_posts: u64,
    /// Failures since the last POST that was settled.
    pub failures_in_a_row: u32,
    /// Panics caught in the sender thread.
    pub panics: u64,
    /// Whether the sender thread runs.
    pub running: bool,
    /// What went wrong last, with neither ids nor secrets in it.
    pub last_error: Option<String>,
    /// When the last error was: milliseconds since 1970.
    pub last_error_unix_ms: Option<u64>,
    /// When the index last confirmed something: milliseconds since 1970.
    pub last_success_unix_ms: Option<u64>,
}

#[derive(Debug)]
pub(super) struct SenderState {
    pub(super) outbox: Outbox,
    /// Everything but the fields that the outbox knows.
    pub(super) counts: Stats,
    pub(super) running: bool,
    pub(super) stop: bool,
    /// The thread waits for work, and for nothing else.
    pub(super) idle: bool,
    pub(super) drain_until: Option<Instant>,
    /// Ids that were dropped over the limits, and not yet mentioned in a message.
    pub(super) unnamed_overflow: u64,
    /// Ids that were settled and not yet fetched by the caller; `None` if they are not collected.
    pub(super) settled: Option<Vec<Arc<str>>>,
}

impl SenderState {
    /// Moves the outbox's count of dropped ids to the figures.
    pub(super) fn collect_overflow(&mut self) {
        let dropped = self.outbox.take_dropped();
        self.counts.overflowed += dropped;
        self.unnamed_overflow += dropped;
    }

    pub(super) fn stats(&mut self) -> Stats {
        self.collect_overflow();
        Stats {
            waiting: self.outbox.len(),
            set_aside: self.outbox.aside(),
            in_flight: self.outbox.in_flight(),
            running: self.running,
            ..self.counts.clone()
        }
    }

    /// The batch in flight is settled, for any reason.
    pub(super) fn batch_settled(&mut self, batch: &[Arc<str>]) {
        self.outbox.delivered();
        if let Some(settled) = &mut self.settled {
            let done = batch.iter().filter(|id| !self.outbox.is_waiting(id));
            settled.extend(done.cloned());
        }
    }

    /// The ids that were settled since the last call, and were not evicted again since: the answer that settled
    /// them does not cover the later eviction.
    pub(super) fn take_settled(&mut self) -> Vec<Arc<str>> {
        let settled = self.settled.as_mut().map(std::mem::take);
        let mut settled = settled.unwrap_or_default();
        settled.retain(|id| !self.outbox.is_pending(id));
        settled
    }

    /// The ids at these positions of the batch in flight are settled. The others are sent again.
    pub(super) fn batch_refused(&mut self, places: &[usize]) {
        let refused = self.outbox.give_up(places);
        self.outbox.put_back();
        self.collect_overflow();
        if let Some(settled) = &mut self.settled {
            let outbox = &self.outbox;
            settled.extend(refused.into_iter().filter(|id| !outbox.is_waiting(id)));
        }
    }

    /// A POST was answered in a way that settles it.
    pub(super) fn settled(&mut self) {
        self.counts.posts += 1;
        self.counts.failures_in_a_row = 0;
    }

    pub(super) fn note_error(&mut self, why: String) {
        self.counts.last_error = Some(why);
        self.counts.last_error_unix_ms = unix_ms();
    }

    /// Ids that the index's answers have settled.
    pub(super) fn reported(&self) -> u64 {
        self.counts.sent + self.counts.not_needed
    }
}

#[derive(Debug)]
pub(super) struct SenderShared {
    state: Mutex<SenderState>,
    /// Signals that there is something to do for the sender thread.
    pub(super) work: Condvar,
    /// Signals that the sender thread settled something.
    pub(super) progress: Condvar,
}

impl SenderShared {
    pub(super) fn new(limits: Limits, keep_settled: bool) -> Self {
        SenderShared {
            state: Mutex::new(SenderState {
                outbox: Outbox::new(limits),
                counts: Stats::default(),
                running: true,
                stop: false,
                idle: false,
                drain_until: None,
                unnamed_overflow: 0,
                settled: keep_settled.then(Vec::new),
            }),
            work: Condvar::new(),
            progress: Condvar::new(),
        }
    }

    /// Ignores poisoning. After a panic while the lock was held, a count may be
    /// wrong. That is better than to report nothing any more.
    pub(super) fn lock(&self) -> MutexGuard<'_, SenderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a guard that marks the thread as ended when it is dropped, even by a panic.
    pub(super) fn says_when_it_ended(&self) -> impl Drop + '_ {
        struct Ended<'a>(&'a SenderShared);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.lock().running = false;
                self.0.progress.notify_all();
            }
        }
        Ended(self)
    }

    pub(super) fn wait_for_progress<'a>(
        &self,
        state: MutexGuard<'a, SenderState>,
        at_most: Duration,
    ) -> MutexGuard<'a, SenderState> {
        let waited = self.progress.wait_timeout(state, at_most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for work. `at_most` `None`: without a limit.
    pub(super) fn wait_for_work<'a>(
        &self,
        state: MutexGuard<'a, SenderState>,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, SenderState> {
        match at_most {
            Some(time) => {
                let waited = self.work.wait_timeout(state, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.work.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        }
    }
}

pub(super) fn unix_ms() -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_was_evicted_again_is_not_settled_by_the_report_before() {
        let shared = SenderShared::new(Limits::default(), true);
        let mut state = shared.lock();
        let [id, other]: [Arc<str>; 2] = ["a".into(), "b".into()];
        state.outbox.evict(Arc::clone(&id));
        state.outbox.evict(Arc::clone(&other));
        let batch = state.outbox.take_batch(2);
        // It comes again while the report is under way, and is evicted again after that.
        state.outbox.withdraw(&id);
        state.batch_settled(&batch);
        state.outbox.evict(Arc::clone(&id));
        assert_eq!(state.take_settled(), [other], "it waits");

        state.settled = Some(vec![Arc::clone(&id)]);
        let batch = state.outbox.take_batch(1);
        assert!(state.take_settled().is_empty(), "it is in flight");
        state.batch_settled(&batch);
        assert_eq!(state.take_settled(), [id]);
    }
}
