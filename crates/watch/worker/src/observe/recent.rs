//! `CONTEXTPILOT_RECENT_MB`: the last requests, as a recording has them, for `GET /recent`.

use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};

use contextpilot_observer::{Note, Recorder, Stamp};
use contextpilot_residency::{Fact, Ledger, Upcoming};
use contextpilot_traffic::{Key, Recent, Setup};

use super::setup::StoreLimit;
use crate::library::Library;

/// The last requests.
pub(crate) struct RecentTraffic {
    /// `None`: it panicked.
    kept: Option<(Recorder, Recent)>,
    store_limit: StoreLimit,
    library: &'static dyn Library,
}

impl RecentTraffic {
    /// `limit`: bytes.
    pub(crate) fn new(library: &'static dyn Library, limit: u64, setup: Setup) -> io::Result<Self> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (recent, tokens) = Recent::new(limit);
        let recorder = Recorder::recent(random_key()?, tokens, setup);
        Ok(Self {
            kept: Some((recorder, recent)),
            store_limit: StoreLimit::default(),
            library,
        })
    }

    pub(crate) fn note(&mut self, note: &Note) {
        self.watch(|recorder| recorder.note(note));
    }

    pub(crate) fn upcoming(&mut self, upcoming: Upcoming<'_>, at: Stamp, ledger: &Ledger) {
        if matches!(upcoming, Upcoming::Launch { .. }) {
            if let Some(limit) = self.store_limit.take(self.library) {
                self.watch(|recorder| recorder.store(limit));
            }
        }
        self.watch(|recorder| recorder.upcoming(upcoming, at, ledger));
    }

    pub(crate) fn fact(&mut self, fact: &Fact, at: Stamp, ledger: &Ledger) {
        self.watch(|recorder| recorder.fact(fact, at, ledger));
    }

    /// The recording. Those that are not over are in it as they are now.
    pub(crate) fn recording(&mut self) -> Option<Vec<u8>> {
        let open = self.watch(Recorder::open_requests)?;
        let (_, recent) = self.kept.as_ref()?;
        Some(recent.recording(&open))
    }

    /// Runs `work`, and keeps what it wrote. After a panic nothing is kept any more.
    fn watch<R>(&mut self, work: impl FnOnce(&mut Recorder) -> R) -> Option<R> {
        let (recorder, recent) = self.kept.as_mut()?;
        let done = catch_unwind(AssertUnwindSafe(|| {
            let done = work(recorder);
            recent.push(&recorder.take());
            done
        }));
        if done.is_err() {
            self.kept = None;
            self.library.say(format_args!(
                "Recent requests are not kept any more after an internal error at {}: all else goes on. Please \
                 report this line",
                self.library.place_of_panic()
            ));
        }
        done.ok()
    }
}

/// A key that was never used.
pub(crate) fn random_key() -> io::Result<Key> {
    let mut key = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(Key::new(key))
}
