//! Chunks that the folder does not have, and the remote may: they have left the folder, or are still to come. The process
//! that keeps the two alike is asked for them, and fetches them while the prompt waits.
//!
//! The prompt waits for them no longer than evaluating them would take here, as it was measured, and for one chunk more. That
//! process knows what is there: a prompt of which nothing is there learns so at once. If an answer does not come in time,
//! or what came is of no use, it is not asked for a while.
//!
//! It is not asked for what the engine holds, or for what does not fit the folder's budget or the context.
//!
//! For a context that cannot go back to any position, it is asked for the last tail within the prompt, too, and for all that
//! is before it since the last one that is here. The server shows no more of a prompt than a batch, and tails are farther apart.
//! So a prompt of which all whole chunks are there goes on without being evaluated ([`may_hope`]) until one comes.
//!
//! Where the server drafts, the hidden states of the tokens are asked for first, and then as much of the KV as there are hidden
//! states of: a prompt is loaded no farther.

use std::time::{Duration, Instant};

use contextpilot_kv_files::{Answers, AskedChunk, Wish};
use contextpilot_kv_store::{Fingerprint, GRID, Name, Run};

use super::context::ContextStore;
use super::engine::Context;
use super::figures::{self, FIGURES};
use super::hidden;
use super::index::StoreIndex;
use super::index::held::with_index;
use crate::base::guard;

/// For fewer tokens the process is not asked.
const LEAST_ASKED: usize = 64;
/// How long a prompt waits for a chunk while it is not known how long evaluating takes.
const UNKNOWN: Duration = Duration::from_millis(100);
/// So many tokens wait at most for a tail that may come. (Tails are some 4,096 apart.)
const MOST_HOPED: usize = 8192;
/// How long it waits at least: a device that goes on after the call seems to be faster than it is.
const FASTEST: Duration = Duration::from_millis(20);
/// The process is asked for what continues a prompt.
struct Asked {
    answers: Answers,
    fingerprint: Fingerprint,
    /// The prompt, as far as the server has shown it.
    tokens: Vec<i32>,
    /// How much of it the folder has, from which on is asked.
    found: usize,
    /// How much of it the engine has or could load.
    there: usize,
    /// Of this context a state is loaded, which has a tail.
    has_tails: bool,
    /// How long evaluating a chunk takes. `None`: it is not known.
    a_chunk: Option<Duration>,
}

/// What of a prompt is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its hidden states, if the server asks for these.
    Hidden,
    /// Its KV, and tails.
    Kv,
}

impl Asked {
    /// `None`: the process cannot be asked, or there is nothing of use to ask for.
    fn new(
        index: &StoreIndex,
        record: &mut ContextStore,
        run: &Run,
        held: usize,
        kind: Kind,
    ) -> Option<Self> {
        index
            .elsewhere
            .as_ref()
            .filter(|elsewhere| elsewhere.may_be_asked(Instant::now()))?;
        let conditions = record.conditions(run.sequence);
        let mut tokens = record.session.wanted(run);
        let of_hidden = record.hidden().map(|hidden| hidden.size);
        let fingerprint = match kind {
            Kind::Hidden => {
                of_hidden?;
                record.fingerprint_of_hidden(conditions)?
            }
            Kind::Kv => {
                tokens.truncate(hidden::length(index, record, conditions, &tokens)?);
                record.fingerprint(conditions)?
            }
        };
        let has_tails = kind == Kind::Kv && record.bounds.is_some();
        let last = index.last_state_in(&fingerprint, &tokens);
        let begin = if has_tails {
            last / GRID * GRID
        } else {
            tokens.len()
        };
        let (found, place, parent) = index.tree.place(&fingerprint, &tokens[..begin]);
        let there = match kind {
            Kind::Kv if has_tails => last.max(held),
            // Without them all that is pending is evaluated, however few of them are missing.
            Kind::Hidden if record.bounds.is_some() => held,
            Kind::Hidden | Kind::Kv => found.max(held),
        };
        let missing = tokens.len().saturating_sub(there);
        let is_all_there = kind == Kind::Hidden && found >= tokens.len();
        if is_all_there || missing < LEAST_ASKED || missing > record.room(held) {
            return None;
        }
        // What the engine holds and the folder does not would have to be fetched, too: only for a state.
        if !has_tails && there.saturating_sub(found) >= GRID {
            return None;
        }
        let size = match (kind, record.shape()) {
            (Kind::Hidden, _) => of_hidden?.saturating_mul(tokens.len()),
            (Kind::Kv, Some(shape)) => shape.state_size(tokens.len(), 0),
            (Kind::Kv, None) => record.layout()?.state_size(tokens.len()),
        };
        if size as u64 > index.tree.limit() {
            return None;
        }
        let wish = Wish {
            place,
            parent,
            tokens: tokens[found - place.skip..].to_vec(),
            tail: has_tails,
        };
        Some(Self {
            answers: index.folder().ask(&wish)?,
            fingerprint,
            tokens,
            found,
            there,
            has_tails,
            a_chunk: record.rates.evaluating(GRID),
        })
    }

