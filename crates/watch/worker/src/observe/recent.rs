//! `CONTEXTPILOT_RECENT_MB`: the last requests, as a recording has them, for `GET /recent`.

use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};

use contextpilot_observer::Recorder;
use contextpilot_residency::Ledger;
use contextpilot_traffic::{Key, Recent, Setup};

use super::handover::{Beginning, HandoverFolder, LAST_REQUESTS};
use crate::library::Library;

/// The last requests.
pub(crate) struct RecentTraffic {
    /// `None`: it panicked.
    kept: Option<(Recorder, Recent)>,
    library: &'static dyn Library,
    /// `None`: this is no child of a router.
    place: Option<HandoverFolder>,
    beginning: Beginning,
}

impl RecentTraffic {
    /// `limit`: bytes. `place`: where the last child of the model may have left its requests.
    pub(crate) fn new(
        library: &'static dyn Library,
        limit: u64,
        setup: Setup,
        place: Option<HandoverFolder>,
    ) -> io::Result<Self> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let left = place.as_ref().and_then(|place| place.take(LAST_REQUESTS));
        let left = left.and_then(|left| Some((Recent::resume(limit, &left.bytes)?, left.models)));
        let (kept, beginning) = match left {
            None => {
                let (recent, tokens) = Recent::new(limit);
                let recorder = Recorder::recent(random_key()?, tokens, setup);
                ((recorder, recent), Beginning::here(library))
            }
            Some((resumed, models)) => {
                let progress = &resumed.progress;
                let recorder = Recorder::resumed(resumed.writer, progress, models, setup);
                let beginning = Beginning::earlier(library, progress);
                ((recorder, resumed.recent), beginning)
            }
        };
        Ok(Self {
            kept: Some(kept),
            library,
            place,
            beginning,
        })
    }

    /// The process ends: leaves the requests for the next child of the model.
    pub(crate) fn leave(&mut self, ledger: Option<&Ledger>) {
        let Some(place) = self.place.take() else {
            return;
        };
        if let Some(ledger) = ledger {
            self.watch(|recorder, _| recorder.finish(ledger));
        }
        let Some((recorder, recent)) = &self.kept else {
            return;
        };
        let progress = self.beginning.progress(self.library, recorder, 0);
        let bytes = recent.handover(recorder.writer(), &progress);
        if let Err(error) = place.leave(LAST_REQUESTS, &bytes) {
            self.library.say(format_args!(
                "Recent requests are not handed over to the next process of this model ({error}): its `why` will take \
                 their prompts for new"
            ));
        }
    }

    /// The recording. Those that are not over are in it as they are now.
    pub(crate) fn recording(&mut self, ledger: Option<&Ledger>) -> Option<Vec<u8>> {
        let open = match ledger {
            Some(ledger) => self.watch(|recorder, _| recorder.open_requests(ledger))?,
            None => Vec::new(),
        };
        let (_, recent) = self.kept.as_ref()?;
        Some(recent.recording(&open))
    }

    /// Runs `work`, and keeps what it wrote. After a panic nothing is kept any more.
    pub(crate) fn watch<R>(
        &mut self,
        work: impl FnOnce(&mut Recorder, &Beginning) -> R,
    ) -> Option<R> {
        let (recorder, recent) = self.kept.as_mut()?;
        let done = catch_unwind(AssertUnwindSafe(|| {
            let done = work(recorder, &self.beginning);
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
