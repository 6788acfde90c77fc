//! Threads for what takes long, so that one kind of request never waits for another.

use std::sync::Arc;

use contextpilot_index::{Answer, Next, Work};
use tokio::sync::Semaphore;

use super::Shared;
use super::ids;

/// Some threads, and a queue of bounded length in front of them.
#[derive(Clone)]
pub(super) struct Lane {
    threads: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    waiting: usize,
}

impl Lane {
    fn new(threads: usize, waiting: usize) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(threads)),
            queue: Arc::new(Semaphore::new(waiting)),
            waiting,
        }
    }

    /// Runs this on one of the threads. It goes on if the client leaves.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Answer> {
        let Ok(place) = Arc::clone(&self.queue).try_acquire_owned() else {
            let waiting = self.waiting;
            let why = format!("{waiting} such requests wait already: try again in a moment");
            return Err(Answer::error(429, &why));
        };
        let turn = Arc::clone(&self.threads).acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop((turn, place));
            done
        });
        done.await
            .map_err(|_| Answer::error(503, "the index failed at this, which is a bug: report it"))
    }
}

/// One for each kind of request.
#[derive(Clone)]
pub(super) struct Lanes {
    /// A batch may take seconds: one at a time, so that a core is left for other requests.
    pub(super) batches: Lane,
    /// Milliseconds each.
    pub(super) others: Lane,
    /// The same, for evictions alone.
    pub(super) evictions: Lane,
    /// Completions that are read for their id.
    pub(super) passing: Lane,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            batches: Lane::new(1, 32),
            others: Lane::new(2, 128),
            evictions: Lane::new(2, 128),
            passing: Lane::new(2, 1024),
        }
    }
}

/// Does all of a request, piece by piece, on a thread that may block.
pub(super) fn work_off(mut work: Box<Work>, shared: &Shared) -> Box<Work> {
    loop {
        match work.next() {
            Next::State => shared.wait().proceed(&mut work, &mut ids::new),
            Next::Alone => work.compute(),
            Next::Answer => return work,
        }
    }
}

/// The same for one that takes less than a millisecond, on a thread that serves.
pub(super) async fn work_off_here(mut work: Box<Work>, shared: &Shared) -> Box<Work> {
    loop {
        match work.next() {
            Next::State => shared.lock().await.proceed(&mut work, &mut ids::new),
            Next::Alone => work.compute(),
            Next::Answer => return work,
        }
    }
}
