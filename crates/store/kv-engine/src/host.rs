//! What the decisions of this crate stand on: an engine's context, its record, its journal, and what is stored.

use std::cell::Cell;
use std::ops::Range;

use contextpilot_kv_store::{Conditions, Run, Session};

use crate::journal::Journal;
use crate::tails::Tails;
use crate::{Engine, Refusal};

/// What the engine says of a context that cannot go back to any position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How far sliding windows look back, in tokens. 0: the context has a recurrent state.
    pub window: usize,
    /// If there are sliding windows: how many tokens may be evaluated by one call.
    pub at_once: Option<usize>,
}

impl Bounds {
    /// The first position of which a state of so many tokens has all rows.
    pub fn first_row(self, tokens: usize) -> usize {
        if self.window == 0 {
            0
        } else {
            tokens.saturating_sub(self.window)
        }
    }

    /// The first position that a sequence of so many tokens holds at least.
    pub fn first(self, tokens: usize) -> usize {
        if self.window == 0 {
            tokens.saturating_sub(1)
        } else {
            tokens.saturating_sub(self.window + 1)
        }
    }
}

/// What is known of a context.
pub trait Record {
    /// Its sequences.
    fn session(&self) -> &Session;

    /// The same, to be changed.
    fn session_mut(&mut self) -> &mut Session;

    /// Under what tokens of a sequence are evaluated now, and for whom.
    fn conditions(&self, sequence: i32) -> Conditions;

    /// Whether a sequence was evaluated under the adapters that are applied now, whatever its salt.
    fn is_under_these(&self, sequence: i32) -> bool {
        self.are_these(self.session().under(sequence))
    }

    /// `None`: the context can go back to any position.
    fn bounds(&self) -> Option<Bounds>;

    /// How many tokens the engine takes by one call of ours.
    fn at_a_time(&self) -> usize;

    /// How many tokens the context has room for.
    fn size(&self) -> usize;

    /// Tails that wait for the rows of their tokens.
    fn tails(&self) -> &Tails;

    /// The same, to be changed.
    fn tails_mut(&mut self) -> &mut Tails;

    /// The tail in what the engine gives as the [part](Engine::save_part) of a state that cannot be cut back. `None`: states of
    /// this context are not understood, or this is none.
    fn tail_of<'a>(&self, part: &'a [u8]) -> Option<&'a [u8]>;

    /// The size of such a tail, in bytes. A simulation has no bytes, and says here how many there would be.
    fn size_of_tail(&self, tail: &[u8]) -> usize {
        tail.len()
    }

    /// Whether these are the adapters that are applied now, whatever the salt.
    fn are_these(&self, conditions: Conditions) -> bool;

    /// All tokens of a batch may be needed: nothing may be left out.
    fn has_embeddings(&self) -> bool;

    /// States of this context can be kept and loaded, now and as far as is known.
    fn may_store(&self) -> bool;

    /// A run was evaluated, of whose sequence something is not known, maybe.
    fn note_evaluated(&self, run: &Run) {
        let _ = run;
    }
}

/// What is looked for in the store.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The sequence that gets it.
    pub sequence: i32,
    /// The tokens that the host believes in, and behind them those of its batch that may be loaded.
    pub tokens: &'a [i32],
    /// How many tokens the host believes in.
    pub believed: usize,
    /// How many of the tokens the engine holds.
    pub held: usize,
    /// The tokens of the host's batch; `None`: it only gets what it believes in.
    pub run: Option<&'a Run>,
}

impl Wanted<'_> {
    /// Which tokens were loaded now that the host had been told were evaluated. The first `reused` are
    /// [reused](contextpilot_kv_store::Session::reused) to the host, whatever was done for them.
    pub fn loaded_now(&self, done: &Done, reused: usize) -> Range<usize> {
        self.held.max(reused)..done.loaded.unwrap_or(0).min(self.believed)
    }
}

/// What became of what was to be done to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// How many of the tokens the engine holds now. Nothing else is in the sequence.
    pub held: usize,
    /// The state that was loaded was of so many tokens.
    pub loaded: Option<usize>,
    /// States that were refused or gone.
    pub failed_loads: usize,
    /// Why the rest was not evaluated.
    pub refused: Option<Refusal>,
}

/// States that the store has for a sequence.
pub trait Supply {
    /// The tokens that they are of, or that it is of if one was loaded. They begin with those that the engine holds.
    fn tokens(&self) -> &[i32];

    /// How many of these may be loaded, the most first, if more is refused. If that is more than what is wanted, all of that is
    /// there, and the prompt may go on with the rest.
    fn lengths(&self) -> Vec<usize>;

    /// Gives the engine the state of so many tokens, or of fewer if something of it is gone; of how many. `None`: nothing is
    /// left, or the engine refuses it.
    fn load(&mut self, tokens: usize) -> Option<usize>;

    /// Whether what the engine held before was put aside, because it cannot be evaluated again.
    fn is_aside(&self) -> bool;

