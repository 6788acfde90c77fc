//! The models that servers here use the folder for, and what of each was looked at.
//!
//! A server writes down what it uses, also each scale of a LoRA adapter that a request names: there may be thousands. So
//! nothing is asked for each of them in each turn.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use contextpilot_kv_files::Folder;
use contextpilot_kv_store::{Fingerprint, Name};

/// So many are followed: those that were used last.
const MOST: usize = 1024;
/// Of more than this, each is asked for in every few turns, but for the first half, which were used last.
const AT_ONCE: usize = 128;
/// What was written down is read again after that, also if nothing seems to have changed: it grows old.
const AGAIN: Duration = Duration::from_secs(60);
/// A folder that changed within this time may change again without another time.
const TICK: Duration = Duration::from_secs(2);

/// What is known of a model.
pub(super) struct Model {
    pub(super) of: Fingerprint,
    /// Bytes of a token's rows. `None`: it is not known, or a chunk has none.
    pub(super) per_token: Option<u64>,
    /// The number of the last chunk that was looked at. `None`: nothing was looked at yet.
    pub(super) seen: Option<u64>,
    /// What was looked at of late, with its number: what is listed again is not looked at again, also if it has left the
    /// folder since.
    pub(super) looked: HashMap<Name, u64>,
    /// There is something behind that.
    pub(super) is_due: bool,
    /// What the remote said of it last.
    mark: Option<u64>,
}

#[derive(Default)]
pub(super) struct Models {
    /// Those that were used last come first.
    pub(super) all: Vec<Model>,
    read: Option<(Option<SystemTime>, Instant)>,
    /// Which of the others are asked for next.
    others: usize,
    /// The last turn looked at one for the first time.
    was_new: bool,
}

impl Models {
    /// Nothing was looked at.
    pub(super) fn forget(&mut self) {
        self.all.clear();
        self.read = None;
    }

    /// Reads which there are, if that may have changed.
    pub(super) fn read(&mut self, folder: &Folder, lately: Duration) {
        let changed = folder.origins_changed();
        let is_young = changed.is_some_and(|at| at.elapsed().is_ok_and(|age| age < TICK));
        let is_known =
            |(of, at): &(Option<SystemTime>, Instant)| *of == changed && at.elapsed() < AGAIN;
        if !is_young && self.read.as_ref().is_some_and(is_known) {
            return;
        }
        self.read = Some((changed, Instant::now()));
        let mut before = std::mem::take(&mut self.all);
        for origin in folder.origins_within(lately).into_iter().take(MOST) {
            let known = before
                .iter()
                .position(|model| model.of == origin.fingerprint);
            self.all.push(match known {
                Some(at) => before.swap_remove(at),
                None => Model {
                    of: origin.fingerprint,
                    per_token: origin.layout.map(|layout| layout.bytes_per_token() as u64),
                    seen: None,
                    looked: HashMap::new(),
                    is_due: false,
                    mark: None,
                },
            });
        }
    }

    /// One that was not looked at yet, every second time: one that a prompt wanted, if there is one.
    pub(super) fn next_new(&mut self, wanted: &[Fingerprint]) -> Option<usize> {
        if std::mem::take(&mut self.was_new) {
            return None;
        }
        let is_new = |model: &Model| model.seen.is_none();
        let is_wanted = |model: &Model| is_new(model) && wanted.contains(&model.of);
        let wanted = self.all.iter().position(is_wanted);
        let found = wanted.or_else(|| self.all.iter().position(is_new));
        self.was_new = found.is_some();
        found
    }

    pub(super) fn has_new(&self) -> bool {
        self.all.iter().any(|model| model.seen.is_none())
    }

    /// Those that are asked for now.
    pub(super) fn asked(&mut self) -> Vec<Fingerprint> {
        let all = || self.all.iter().map(|model| model.of);
        if self.all.len() <= AT_ONCE {
            return all().collect();
        }
        let half = AT_ONCE / 2;
        let others = self.all.len() - half;
        let begin = self.others % others;
        self.others = begin + half;
        let first = all().take(half);
        first
            .chain(all().skip(half).cycle().skip(begin).take(half))
            .collect()
    }

    /// What the remote said of these.
    pub(super) fn note(&mut self, asked: &[Fingerprint], marks: &[u64]) {
        for (of, mark) in asked.iter().zip(marks) {
            let model = self.all.iter_mut().find(|model| model.of == *of);
            if let Some(model) = model.filter(|model| model.seen.is_some()) {
                model.is_due |= model.mark.replace(*mark) != Some(*mark);
            }
        }
    }

    pub(super) fn due(&self) -> Vec<usize> {
        let all = self.all.iter().enumerate();
        all.filter(|(_, model)| model.is_due)
            .map(|(at, _)| at)
            .collect()
    }

    /// What is older than the overlap is not listed again.
    pub(super) fn forget_older(&mut self, at: usize, overlap: u64) {
        let model = &mut self.all[at];
        let from = model.seen.unwrap_or(0).saturating_sub(overlap);
        model.looked.retain(|_, nth| *nth >= from);
    }

    pub(super) fn saw(&mut self, at: usize, nth: u64) {
        let seen = &mut self.all[at].seen;
        *seen = Some(seen.unwrap_or(0).max(nth));
    }
}