    /// Waits for what comes. Returns it, and whether something did not come in time. `start`: since when the prompt waits.
    fn wait(&mut self, start: Instant) -> (Vec<Name>, bool) {
        let (mut names, mut end) = (Vec::new(), self.found);
        // Behind all chunks there may be a tail.
        while names.len() <= self.tokens.len() && (self.has_tails || end < self.tokens.len()) {
            match self.answers.next(start + self.longest(end)) {
                AskedChunk::There(name, tokens) => {
                    names.push(name);
                    end += tokens.max(1);
                }
                AskedChunk::End => break,
                AskedChunk::Late => return (names, self.a_chunk.is_some()),
            }
        }
        (names, false)
    }

    /// How long to wait in all for the next chunk, when all up to `end` has come: as long as evaluating what is gained by
    /// that would take.
    fn longest(&self, end: usize) -> Duration {
        let gained = end.saturating_sub(self.there) + GRID;
        let missing = self.tokens.len() - self.there;
        self.of_a_chunk()
            .mul_f64(gained.min(missing) as f64 / GRID as f64)
    }

    /// How long to wait for a chunk.
    fn of_a_chunk(&self) -> Duration {
        self.a_chunk.map_or(UNKNOWN, |time| time.max(FASTEST))
    }

    /// These chunks were in the folder a moment ago. Whether all of them still are: the writer may just have removed one, to
    /// make room.
    fn take_arrived(&self, index: &mut StoreIndex, names: &[Name], is_late: bool) -> bool {
        let there = index.share_wanted(names);
        figures::add(&FIGURES.fetched_chunks, there);
        let (found, ..) = index.tree.place(&self.fingerprint, &self.tokens);
        let is_of_use = if self.has_tails {
            let usable = index.last_state_in(&self.fingerprint, &self.tokens);
            usable > self.there || has_whole_chunks(found, &self.tokens)
        } else {
            found > self.found
        };
        let has_all = there == names.len();
        let is_in_vain = has_all && !names.is_empty() && !is_of_use;
        if let Some(elsewhere) = &mut index.elsewhere {
            elsewhere.note_lateness(is_late || is_in_vain, Instant::now());
        }
        has_all
    }
}

/// Whether a prompt has gone on, as far as it is shown, along chunks of which all whole ones are there.
fn has_whole_chunks(found: usize, tokens: &[i32]) -> bool {
    found >= tokens.len() / GRID * GRID
}

/// Whether a tail may come from the remote for a prompt that has gone on along what is stored, `found` of its tokens, and of which
/// the engine has or could load so many. If none comes, its tokens are evaluated together.
pub(super) fn may_hope(index: &StoreIndex, found: usize, there: usize, tokens: &[i32]) -> bool {
    let elsewhere = index.elsewhere.as_ref();
    let is_asked = elsewhere.is_some_and(|elsewhere| elsewhere.may_be_asked(Instant::now()));
    let is_along = found > there && has_whole_chunks(found, tokens);
    is_asked && is_along && tokens.len() - there <= MOST_HOPED
}

/// Has the folder filled with what continues a prompt, as far as it is elsewhere. `held`: how many of its tokens the engine
/// holds. Returns how long that was waited for.
pub(super) fn bring(context: Context<'_>, run: &Run, held: usize) -> Duration {
    let mut waited = Duration::ZERO;
    for kind in [Kind::Hidden, Kind::Kv] {
        waited += bring_of(context, run, held, (kind, waited));
    }
    waited
}

/// The same of one kind. `waited`: how long the prompt has waited for another one.
fn bring_of(
    context: Context<'_>,
    run: &Run,
    held: usize,
    (kind, waited): (Kind, Duration),
) -> Duration {
    let (took, has_all) = ask(context, run, held, (kind, waited));
    if has_all {
        return took;
    }
    // What was there, and was to leave, is fetched now.
    let (more, _) = ask(context, run, held, (kind, waited + took));
    took + more
}

/// Asks once. Returns how long that took, and whether all that came is still there.
fn ask(
    context: Context<'_>,
    run: &Run,
    held: usize,
    (kind, waited): (Kind, Duration),
) -> (Duration, bool) {
    let asked = with_index(context, |index, record| {
        Asked::new(index.as_ref()?, record, run, held, kind)
    });
    let Some(mut asked) = asked.flatten() else {
        return (Duration::ZERO, true);
    };
    let start = Instant::now();
    // The time that evaluating would take is that of both; a chunk more of each is waited for.
    let since = start.checked_sub(waited.saturating_sub(asked.of_a_chunk()));
    let brought = guard::compute(|| asked.wait(since.unwrap_or(start)));
    let took = start.elapsed();
    figures::add_time(&FIGURES.fetch_nanos, took);
    let has_all = brought.and_then(|(names, is_late)| {
        with_index(context, |index, _| {
            let index = index.as_mut()?;
            Some(asked.take_arrived(index, &names, is_late))
        })
    });
    (took, has_all.flatten().unwrap_or(true))
}