    /// Gives the engine what it held before. False: it refuses it.
    fn put_back(&mut self) -> bool;

    /// This came of it.
    fn finish(self, done: &Done)
    where
        Self: Sized,
    {
        let _ = done;
    }
}

/// A context, with all that belongs to it.
pub trait Host: Engine {
    /// What is known of it.
    type Record: Record;

    /// Runs `work` on the record. `None`: it did not run to its end, or the library had stopped before. Whatever it changed
    /// then may be half changed, and from now on the answer is always `None`.
    fn record<R>(&self, work: impl FnOnce(&mut Self::Record) -> R) -> Option<R>;

    /// As [`Host::record`], right before this part of a batch is evaluated.
    fn record_before<R>(
        &self,
        part: &Part,
        work: impl FnOnce(&mut Self::Record) -> R,
    ) -> Option<R> {
        let _ = part;
        self.record(work)
    }

    /// Whether the store goes on. If the library has stopped, the context is [put right](crate::repair()) first, once; then there is
    /// nothing to do for it any more. The engine's function must be still to come: this may evaluate.
    fn goes_on(&self) -> bool;

    /// Runs `work`, which cannot panic, on the journal.
    fn journal<R>(&self, work: impl FnOnce(&mut Journal) -> R) -> Option<R>;

    /// What the store has that is worth loading.
    fn find<'a>(&'a self, wanted: &Wanted<'a>) -> Option<impl Supply + 'a>;

    /// Whether nothing of a sequence is to be loaded, because the host wants it evaluated.
    fn is_uncached(&self, sequence: i32) -> bool;

    /// Whether a run may be left out without anything being loaded: all of its tokens are on the way to a state, and no caller
    /// sees that the engine lacks them.
    fn may_wait(&self, run: &Run) -> bool;

    /// How many tokens the engine computes at once. `None`: not known.
    fn at_once(&self) -> Option<usize>;

    /// Runs `work` on the record and on what the store has under what a sequence is evaluated under now. `None`: states of the
    /// context are not understood, all of its tokens are needed, or the store cannot be asked.
    fn with_states<R>(
        &self,
        sequence: i32,
        work: impl FnOnce(&Self::Record, &dyn States) -> Option<R>,
    ) -> Option<R>;

    /// Where the last message that begins in the leading tokens of a run begins: see [`last_message`](crate::last_message).
    fn last_message(&self, run: &Run) -> Option<usize>;

    /// As [`Engine::evaluate`], of tokens of the host's batch: how long that takes says how long evaluating takes.
    ///
    /// # Errors
    /// The engine refuses.
    fn evaluate_of_batch(
        &self,
        sequence: i32,
        from: usize,
        tokens: &[i32],
        most: usize,
    ) -> Result<(), Refusal> {
        self.evaluate(sequence, from, tokens, most)
    }

    /// Tokens that wait are about to be loaded or evaluated, whatever asks for them.
    fn about_to_reach(&self);

    /// The engine refused a state, and so many tokens are evaluated again.
    fn note_refused_state(&self, tokens: usize);
}

/// What the store has, of tokens that were all evaluated under the same.
pub trait States {
    /// How many of the first of these tokens it has rows of.
    fn length_of(&self, tokens: &[i32]) -> usize;

    /// The longest beginning of these tokens that it has a whole state of; 0: it has none.
    fn last_state_in(&self, tokens: &[i32]) -> usize;
}

/// A batch of the host, and what evaluates it.
pub trait HostBatch<R> {
    /// These entries, in order, are left out of the evaluation that follows. This cannot panic.
    fn leave_out(&mut self, left_out: &[u32]);

    /// Evaluates the batch without these entries. Returns the engine's result.
    fn evaluate(&mut self, left_out: &[u32]) -> i32;

    /// So many entries were evaluated by the last call.
    fn evaluated(&mut self, record: &mut R, entries: usize) {
        let _ = (record, entries);
    }

    /// These entries were left out, because the engine has them from the store.
    fn loaded(&mut self, entries: &[u32]) {
        let _ = entries;
    }
}

/// The entries of one sequence in a batch of the host.
#[derive(Debug, Default)]
pub struct Part {
    /// Its tokens.
    pub run: Run,
    /// The index of each entry in the batch.
    pub indexes: Vec<u32>,
    /// The positions follow each other.
    pub follows: bool,
    /// It is left out though the engine does not hold it: see [`crate::bounded`].
    pub pending: Cell<bool>,
    /// How many entries were evaluated by a call of ours.
    pub ours: Cell<usize>,
}

impl Part {
    /// How many of its first entries are left out of the batch.
    pub(crate) fn left_out(&self, session: &Session) -> usize {
        if self.pending.get() {
            self.indexes.len()
        } else {
            session.there(&self.run)
        }
    }
}

/// Whether a context cannot go back to any position.
pub fn is_bounded<H: Host>(host: &H) -> bool {
    host.record(|record| record.bounds().is_some()) == Some(true)
}
