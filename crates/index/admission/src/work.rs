//! Processor time that peers cause, and its bounds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::{Allowance, Bucket};

/// A thread looks again at least so often whether it still has to wait.
const STEP: Duration = Duration::from_millis(100);
/// A peer that would have to wait longer is sent away: a debt is always paid back before more is done.
const LONGEST: Duration = Duration::from_secs(30);
/// A peer that has spent no more than this of late does not wait for what others have spent. A
/// handshake takes less.
const LITTLE: Duration = Duration::from_millis(1);

/// The work that all peers of a listener cause together.
#[derive(Debug)]
pub struct Work {
    each: Allowance,
    all: Mutex<Bucket>,
    spent: AtomicU64,
}

/// The work that one peer causes, on whatever threads.
#[derive(Debug)]
pub struct Peer {
    work: Arc<Work>,
    own: Mutex<Bucket>,
}

/// More was spent than is allowed, by the peer or by all; how long it takes until that is paid back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overspent(pub Duration);

/// Measures the calling thread.
#[derive(Debug)]
pub struct Meter<'a> {
    peer: &'a Peer,
    /// The thread's processor time when it was last charged.
    charged: Duration,
}

impl Work {
    /// What each peer may spend, and all of them together.
    #[must_use]
    pub fn new(each: Allowance, all: Allowance) -> Arc<Self> {
        Arc::new(Self {
            each,
            all: Mutex::new(Bucket::new(all, Instant::now())),
            spent: AtomicU64::new(0),
        })
    }

    /// A peer that has just connected.
    #[must_use]
    pub fn peer(self: &Arc<Self>) -> Peer {
        Peer {
            work: Arc::clone(self),
            own: Mutex::new(Bucket::new(self.each, Instant::now())),
        }
    }

    /// The processor time that was charged to peers so far.
    #[must_use]
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }

    /// Charges all peers together with work that is done for one of them on a thread that must not wait.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = processor_time();
        let result = work();
        self.note(processor_time().saturating_sub(before), Instant::now());
        result
    }

    fn note(&self, spent: Duration, now: Instant) {
        let nanoseconds = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.spent.fetch_add(nanoseconds, Ordering::Relaxed);
        lock(&self.all).spend(spent, now);
    }

    fn debt(&self) -> Duration {
        lock(&self.all).spend(Duration::ZERO, Instant::now())
    }
}

impl Peer {
    /// Measures the calling thread from now on.
    #[must_use]
    pub fn meter(&self) -> Meter<'_> {
        Meter {
            peer: self,
            charged: processor_time(),
        }
    }

    /// Charges work that was done for this peer. Then waits if all peers together have spent too much,
    /// and this one more than a little.
    ///
    /// # Errors
    /// The peer itself has, or waiting would take too long.
    pub fn charge(&self, spent: Duration) -> Result<(), Overspent> {
        let (debt, missing) = self.note(spent);
        if !debt.is_zero() {
            return Err(Overspent(debt));
        }
        if missing > LITTLE {
            self.admit()?;
        }
        Ok(())
    }

    /// Waits until all peers together have paid back what they have spent too much. For what costs much: it
    /// must be asked before, since a peer that comes again and again has spent nothing yet.
    ///
    /// # Errors
    /// Waiting would take too long.
    pub fn admit(&self) -> Result<(), Overspent> {
        let until = Instant::now() + LONGEST;
        loop {
            let debt = self.work.debt();
            if debt.is_zero() {
                return Ok(());
            }
            if debt > until.saturating_duration_since(Instant::now()) {
                return Err(Overspent(debt));
            }
            std::thread::sleep(debt.min(STEP));
        }
    }

    /// Waits, however long it takes, until this peer has paid back what it has spent too much, and all together
    /// have.
    fn settle(&self) {
        loop {
            let (own, missing) = self.note(Duration::ZERO);
            let debt = if missing > LITTLE {
                own.max(self.work.debt())
            } else {
                own
            };
            if debt.is_zero() {
                return;
            }
            std::thread::sleep(debt.min(STEP));
        }
    }

    /// Returns the peer's debt, and how much is missing in its bucket.
    fn note(&self, spent: Duration) -> (Duration, Duration) {
        let now = Instant::now();
        self.work.note(spent, now);
        let mut own = lock(&self.own);
        (own.spend(spent, now), own.missing())
    }
}

