//! Publishes KV cache events for routers, by ZeroMQ (`CONTEXTPILOT_KV_EVENTS`).
//!
//! The worker follows the ledger when it has nothing else to do. Everything else happens on other threads
//! of ours. Without the setting, none of this runs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use contextpilot_kv_publisher::Publication;
use contextpilot_residency::{Compared, Fact, Ledger};
use contextpilot_settings::env;

use crate::library::Library;

/// The worker's side of the publication. A panic in it ends the publication, and nothing else.
pub(crate) struct Routers {
    library: &'static dyn Library,
    publication: Option<Publication>,
    /// The message that the adapters' names do not fit the server was printed.
    said: bool,
}

impl Routers {
    pub(crate) fn new(library: &'static dyn Library, publication: Option<Publication>) -> Self {
        Self {
            library,
            publication,
            said: false,
        }
    }

    /// Whether anything is published.
    pub(crate) fn publish(&self) -> bool {
        self.publication.is_some()
    }

    /// The ledger has applied an event, and told these facts of it.
    pub(crate) fn note(&mut self, facts: &[Fact]) {
        for fact in facts {
            if let Fact::Adapters {
                adapters, compared, ..
            } = fact
            {
                self.check_names(adapters.len(), *compared);
            }
        }
        self.with(|publication| publication.note(facts));
    }

    /// Prints a message if the adapters' names do not fit the server. Otherwise the only symptom would be a
    /// router that never finds a cached prefix for an adapter.
    fn check_names(&mut self, adapters: usize, compared: Compared) {
        let names = self.publication.as_ref().map_or(0, Publication::names);
        if names == 0 || self.said {
            return;
        }
        if compared == Compared::Always {
            self.library.say(format_args!(
                "KV cache events: {} has no effect, as this server is too old to tell which of \
                 its adapters a slot works under; update llama.cpp, or unset it",
                env::KV_LORA_NAMES
            ));
        } else if names != adapters {
            self.library.say(format_args!(
                "KV cache events: names in {}: {names}, adapters of the server: {adapters}; give one name \
                 for each, in the order of its /lora-adapters",
                env::KV_LORA_NAMES
            ));
        } else {
            return;
        }
        self.said = true;
    }

    /// The worker has nothing else to do.
    pub(crate) fn follow(&mut self, ledger: Option<&mut Ledger>) {
        if let Some(ledger) = ledger {
            self.with(|publication| publication.follow(ledger));
        }
    }

    /// The ledger panicked: nothing is known to be cached.
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
