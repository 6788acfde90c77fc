//! The state, for all threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use contextpilot_index::{Index, IndexAnswer, Mode, Truth};
use tokio::sync::{Mutex, MutexGuard};

/// The state. Requests get it in the order in which they came, so that the many pieces of a large request delay
/// others by no more than one of them takes. Threads that serve do not block while they wait.
#[derive(Clone)]
pub(super) struct SharedIndex {
    index: Arc<Mutex<Index>>,
    /// Held while a piece of a large request is done.
    large: Arc<Mutex<()>>,
    mode: Mode,
    /// What the state says, for answers that do not wait for it.
    truth: Arc<AtomicU8>,
}

impl SharedIndex {
    pub(super) fn new(index: Index, mode: Mode) -> Self {
        Self {
            index: Arc::new(Mutex::new(index)),
            large: Arc::default(),
            mode,
            truth: Arc::new(AtomicU8::new(Truth::Guess as u8)),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// For what serves. Nothing that takes more than some milliseconds may be done with it.
    pub(super) async fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().await
    }

    /// For threads of our own; those that serve must not call this.
    pub(super) fn wait(&self) -> MutexGuard<'_, Index> {
        self.index.blocking_lock()
    }

    /// For a piece of a large request. Large requests wait for each other first: however many there are, a small one
    /// waits for one piece at most.
    pub(super) fn piece(&self, work: impl FnOnce(&mut Index)) {
        let _turn = self.large.blocking_lock();
        work(&mut self.wait());
    }

    /// For what serves and cannot wait: now if the state is free, else soon.
    pub(super) fn soon(&self, work: impl FnOnce(&mut Index) + Send + 'static) {
        if let Ok(mut index) = self.index.try_lock() {
            return work(&mut index);
        }
        let shared = self.clone();
        tokio::spawn(async move { work(&mut *shared.lock().await) });
    }

    /// Changes the source of what is cached.
    pub(super) fn set_truth(&self, truth: Truth) {
        let mut index = self.wait();
        index.set_truth(truth);
        self.truth.store(truth as u8, Ordering::Relaxed);
    }

    /// `GET /ready`.
    pub(super) fn ready(&self) -> IndexAnswer {
        const ENGINE: u8 = Truth::Engine as u8;
        const LEARNING: u8 = Truth::Learning as u8;
        let truth = match self.truth.load(Ordering::Relaxed) {
            ENGINE => Truth::Engine,
            LEARNING => Truth::Learning,
            _ => Truth::Guess,
        };
        Index::ready(self.mode, truth)
    }
}
