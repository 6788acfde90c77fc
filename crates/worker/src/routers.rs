//! For routers: which parts of prompts this server has in its cache, published by ZeroMQ
//! (`CONTEXTPILOT_KV_EVENTS`).
//!
//! The worker follows the ledger when it has nothing else to do; all else happens on threads of
//! ours. Without the variable nothing of this runs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use contextpilot_kv_publisher::Publication;
use contextpilot_residency::{Event, Ledger};

use crate::library::Library;

/// The worker's side. A panic in it ends the publication and nothing else.
pub(crate) struct Routers {
    library: &'static dyn Library,
    publication: Option<Publication>,
}

impl Routers {
    pub(crate) fn new(library: &'static dyn Library, publication: Option<Publication>) -> Self {
        Self {
            library,
            publication,
        }
    }

    /// Whether anything is published.
    pub(crate) fn publish(&self) -> bool {
        self.publication.is_some()
    }

    /// An event is about to be applied to the ledger.
    pub(crate) fn note(&mut self, event: &Event) {
        self.with(|publication| publication.note(event));
    }

    /// The worker has nothing else to do.
    pub(crate) fn follow(&mut self, ledger: Option<&mut Ledger>) {
        if let Some(ledger) = ledger {
            self.with(|publication| publication.follow(ledger));
        }
    }

    /// The ledger is gone: nothing is known to be cached.
    pub(crate) fn lose_all(&mut self) {
        self.with(Publication::lose_all);
    }

    fn with(&mut self, work: impl FnOnce(&mut Publication)) {
        let Some(publication) = &mut self.publication else {
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| work(publication))).is_ok() {
            return;
        }
        if let Some(mut publication) = self.publication.take() {
            publication.lose_all();
        }
        self.library.say(format_args!(
            "KV cache events stopped after an internal error at {}: routers are told that nothing \
             is cached here, all else goes on. Please report this line",
            self.library.place_of_panic()
        ));
    }
}
