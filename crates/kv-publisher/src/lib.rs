//! Publishes a server's KV cache events: crates/kv-events says what, crates/zmtp how.
//!
//! ```text
//!  the ledger's thread                a thread of ours                threads of crates/zmtp
//!  Publication ──► events, bounded ──► batches, once a second ──────► subscribers
//!   note, follow                       at least; the number kept ┄┄┄► replays
//! ```
//!
//! The ledger's thread never waits: what the other thread cannot take in time is dropped, and all
//! that is there is said again. [`Publication::figures`] counts it.
//!
//! **The number.** Batches are numbered from 0 on, and a router ignores a number that it has had. So the
//! number is kept in a file of the user's state folder, by address, and the next process goes on
//! from it. It is written before each batch and not synchronised: after a power cut the numbers may
//! begin too low, and a router that lived on must be restarted.

#![forbid(unsafe_code)]

mod kept;
mod outlet;
mod replay;
mod shared;

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use contextpilot_control as control;
use contextpilot_kv_events::{KvEvent, Tracker};
use contextpilot_residency::{Event, Ledger};
use contextpilot_settings::KvEvents;

use outlet::Outlet;
pub use outlet::{CONNECTIONS, MOST_WAITING, QUEUED_BYTES};

/// How this process does things.
#[derive(Clone, Copy)]
pub struct Host {
    /// Run on each thread of ours before anything else.
    pub on_thread: fn(),
    /// Told what people should know, a line at a time.
    pub log: fn(&str),
    /// Looks up environment variables: of the state folder.
    pub lookup: fn(&str) -> Option<OsString>,
}

/// What is published, from the side of the ledger's thread.
#[derive(Debug)]
pub struct Publication {
    tracker: Tracker,
    events: Vec<KvEvent>,
    /// An event was noted that was not followed yet.
    noted: bool,
    outlet: Arc<Outlet>,
    thread: Option<JoinHandle<()>>,
}

impl Publication {
    /// Starts the thread. An address that is in use is tried again, and said once.
    ///
    /// # Errors
    /// No thread can be had.
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

    /// Publishes nothing, and says why in [`problem`](control::KvEvents::problem).
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

    /// An event is about to be applied to the ledger, or was.
    pub fn note(&mut self, event: &Event) {
        if self.thread.is_none() {
            return;
        }
        self.tracker.note(event);
        self.noted = true;
    }

    /// Publishes what has changed since this was called last.
    pub fn follow(&mut self, ledger: &mut Ledger) {
        if !std::mem::take(&mut self.noted) {
            return;
        }
        self.tracker.follow(ledger, &mut self.events);
        if !self.events.is_empty() && !self.outlet.push(&mut self.events) {
            self.tracker.start_over();
            self.noted = true;
        }
    }

    /// How many LoRA adapters were given a name.
    #[must_use]
    pub fn names(&self) -> usize {
        self.tracker.adapters()
    }

    /// Nothing is known of the server any more.
    pub fn lose_all(&mut self) {
        if self.thread.is_none() {
            return;
        }
        self.events.clear();
        self.outlet.clear();
    }

    /// What has happened.
    #[must_use]
    pub fn figures(&self) -> control::KvEvents {
        self.outlet.figures()
    }

    /// For whoever wants to know later what has happened.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.outlet))
    }
}

/// Looks at a [`Publication`] from another thread.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Outlet>);

impl Watch {
    /// What has happened.
    #[must_use]
    pub fn figures(&self) -> control::KvEvents {
        self.0.figures()
    }
}

/// Says what is still to be said, for some milliseconds, and listens no more.
impl Drop for Publication {
    fn drop(&mut self) {
        self.outlet.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
