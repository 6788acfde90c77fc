//! The thread that reports to the index.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::http::Client;

mod pace;
mod round;
mod shared;

pub use shared::Stats;

use round::Round;
use shared::SenderShared;

/// As large as Rust's own are. Named, because otherwise Rust looks for a variable, and the host's threads change those.
const STACK: usize = 2 << 20;

/// A handle to the sender thread. All methods only take a lock that is held for
/// the time of a few map operations, never during I/O.
///
/// Dropping it makes the thread end, and does not wait for it: waiting ids
/// are lost, unless [`drain`](Self::drain) was called before.
#[derive(Debug)]
pub struct Sender {
    shared: Arc<SenderShared>,
}

/// The result of a [`Sender::drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Drained {
    /// Ids that were settled during the drain.
    pub reported: u64,
    /// Ids that the index has not confirmed: waiting, or still in flight.
    pub left: usize,
}

impl Sender {
    /// Reads the CA file, if there is one, and starts the thread
    /// `contextpilot-send`. `on_thread_start` runs first on that thread.
    ///
    /// The thread inherits the signal mask of the caller. A library in a
    /// process with signal handlers of its own wants all signals blocked here.
    ///
    /// # Errors
    /// The configuration cannot be used, or no thread can be had.
    pub fn start(config: Config, on_thread_start: fn()) -> io::Result<Sender> {
        let client = Client::new(&config)?;
        let shared = Arc::new(SenderShared::new(config.limits, config.keep_settled));
        let thread_shared = Arc::clone(&shared);
        thread::Builder::new()
            .name("contextpilot-send".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                let _ended = thread_shared.says_when_it_ended();
                on_thread_start();
                let mut round = Round::new(config, client);
                while round.run(&thread_shared) {}
            })?;
        Ok(Sender { shared })
    }

    /// Reports this id as evicted.
    pub fn evict(&self, id: Arc<str>) {
        self.evict_all([id]);
    }

    /// Reports these ids as evicted, in this order.
    pub fn evict_all(&self, ids: impl IntoIterator<Item = Arc<str>>) {
        let mut state = self.shared.lock();
        for id in ids {
            state.outbox.evict(id);
        }
        // A thread that posts or waits for a retry looks into the outbox by itself.
        let idle = state.idle;
        drop(state);
        if idle {
            self.shared.work.notify_one();
        }
    }

    /// The id is resident again: if it was not sent yet, it is not sent.
    /// Returns whether it was waiting.
    pub fn withdraw(&self, id: &str) -> bool {
        let mut state = self.shared.lock();
        let was_waiting = state.outbox.withdraw(id);
        if state.outbox.is_empty() {
            drop(state);
            self.shared.progress.notify_all();
        }
        was_waiting
    }

    /// The ids that were settled since the last call: confirmed, not known to the index, or refused
    /// for good. Not among them are ids that were evicted again meanwhile, and
    /// ids dropped over the limits, which the index still keeps.
    ///
    /// Always empty unless [`Config::keep_settled`] is set.
    #[must_use]
    pub fn take_settled(&self) -> Vec<Arc<str>> {
        self.shared.lock().take_settled()
    }

    /// The figures of delivery.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats()
    }

    /// Waits until all ids are settled, at most for `deadline`, even if the
    /// index hangs. Delays between attempts are shortened meanwhile. For the
    /// end of a process; afterwards the sender goes on as before.
    pub fn drain(&self, deadline: Duration) -> Drained {
        let now = Instant::now();
        let end = now.checked_add(deadline).unwrap_or(now);
        let mut state = self.shared.lock();
        let reported_before = state.reported();
        state.drain_until = Some(state.drain_until.map_or(end, |other| other.max(end)));
        self.shared.work.notify_one();
        loop {
            let left = state.outbox.len() + state.outbox.in_flight();
            let time = end.saturating_duration_since(Instant::now());
            if left == 0 || time.is_zero() || !state.running {
                if left == 0 {
                    state.drain_until = None;
                }
                return Drained {
                    reported: state.reported() - reported_before,
                    left,
                };
            }
            state = self.shared.wait_for_progress(state, time);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_one();
    }
}
