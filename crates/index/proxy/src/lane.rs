//! Threads for what takes more than a moment, so that those that serve are free for others.

use std::fmt;
use std::sync::Arc;

use contextpilot_admission::give_way;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::Tally;

/// Some threads of low priority, and a queue of bounded length in front of them. Beside threads that serve, these get
/// a small part of a processor: whatever there is to compute, health checks and small requests do not wait for it.
///
/// Nothing that holds a lock may run here, or all who wait for the lock would wait for a processor as well.
#[derive(Clone, Debug)]
pub struct Lane {
    threads: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    waiting: usize,
    tally: Arc<Tally>,
}

/// The right to one of the threads of a [`Lane`], given back on drop.
#[derive(Debug)]
pub struct Turn(Arc<(OwnedSemaphorePermit, OwnedSemaphorePermit)>);

/// Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// This many wait already.
    Busy(usize),
    /// The work has panicked, or the system has no more threads.
    Failed,
}

impl NotDone {
    /// 429 or 503.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Busy(_) => 429,
            Self::Failed => 503,
        }
    }
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(waiting) => write!(
                f,
                "as many such requests as are allowed ({waiting}) wait already: try again in a moment"
            ),
            Self::Failed => f.write_str(
                "the work for this request failed, which is a bug or a lack of threads: report it",
            ),
        }
    }
}

impl std::error::Error for NotDone {}

impl Lane {
    /// With so many threads, and room for so many requests that wait or are worked on. `tally` counts those that are
    /// refused.
    #[must_use]
    pub fn new(threads: usize, waiting: usize, tally: Arc<Tally>) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(threads)),
            queue: Arc::new(Semaphore::new(waiting)),
            waiting,
            tally,
        }
    }

    /// Waits for one of the threads.
    ///
    /// # Errors
    /// Too many wait.
    pub async fn enter(&self) -> Result<Turn, NotDone> {
        let Ok(place) = Arc::clone(&self.queue).try_acquire_owned() else {
            self.tally.busy();
            return Err(NotDone::Busy(self.waiting));
        };
        let thread = Arc::clone(&self.threads).acquire_owned().await;
        let thread = thread.map_err(|_| NotDone::Failed)?;
        Ok(Turn(Arc::new((thread, place))))
    }

    /// Waits for one of the threads, and runs this there. It goes on if the client leaves.
    ///
    /// # Errors
    /// Too many wait, or it has failed.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        self.enter().await?.run(work).await
    }
}

impl Turn {
    /// Runs this on the thread. It goes on if the client leaves, and has the turn until then.
    ///
    /// # Errors
    /// It has failed.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        let held = Self(Arc::clone(&self.0));
        let (sender, done) = oneshot::channel();
        // A thread of its own: those that tokio keeps for work that blocks have the priority of the others.
        let thread = std::thread::Builder::new().name("lane".to_owned());
        let started = thread.spawn(move || {
            give_way();
            let result = work();
            // Before the request goes on.
            drop(held);
            let _ = sender.send(result);
        });
        if started.is_err() {
            return Err(NotDone::Failed);
        }
        done.await.map_err(|_| NotDone::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(threads: usize, waiting: usize) -> (Lane, Arc<Tally>) {
        let tally = Arc::<Tally>::default();
        (Lane::new(threads, waiting, Arc::clone(&tally)), tally)
    }

    #[tokio::test]
    async fn no_more_run_or_wait_than_may() {
        let (lane, tally) = lane(1, 2);
        let (first, gate) = std::sync::mpsc::channel::<()>();
        let running = tokio::spawn({
            let lane = lane.clone();
            async move { lane.run(move || gate.recv().is_ok()).await }
        });
        let waiting = tokio::spawn({
            let lane = lane.clone();
            async move { lane.run(|| true).await }
        });
        while lane.queue.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(lane.run(|| true).await, Err(NotDone::Busy(2)));
        assert_eq!(tally.counts().busy, 1);
        assert!(!waiting.is_finished());
        first.send(()).expect("it waits");
        assert_eq!(running.await.expect("a result"), Ok(true));
        assert_eq!(waiting.await.expect("a result"), Ok(true));
        assert_eq!(lane.run(|| true).await, Ok(true), "there is room again");
    }

    #[tokio::test]
    async fn a_panic_ends_one_request() {
        let (lane, _) = lane(1, 1);
        for _ in 0..3 {
            let failed = lane.run(|| panic!("as it must")).await;
            assert_eq!(failed, Err::<(), _>(NotDone::Failed));
        }
        assert_eq!(lane.run(|| 1).await, Ok(1));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn its_threads_have_a_lower_priority() {
        // The 19th field, counted from the state, which is the third.
        let niceness = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("a thread");
            let (_, fields) = stat.rsplit_once(')').expect("a name");
            let field = fields.split_whitespace().nth(16);
            field
                .and_then(|field| field.parse::<i32>().ok())
                .expect("a number")
        };
        let (lane, _) = lane(1, 1);
        let there = lane.run(niceness).await.expect("it runs");
        assert_eq!(there, (niceness() + 10).min(19));
    }
}
