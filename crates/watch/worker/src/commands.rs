//! What other threads ask of the worker, and how they wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::library::Library;

/// No command for the worker.
pub(crate) const NOTHING: u8 = 0;
/// Report all live ids as evicted.
pub(crate) const LEAVE: u8 = 1;
/// Close the journal and end.
pub(crate) const CLOSE: u8 = 2;

/// The worker's state, for threads that wait for it.
#[derive(Clone)]
pub(crate) struct Commands {
    library: &'static dyn Library,
    pub(crate) state: Arc<WorkerState>,
}

/// What the worker shares with the threads that wait for it.
#[derive(Default)]
pub(crate) struct WorkerState {
    /// Incremented each time the worker has nothing left to do.
    pub(crate) turns: AtomicU64,
    /// The last command.
    pub(crate) asked: AtomicU8,
    /// The journal is open.
    pub(crate) opened: AtomicBool,
    /// The journal is closed, and has every id whose eviction is not confirmed.
    pub(crate) kept: AtomicBool,
    /// The worker has ended, for any reason.
    pub(crate) ended: AtomicBool,
}

impl Commands {
    pub(crate) fn new(library: &'static dyn Library) -> Self {
        Self {
            library,
            state: Arc::default(),
        }
    }

    pub(crate) fn nudge(&self) {
        self.library.nudge();
    }

    pub(crate) fn have_ended(&self) -> bool {
        self.state.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn wait(&self, deadline: Instant, done: impl Fn() -> bool) {
        while !done() && !self.have_ended() && Instant::now() < deadline {
            self.nudge();
            thread::sleep(Duration::from_micros(200));
        }
    }
}
