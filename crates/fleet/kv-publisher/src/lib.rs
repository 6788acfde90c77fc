//! Publishes a server's KV cache events. crates/fleet/kv-events makes the events, crates/fleet/zmtp sends them
//! over ZeroMQ's protocol.
//!
//! ```text
//!  the ledger's thread                a thread of ours                threads of crates/fleet/zmtp
//!  Publication ──► events, bounded ──► batches, once a second ──────► subscribers
//!   note, follow                       at least; the number kept ┄┄┄► replays
//! ```
//!
//! The ledger's thread never waits. If too many events wait for the other thread, they are dropped,
//! and everything that is cached is announced again. [`Publication::figures`] counts this.
//!
//! **A prefix store** is not known to the ledger. Another thread tells what it has ([`Stored`]), and waits if there is no room.
//!
//! **The number of a batch.** Batches are numbered from 0 on, and a router ignores a number that it
//! has seen. So the next number is kept in a file in the user's state folder, one file for each
//! address, and the next process goes on from it. The file is written before each batch, without
//! `fsync`: after a power cut the numbers may begin too low. Then a router that kept running must be
//! restarted.

#![forbid(unsafe_code)]

mod kept;
mod outlet;
mod replay;
mod shared;
mod stored;

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use contextpilot_control as control;
use contextpilot_kv_events::{KvEvent, Tracker};
use contextpilot_residency::{Fact, Ledger};
use contextpilot_settings::KvEvents;

use outlet::Outlet;
pub use outlet::{CONNECTIONS, MOST_WAITING, QUEUED_BYTES, QUEUED_BYTES_OF_ALL};
pub use replay::REPLAYS;
pub use stored::Stored;
// What is told of a prefix store.
pub use contextpilot_kv_events::{MOST_BLOCKS, Run};

/// What this crate needs from the process that it runs in.
#[derive(Clone, Copy)]
pub struct Host {
    /// Called first on each thread that this crate starts.
    pub on_thread: fn(),
    /// Logs one line.
    pub log: fn(&str),
    /// Looks up an environment variable, to find the state folder.
    pub lookup: fn(&str) -> Option<OsString>,
}

/// The publication of KV cache events, as the ledger's thread uses it. Dropping it publishes the
/// waiting events, for at most some milliseconds, and closes the sockets.
#[derive(Debug)]
pub struct Publication {
    tracker: Tracker,
    events: Vec<KvEvent>,
    /// An event was noted since the last [`Self::follow`].
    noted: bool,
    outlet: Arc<Outlet>,
    thread: Option<JoinHandle<()>>,
}

impl Publication {
    /// Starts the thread. If an address is in use, that is logged once, and the thread tries again
    /// about once a second.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(settings: KvEvents, host: Host) -> io::Result<Self> {
        let tracker = Tracker::new(settings.block_size).with_adapters(&settings.adapters);
        let (outlet, thread) = Outlet::start(settings, host)?;
        Ok(Self {
            tracker,
            events: Vec::new(),
            noted: true,
            outlet,
            thread: Some(thread),
        })
    }

    /// A publication that publishes nothing, and gives the reason in
    /// [`problem`](control::KvEvents::problem).
    #[must_use]
    pub fn none(block_size: u32, problem: String) -> Self {
        Self {
            tracker: Tracker::new(block_size),
            events: Vec::new(),
            noted: false,
            outlet: Outlet::shut(block_size, problem),
            thread: None,
        }
    }

    /// The [observed](Ledger::observed) ledger has applied an event, and told these facts of it.
    pub fn note(&mut self, facts: &[Fact]) {
        if self.thread.is_none() {
            return;
        }
        facts.iter().for_each(|fact| self.tracker.note(fact));
        self.noted = true;
    }

    /// Publishes what has changed since the last call.
    pub fn follow(&mut self, ledger: &mut Ledger) {
        if !std::mem::take(&mut self.noted) {
            return;
        }
        self.tracker.follow(ledger, &mut self.events);
        if !self.events.is_empty() && !self.outlet.inbox.push(&mut self.events) {
            self.tracker.start_over();
            self.noted = true;
        }
    }

    /// The part that is about a prefix store, for one thread that knows what it has. `None`: nothing is published.
    #[must_use]
    pub fn stored(&self) -> Option<Stored> {
        self.thread.as_ref()?;
        Some(Stored::new(
            Arc::clone(&self.outlet),
            self.outlet.block_size(),
        ))
    }

    /// How many LoRA adapters were given a name.
    #[must_use]
    pub fn names(&self) -> usize {
        self.tracker.adapters()
    }

    /// The state of the server is no longer known: announces that nothing is cached.
    pub fn lose_all(&mut self) {
        if self.thread.is_none() {
            return;
        }
        self.events.clear();
        self.outlet.inbox.clear();
    }

    /// The figures of the publication.
    #[must_use]
    pub fn figures(&self) -> control::KvEvents {
        self.outlet.figures()
    }

    /// A handle by which other threads read the figures.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.outlet))
    }
}

/// Reads the figures of a [`Publication`] from another thread.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Outlet>);

impl Watch {
    /// The figures of the publication.
    #[must_use]
    pub fn figures(&self) -> control::KvEvents {
        self.0.figures()
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        self.outlet.inbox.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
