//! Chunks that the folder does not have, and the remote may: they have left the folder, or are still to come. The process
//! that keeps the two alike is asked for them, and fetches them while the prompt waits.
//!
//! For a chunk a prompt waits no longer than evaluating its tokens would take here, as it was measured. So it never waits
//! longer in all than it saves, but for one chunk. That process knows what is there: a prompt of which nothing is there
//! learns so at once. If an answer does not come in time, nobody is asked for a while.
//!
//! Not for contexts that cannot go back to any position: the states of theirs that could be loaded are farther apart than
//! the tokens of a batch, and the server shows no more of a prompt than that.

use std::time::{Duration, Instant};

use contextpilot_kv_files::{Answer, Answers, Wish};
use contextpilot_kv_store::{Fingerprint, GRID, Name, Run};

use super::figures::{self, FIGURES};
use super::shelf::Shelf;
use super::with_shelf;
use crate::base::abi::Pointer;
use crate::base::guard;

/// For fewer tokens nobody is asked.
const LEAST: usize = 64;
/// How long a prompt waits for a chunk while it is not known how long evaluating takes: on a fast card it takes as long.
const UNKNOWN: Duration = Duration::from_millis(50);
/// From an answer that did not come to the next question. Each further one doubles it.
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(320);

/// When the remote may be asked for something.
#[derive(Debug)]
pub(super) struct Elsewhere {
    pause: Duration,
    not_before: Option<Instant>,
}

impl Elsewhere {
    pub(super) fn new() -> Self {
        Self {
            pause: PAUSE,
            not_before: None,
        }
    }

    fn may_be_asked(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }

    /// An answer came in time, or it did not.
    fn note(&mut self, is_late: bool, now: Instant) {
        match is_late {
            true => {
                self.not_before = Some(now + self.pause);
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            }
            false => *self = Self::new(),
        }
    }
}

impl Shelf {
    /// Asks for what continues that of these tokens which is here. `None`: nothing does, or nobody can be asked.
    fn ask(&self, fingerprint: &Fingerprint, tokens: &[i32]) -> Option<Answers> {
        self.elsewhere
            .as_ref()
            .filter(|elsewhere| elsewhere.may_be_asked(Instant::now()))?;
        let (found, place) = self.tree.place(fingerprint, tokens);
        if tokens.len() - found < LEAST {
            return None;
        }
        let tokens = tokens[found - place.skip..].to_vec();
        self.folder().ask(&Wish { place, tokens })
    }

    /// These chunks are in the folder now. `is_late`: another one was waited for in vain.
    fn brought(&mut self, names: &[Name], is_late: bool) {
        if let Some(elsewhere) = &mut self.elsewhere {
            elsewhere.note(is_late, Instant::now());
        }
        let folder = self.folder();
        let headers: Vec<_> = names
            .iter()
            .filter_map(|name| folder.header(name))
            .collect();
        self.share(&headers);
        figures::add(&FIGURES.fetched_chunks, headers.len());
    }
}

/// Has the folder filled with what continues a prompt, as far as it is elsewhere.
pub(super) fn bring(context: Pointer, run: &Run) {
    let asked = with_shelf(context, |shelf, one| {
        let shelf = shelf.as_ref()?;
        let fingerprint = one.fingerprint(one.conditions())?;
        let answers = shelf.ask(&fingerprint, &one.session.wanted(run))?;
        Some((answers, one.rates.evaluating(GRID)))
    });
    let Some((mut answers, a_chunk)) = asked.flatten() else {
        return;
    };
    let start = Instant::now();
    let waited = guard::compute(|| {
        let mut names = Vec::new();
        loop {
            match answers.next(a_chunk.unwrap_or(UNKNOWN)) {
                Answer::There(name) => names.push(name),
                Answer::End => return (names, false),
                Answer::Late => return (names, a_chunk.is_some()),
            }
        }
    });
    figures::add_time(&FIGURES.fetch_nanos, start.elapsed());
    let Some((names, is_late)) = waited else {
        return;
    };
    with_shelf(context, |shelf, _| {
        if let Some(shelf) = shelf {
            shelf.brought(&names, is_late);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_asked_less_and_less_often() {
        let mut elsewhere = Elsewhere::new();
        let mut now = Instant::now();
        assert!(elsewhere.may_be_asked(now));
        for seconds in [10, 20, 40, 80, 160, 320, 320] {
            elsewhere.note(true, now);
            now += Duration::from_secs(seconds - 1);
            assert!(!elsewhere.may_be_asked(now));
            now += Duration::from_secs(1);
            assert!(elsewhere.may_be_asked(now));
        }
        elsewhere.note(false, now);
        assert!(elsewhere.may_be_asked(now));
        elsewhere.note(true, now);
        assert!(elsewhere.may_be_asked(now + PAUSE));
    }
}