impl Meter<'_> {
    /// Charges what this thread has done since the last call.
    ///
    /// # Errors
    /// See [`Peer::charge`].
    pub fn charge(&mut self) -> Result<(), Overspent> {
        let spent = self.since();
        self.peer.charge(spent)
    }

    /// The same, but waits however long it takes, for the peer's own debt as well.
    pub fn pay(&mut self) {
        self.note();
        self.peer.settle();
    }

    /// Charges without waiting: for a thread that others wait for.
    pub fn note(&mut self) {
        let spent = self.since();
        self.peer.note(spent);
    }

    fn since(&mut self) -> Duration {
        let before = self.charged;
        self.charged = processor_time();
        self.charged.saturating_sub(before)
    }

    /// What this thread has done since the last call was not for the peer.
    pub fn skip(&mut self) {
        self.charged = processor_time();
    }
}

/// The processor time of the calling thread, in the kernel too.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn burn(time: Duration) {
        let begun = processor_time();
        while processor_time() < begun + time {}
    }

    fn allowance(burst: Duration, each_second: Duration) -> Allowance {
        Allowance { burst, each_second }
    }

    #[test]
    fn a_peer_that_works_us_too_hard_is_found_out_and_others_are_not() {
        let work = Work::new(allowance(20 * MS, 1 * MS), allowance(1000 * MS, 1000 * MS));
        let (rude, polite) = (work.peer(), work.peer());
        let mut meter = rude.meter();
        burn(5 * MS);
        assert_eq!(meter.charge(), Ok(()));
        burn(30 * MS);
        meter.skip();
        assert_eq!(meter.charge(), Ok(()), "that was not for the peer");
        burn(30 * MS);
        let Err(Overspent(debt)) = meter.charge() else {
            panic!("it has spent 35 ms");
        };
        assert!(debt > Duration::from_secs(10), "{debt:?}");
        assert_eq!(polite.charge(MS), Ok(()));
        assert!(
            work.spent() >= 36 * MS && work.spent() < 60 * MS,
            "{:?}",
            work.spent()
        );
    }

    #[test]
    fn work_on_a_thread_that_must_not_wait_counts_for_all() {
        let work = Work::new(allowance(1000 * MS, MS), allowance(10 * MS, 100 * MS));
        // Debts are paid back from when they are noted on, however long this thread is kept from running.
        let begun = work.during(|| {
            burn(30 * MS);
            Instant::now()
        });
        assert!(work.spent() >= 30 * MS, "{:?}", work.spent());
        work.peer().charge(2 * MS).expect("little for one");
        // 22 ms of debt at 100 ms a second.
        assert!(begun.elapsed() >= 200 * MS, "{:?}", begun.elapsed());
    }

    #[test]
    fn what_costs_much_waits_for_the_whole_debt_or_is_not_done() {
        let work = Work::new(allowance(1000 * MS, MS), allowance(10 * MS, 100 * MS));
        // A peer that has spent nothing waits for what others have spent.
        let begun = Instant::now();
        let _ = work.peer().note(40 * MS);
        assert_eq!(work.peer().admit(), Ok(()));
        assert!(begun.elapsed() >= 290 * MS, "{:?}", begun.elapsed());
        let _ = work.peer().note(4000 * MS);
        let begun = Instant::now();
        let Err(Overspent(debt)) = work.peer().admit() else {
            panic!("40 s are too long");
        };
        assert!(debt > LONGEST && begun.elapsed() < LONGEST, "{debt:?}");
    }

    #[test]
    fn one_that_pays_waits_for_its_own_debt_too() {
        let work = Work::new(
            allowance(10 * MS, 100 * MS),
            allowance(1000 * MS, 1000 * MS),
        );
        let peer = work.peer();
        let begun = Instant::now();
        let _ = peer.note(40 * MS);
        peer.meter().pay();
        assert!(begun.elapsed() >= 290 * MS, "{:?}", begun.elapsed());
    }

    #[test]
    fn if_all_have_spent_too_much_each_waits() {
        let work = Work::new(allowance(1000 * MS, MS), allowance(10 * MS, 100 * MS));
        let begun = Instant::now();
        for _ in 0..10 {
            work.peer().charge(3 * MS).expect("little for each");
        }
        // 20 ms of debt at 100 ms a second.
        assert!(begun.elapsed() >= 190 * MS, "{:?}", begun.elapsed());
        // A peer that takes little does not wait for the others.
        let polite = work.peer();
        work.peer().meter().note();
        let _ = work.peer().note(1000 * MS);
        let begun = Instant::now();
        polite.charge(MS / 10).expect("little");
        // It would wait for ten seconds.
        assert!(begun.elapsed() < 5000 * MS, "{:?}", begun.elapsed());
    }
}
