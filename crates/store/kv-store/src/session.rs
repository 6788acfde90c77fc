//! What the sequences of one context hold, as far as the store may rely on it.
//!
//! The server has a view of each sequence: the tokens that it asked the engine to evaluate. The engine
//! may hold more: when a stored prompt is loaded, all of it is loaded at once, though the server asks for
//! it batch by batch. What the engine holds beyond the server's view is *ahead*. Nothing but evaluations
//! may meet tokens that are ahead, so a caller that is about to ask for anything else first removes them
//! ([`Session::cut`]).
//!
//! Of a context that cannot go back to any position (see [`crate::Shape`]), the engine never holds more than the
//! server's view when a call ends, but it may hold less: while a prompt goes on along what is stored, its tokens are
//! *pending* ([`Session::leave_pending`]). A caller that is about to ask for anything but evaluations, and for which the store has no
//! answer, first makes up for them: loads the state that is nearest, and evaluates the rest.
//!
//! A sequence is *known* while its tokens stand where they stand by [`media::position`] (0, 1, 2, … but for some images) and
//! all of them were seen, evaluated under the same [`Conditions`]. Calls that name positions are the server's; numbers of tokens
//! are ours. The store neither reads nor writes other sequences. An empty
//! sequence is always known.
//!
//! Of a sequence in which tokens were moved, or that was restored from a file, the *beginning* is known, up to the first
//! of these ([`Session::moved`], [`Session::restored`]). Once the server has removed all that is behind it, the sequence is known
//! again. If few of the others are left, whose ids were seen, they can be evaluated again, after which it is
//! known, too ([`Session::to_see_again`]): prompts of one program begin alike, so a slot would hardly ever get rid of them.
//! (Of a context that cannot go back to any position, the whole sequence is not known.)
//!
//! The engine copies a sequence to another one in two steps: at once it says that the tokens are there, and
//! their rows follow before the next evaluation (where each sequence has memory of its own). In between a
//! copy is *open*: what it is to be written to must not be saved, and neither of the two may be loaded.

use std::collections::{BTreeMap, BTreeSet};

use crate::chunk::common;
use crate::media;

/// Under what tokens are evaluated, as far as that changes in the life of a context: the adapters. The number
/// is the caller's; equal numbers, equal conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Conditions(pub u32);

/// The entries of one sequence in a batch, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The sequence.
    pub sequence: i32,
    /// The position of the first entry.
    pub first: i32,
    /// The tokens of all entries, which stand at consecutive positions, or share one.
    pub tokens: Vec<i32>,
    /// How many of the first entries want no output. Only these can be left out of a batch.
    pub leading: usize,
}

/// What has to be done for a run before it is evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Remove the tokens of the engine's sequence from this position on, then call [`Session::cut`].
    pub cut: Option<usize>,
    /// The store may have more: look for the server's tokens of this sequence (so many) with the leading
    /// tokens of the run behind them.
    pub search: Option<usize>,
}

/// Why a sequence is not known as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Tokens do not stand where they were evaluated, or were evaluated behind such.
    Moved,
    /// It was restored from a file, or by a caller that does not say what it is.
    Restored,
    /// It has an image or a sound that cannot be told apart from others.
    Media,
    /// It was evaluated when the model's file may have been another: see [`Session::doubt`].
    Doubt,
    /// The engine's windows did not reach back as far as a token looks: see [`Session::looks_too_far`].
    Window,
    /// Anything else: tokens under several adapters, a hole, entries that are no tokens.
    Unseen,
}

/// What a sequence holds behind its known beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rest {
    why: Why,
    /// What stands at each position. `None`: nothing, or something that was not seen.
    tokens: Vec<Option<i32>>,
}

/// What the server has saved of a sequence: see [`Session::copy_out`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The known beginning, or all.
    pub tokens: Vec<i32>,
    /// Under what that was evaluated.
    pub conditions: Conditions,
    /// Its windows begin at this position, because a state was loaded: see [`Session::begin_at`]. Zero: they lack nothing.
    pub first: usize,
    rest: Option<Rest>,
}

impl Held {
    /// All of these tokens were seen.
    pub fn whole(tokens: Vec<i32>, conditions: Conditions) -> Self {
        Self {
            tokens,
            conditions,
            first: 0,
            rest: None,
        }
    }

    /// Whether all tokens were seen.
    pub fn is_whole(&self) -> bool {
        self.rest.is_none()
    }
}

/// One sequence.
#[derive(Clone, Debug, Default)]
struct Sequence {
    /// What the engine holds.
    tokens: Vec<i32>,
    /// How many of them the server believes in.
    believed: usize,
    /// How many of the last tokens the engine does not hold. If there are any, the server believes in all tokens.
    pending: usize,
    /// The engine could not be given what the server believes in, and the server has not heard of it yet.
    lost: bool,
    /// Under what the tokens were evaluated. Of no meaning for an empty sequence.
    conditions: Conditions,
    /// Where the last run began, if all of its tokens wanted an output: they may be a draft.
    draft: usize,
    /// Evaluations since the last one that had tokens of a prompt: the steps of an answer.
    steps: usize,
    /// Only its tokens so far are known: see the module's documentation.
    rest: Option<Rest>,
    /// The first position of which the engine has all rows, because a state was loaded: those of sliding windows begin there.
    /// 0: whatever is missing, the engine itself has dropped.
    first: usize,
    /// The tokens that were known of a sequence before nothing was, if its rows begin later: see `first`.
    past: Vec<i32>,
    /// Some of its tokens may share a position, now or since it was empty. Else each one's position is its index.
    shares: bool,
    /// So many of its first tokens were evaluated by the model that is in its file: see [`Session::vouch`].
    vouched: usize,
    /// So many of its first tokens the server keeps, and has shown to nothing since they left the engine: see
    /// [`Session::leave_all_pending`].
    reused: usize,
}

/// The sequences of one context.
#[derive(Debug, Default)]
pub struct Session {
    sequences: BTreeMap<i32, Sequence>,
    /// Open copies: from which sequence to which.
    open: BTreeSet<(i32, i32)>,
    /// The context cannot go back to any position: what a part of a sequence is copied to is not that part.
    is_bound: bool,
}

impl Session {
    /// A run is about to be evaluated. Searching is worth it for `least` leading tokens or more.
    pub fn advise(&mut self, run: &Run, conditions: Conditions, least: usize) -> Advice {
        let is_bound = self.is_bound;
        let sequence = self.sequences.entry(run.sequence).or_default();
        if sequence.tokens.is_empty() && sequence.is_known() {
            sequence.conditions = conditions;
        }
        let same = sequence.conditions == conditions;
        if !sequence.is_known() || !sequence.is_followed_by(run) || !same {
            let cut = sequence.ahead().then_some(sequence.cuttable());
            let known = match usize::try_from(run.first) {
                Ok(first) if !is_bound => sequence.index(first),
                _ => 0,
            };
            sequence.forget_from(known, Why::Unseen);
            return Advice { cut, search: None };
        }
        let ahead = sequence.tokens.get(sequence.believed..).unwrap_or_default();
        let there = common(ahead, &run.tokens[..run.leading]);
        let kept = sequence.believed + there;
        if there == run.tokens.len() {
            return Advice::default();
        }
        let cut = (kept < sequence.tokens.len()).then_some(kept);
        let search = run.leading - there >= least && !self.is_open(run.sequence);
        Advice {
            cut,
            search: search.then_some(kept),
        }
    }

    /// Tokens that are worth evaluating again, and at which position the first of them stands: then the sequence is known. They are few
    /// beside the leading tokens of the run. Remove what stands there, evaluate them, and call [`Session::seen_again`].
    pub fn to_see_again(&self, run: &Run, conditions: Conditions) -> Option<(usize, Vec<i32>)> {
        /// A part of what is evaluated anyway.
        const PART: usize = 4;
        let sequence = self.sequences.get(&run.sequence)?;
        let rest = sequence.rest.as_ref().filter(|_| !self.is_bound)?;
        let from = sequence.end();
        let same = sequence.tokens.is_empty() || sequence.conditions == conditions;
        let ends = usize::try_from(run.first).ok() == Some(from + rest.tokens.len());
        let few = !rest.tokens.is_empty() && rest.tokens.len() <= run.leading / PART;
        if !same || !ends || !few || self.is_open(run.sequence) {
            return None;
        }
        let tokens: Vec<i32> = rest.tokens.iter().copied().collect::<Option<_>>()?;
        // The rows of media are gone.
        (!media::is_any_row(&tokens)).then_some((from, tokens))
    }

    /// The tokens of [`Session::to_see_again`] were evaluated under these conditions.
    pub fn seen_again(&mut self, sequence: i32, conditions: Conditions) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            if let Some(rest) = sequence.rest.take() {
                sequence.vouched = sequence.vouched.min(sequence.tokens.len());
                sequence.tokens.extend(rest.tokens.into_iter().flatten());
                sequence.conditions = conditions;
                sequence.settle();
            }
        }
    }

    /// Why nothing of a sequence is loaded or saved.
    pub fn why_unknown(&self, sequence: i32) -> Option<Why> {
        Some(self.sequences.get(&sequence)?.rest.as_ref()?.why)
    }

    /// What the server saves of a sequence when it takes a copy of its state. `None`: there is nothing to tell.
    pub fn copy_out(&self, sequence: i32) -> Option<Held> {
        let lacks_rows = self.lacks_rows(sequence);
        let sequence = self.sequences.get(&sequence)?;
        let is_there = !lacks_rows && sequence.pending == 0 && !sequence.lost && !sequence.ahead();
        (is_there && (!sequence.tokens.is_empty() || sequence.rest.is_some())).then(|| Held {
            tokens: sequence.tokens.clone(),
            conditions: sequence.conditions,
            first: sequence.first,
            rest: sequence.rest.clone(),
        })
    }

    /// The context cannot go back to any position.
    pub fn bind(&mut self) {
        self.is_bound = true;
    }

    /// Whether a run continues what its sequence is known to hold. Of an empty sequence the conditions are these from
    /// now on.
    pub fn continues(&mut self, run: &Run, conditions: Conditions) -> bool {
        let sequence = self.sequences.entry(run.sequence).or_default();
        if sequence.tokens.is_empty() && sequence.is_known() {
            sequence.conditions = conditions;
        }
        sequence.is_followed_by(run) && sequence.is_known() && sequence.conditions == conditions
    }

    /// Whether a state may be loaded into a sequence, or be taken for another one.
    pub fn may_load(&self, sequence: i32) -> bool {
        !self.is_open(sequence)
    }

    /// The run was not evaluated, though the server believes that it was.
    pub fn leave_pending(&mut self, run: &Run) {
        let sequence = self.sequences.entry(run.sequence).or_default();
        debug_assert!(sequence.is_known() && !sequence.ahead());
        sequence.tokens.extend_from_slice(&run.tokens);
        sequence.believed = sequence.tokens.len();
        sequence.pending += run.tokens.len();
        (sequence.draft, sequence.steps) = (sequence.believed, 0);
    }

    /// How many tokens of a sequence the engine holds.
    pub fn in_engine(&self, sequence: i32) -> usize {
        let sequence = self.sequences.get(&sequence);
        sequence.map_or(0, |sequence| sequence.tokens.len() - sequence.pending)
    }

    /// The engine now holds the first `len` tokens of those that the server believes in, and no others.
    pub fn set_in_engine(&mut self, sequence: i32, len: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.tokens.truncate(sequence.believed);
            sequence.pending = sequence.tokens.len().saturating_sub(len);
            sequence.vouched = 0;
            if len == 0 {
                sequence.first = 0;
            }
        }
    }

    /// The engine has evaluated a part of a batch, and the server learns that it has: it believes in what the engine holds.
    pub fn settle(&mut self, sequence: i32) {
        let found = self.sequences.get_mut(&sequence);
        if let Some(sequence) = found.filter(|sequence| sequence.is_known()) {
            sequence.settle();
        }
    }

    /// A state was loaded that has rows of sliding windows from this position on.
    pub fn begin_at(&mut self, sequence: i32, first: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.first = first;
        }
    }

    /// See [`begin_at`](Self::begin_at). Zero: its windows lack nothing.
    pub fn first(&self, sequence: i32) -> usize {
        let sequence = self.sequences.get(&sequence);
        sequence.map_or(0, |sequence| sequence.first)
    }

    /// The sequences among these (negative: all) that lack rows from this position on, because a state was loaded: without
    /// a load they might be there. Only those that can be evaluated again: their tokens are known, and were evaluated under
    /// these conditions.
    pub fn lacking(
        &self,
        sequence: i32,
        position: usize,
        are_these: impl Fn(Conditions) -> bool,
    ) -> Vec<i32> {
        let all = self.sequences.iter();
        let lacking = all.filter(|&(&id, entry)| {
            let is_known = are_these(entry.conditions) && !entry.beginning().is_empty();
            (sequence < 0 || id == sequence) && entry.first > position && is_known
        });
        lacking.map(|(&id, _)| id).collect()
    }

    /// How many tokens are known from the beginning of a sequence on, also of one that is not known as a whole.
    pub fn known_of(&self, sequence: i32) -> usize {
        let sequence = self.sequences.get(&sequence);
        sequence.map_or(0, |sequence| sequence.beginning().len())
    }

    /// The server is about to remove what is behind the first `kept` tokens, and the engine holds nothing of the sequence any
    /// more: these tokens are [pending](Session::leave_pending).
    pub fn leave_all_pending(&mut self, sequence: i32, kept: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            let mut tokens = sequence.beginning().to_vec();
            tokens.truncate(kept);
            *sequence = Sequence {
                believed: tokens.len(),
                pending: tokens.len(),
                draft: tokens.len(),
                reused: tokens.len(),
                tokens,
                conditions: sequence.conditions,
                lost: sequence.lost,
                ..Sequence::default()
            };
        }
    }

    /// How many of its first tokens the server has kept when [they left the engine](Self::leave_all_pending). To the server they are
    /// reused, whether they are loaded or evaluated again.
    pub fn reused(&self, sequence: i32) -> usize {
        let sequence = self.sequences.get(&sequence);
        sequence.map_or(0, |sequence| sequence.reused)
    }

    /// Under what a sequence was evaluated. Of no meaning for an empty one.
    pub fn under(&self, sequence: i32) -> Conditions {
        let sequence = self.sequences.get(&sequence);
        sequence.map_or(Conditions::default(), |sequence| sequence.conditions)
    }

    /// What a sequence holds counts as evaluated under these conditions from now on: the engine would hold the same.
    pub fn relabel(&mut self, sequence: i32, conditions: Conditions) {
        self.sequences.entry(sequence).or_default().conditions = conditions;
    }

    /// The model's file is what it was when the engine loaded it: what the engine has evaluated so far is of that.
    pub fn vouch(&mut self) {
        for sequence in self.sequences.values_mut() {
            sequence.vouched = sequence.tokens.len() - sequence.pending;
        }
    }

    /// The model's file may have been another since [`Session::vouch`]. What was evaluated before is under the conditions that
    /// `now` gives for its own from now on, and stays known; what was evaluated since is not, and neither is what `now` knows
    /// nothing of.
    pub fn doubt(&mut self, now: impl Fn(Conditions) -> Option<Conditions>) {
        for sequence in self.sequences.values_mut() {
            let is_vouched = sequence.vouched >= sequence.tokens.len();
            // The engine still holds what is ahead, and cannot be cut here; what is pending it will evaluate.
            let is_cuttable = !self.is_bound && !sequence.ahead();
            let is_settled = sequence.pending == 0 && !sequence.lost && (is_vouched || is_cuttable);
            if let Some(now) = now(sequence.conditions).filter(|_| is_settled) {
                if !is_vouched {
                    sequence.forget_from(sequence.vouched, Why::Doubt);
                }
                sequence.conditions = now;
            }
        }
    }

    /// The sequences of which tokens are pending.
    pub fn pending_sequences(&self) -> impl Iterator<Item = i32> {
        let all = self.sequences.iter();
        all.filter(|(_, sequence)| sequence.pending > 0)
            .map(|(&id, _)| id)
    }

    /// How many tokens the server believes in, if some of them are pending.
    pub fn believed_if_pending(&self, sequence: i32) -> Option<usize> {
        let sequence = self.sequences.get(&sequence)?;
        (sequence.pending > 0).then_some(sequence.believed)
    }

    /// What is pending of a sequence could not be given to the engine when the server asked for it.
    pub fn lose(&mut self, sequence: i32) {
        self.sequences.entry(sequence).or_default().lost = true;
    }

    /// See [`Session::lose`]. Until the whole sequence is removed.
    pub fn is_lost(&self, sequence: i32) -> bool {
        let sequence = self.sequences.get(&sequence);
        sequence.is_some_and(|sequence| sequence.lost)
    }

    /// Whether any sequence is [lost](Session::lose).
    pub fn is_any_lost(&self) -> bool {
        self.sequences.values().any(|sequence| sequence.lost)
    }

    /// The server has gone back to a state of these tokens, which it had taken before. `first`: [`Held::first`] then.
    ///
    /// What a later load has left out of the windows is there again, in as far as that state has it. A text is still taken to lack it: what
    /// is taken to lack something is given to the engine whole, and the server takes its checkpoints again behind such a state, which
    /// lose a position each time. Images and sounds cannot be given again.
    pub fn rewound(&mut self, sequence: i32, tokens: &[i32], conditions: Conditions, first: usize) {
        self.obscure_copies(sequence);
        let Some(entry) = self.sequences.get_mut(&sequence) else {
            return;
        };
        let same = entry.conditions == conditions && entry.tokens.starts_with(tokens);
        if !entry.is_known() || entry.pending > 0 || !same {
            return self.overwritten(sequence);
        }
        entry.tokens.truncate(tokens.len());
        entry.believed = tokens.len();
        entry.reused = entry.reused.min(tokens.len());
        entry.first = if media::is_any_row(tokens) {
            first
        } else {
            first.max(entry.first)
        };
        (entry.draft, entry.steps) = (tokens.len(), 0);
    }

    /// Whether a prompt is being evaluated: no answer has begun.
    pub fn is_in_prompt(&self, sequence: i32) -> bool {
        let sequence = self.sequences.get(&sequence);
        sequence.is_some_and(|sequence| {
            sequence.is_known() && sequence.steps == 0 && sequence.draft == sequence.tokens.len()
        })
    }

    /// The engine has evaluated something, whatever it was: no copy is open any more.
    pub fn updated(&mut self) {
        self.open.clear();
    }

    /// Whether a copy from or to this sequence is open.
    fn is_open(&self, sequence: i32) -> bool {
        let mut open = self.open.iter();
        open.any(|&(source, target)| source == sequence || target == sequence)
    }

    /// Whether the rows of this sequence are still to be written.
    fn lacks_rows(&self, sequence: i32) -> bool {
        self.open.iter().any(|&(_, target)| target == sequence)
    }

    /// The server's tokens of a sequence, with the leading tokens of the run behind them: what to look for.
    pub fn wanted(&self, run: &Run) -> Vec<i32> {
        self.after(run, run.leading)
    }

    /// The server's tokens of a sequence, with the first `count` tokens of the run behind them.
    pub fn after(&self, run: &Run, count: usize) -> Vec<i32> {
        let believed = self.believed(run.sequence).unwrap_or_default();
        [believed, &run.tokens[..count]].concat()
    }

    /// How many of a run's first entries the engine holds already, so that they can be left out. Only
    /// valid after what [`Session::advise`] said was done.
    pub fn there(&self, run: &Run) -> usize {
        let Some(sequence) = self.sequences.get(&run.sequence) else {
            return 0;
        };
        if !sequence.is_known() {
            return 0;
        }
        let ahead = sequence.tokens.get(sequence.believed..).unwrap_or_default();
        common(ahead, &run.tokens[..run.leading])
    }

    /// The run was evaluated, but for the entries that the engine held already.
    pub fn evaluated(&mut self, run: &Run) {
        let sequence = self.sequences.entry(run.sequence).or_default();
        let known = sequence.end();
        if let Some(rest) = &mut sequence.rest {
            let first = usize::try_from(run.first).unwrap_or(0);
            rest.put(first.saturating_sub(known), &run.tokens);
            return;
        }
        sequence.shares |= media::is_any_shared(&run.tokens);
        sequence.vouched = sequence.vouched.min(sequence.tokens.len());
        let there = sequence.tokens.len() - sequence.believed;
        sequence.believed += run.tokens.len();
        if there < run.tokens.len() {
            sequence.tokens.extend_from_slice(&run.tokens[there..]);
        }
        (sequence.draft, sequence.steps) = match run.leading {
            0 => (sequence.believed - run.tokens.len(), sequence.steps + 1),
            _ => (sequence.believed, 0),
        };
    }

    /// Whether everything behind the first `kept` tokens is of a draft: speculation evaluates guessed tokens,
    /// an output for each, and removes those that were wrong.
    pub fn is_draft(&self, sequence: i32, kept: usize) -> bool {
        let sequence = self.sequences.get(&sequence);
        sequence.is_some_and(|sequence| sequence.is_known() && kept >= sequence.draft)
    }

    /// Whether a run that was just evaluated is a good moment to copy its sequence out, though nothing is about
    /// to be lost: an answer has begun (its prompt is whole, and no client waits for its first token any more), or
    /// has grown by `every` steps. Guesses of a draft are no such moment.
    pub fn is_milestone(&self, run: &Run, every: usize) -> bool {
        let sequence = self.sequences.get(&run.sequence);
        run.tokens.len() == 1
            && sequence.is_some_and(|sequence| {
                sequence.is_known()
                    && (sequence.steps == 1 || sequence.steps > 0 && sequence.steps % every == 0)
            })
    }

    /// The other sequence that has the most of what is wanted for a run, and how many tokens that are. Those
    /// that are ahead come from the store, and are not asked.
    pub fn sharing(
        &self,
        run: &Run,
        wanted: &[i32],
        conditions: Conditions,
    ) -> Option<(i32, usize)> {
        let others = self.sequences.iter().filter(|&(&id, sequence)| {
            id != run.sequence
                && sequence.is_known()
                && sequence.conditions == conditions
                && !sequence.ahead()
                && sequence.pending == 0
                && !sequence.lost
                && !self.lacks_rows(id)
        });
        let shared = others.map(|(&id, sequence)| (id, common(&sequence.tokens, wanted)));
        shared.max_by_key(|&(id, shared)| (shared, -id))
    }

    /// The engine's sequence has been replaced by these tokens. The server's view is as before.
    pub fn loaded(&mut self, sequence: i32, tokens: Vec<i32>) {
        let sequence = self.sequences.entry(sequence).or_default();
        debug_assert!(tokens.len() >= sequence.believed);
        sequence.shares |= media::is_any_shared(&tokens);
        sequence.tokens = tokens;
        sequence.pending = 0;
        sequence.vouched = 0;
    }

    /// The engine's sequence has been cut to this length.
    pub fn cut(&mut self, sequence: i32, len: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.tokens.truncate(len);
            sequence.believed = sequence.believed.min(len);
            sequence.reused = sequence.reused.min(len);
            sequence.pending = 0;
        }
    }

    /// The sequences that the engine holds more of than the server believes, and how many tokens the server
    /// believes in.
    pub fn ahead(&self) -> impl Iterator<Item = (i32, usize)> {
        let all = self.sequences.iter();
        all.filter(|(_, sequence)| sequence.ahead())
            .map(|(&id, sequence)| (id, sequence.cuttable()))
    }

    /// As [`Session::ahead`], of one sequence.
    pub fn ahead_of(&self, sequence: i32) -> Option<usize> {
        let sequence = self.sequences.get(&sequence)?;
        sequence.ahead().then_some(sequence.cuttable())
    }

    /// The position of what stands behind the first `len` tokens of a sequence.
    pub fn position(&self, sequence: i32, len: usize) -> usize {
        let sequence = self.sequences.get(&sequence);
        sequence.map_or(len, |sequence| sequence.position(len))
    }

    /// How many of a sequence's known tokens stand before a position.
    pub fn index(&self, sequence: i32, position: usize) -> usize {
        let sequence = self.sequences.get(&sequence);
        sequence.map_or(position, |sequence| sequence.index(position))
    }

    /// The last position that the server has of a sequence of which the engine holds more; `None` within: it has nothing.
    pub fn last_position_if_ahead(&self, sequence: i32) -> Option<Option<usize>> {
        let sequence = self
            .sequences
            .get(&sequence)
            .filter(|sequence| sequence.ahead())?;
        Some(sequence.reach().checked_sub(1))
    }

    /// One more than the last position that the server has of a sequence, if tokens of it are pending.
    pub fn reach_if_pending(&self, sequence: i32) -> Option<usize> {
        let sequence = self.sequences.get(&sequence)?;
        (sequence.pending > 0).then(|| sequence.reach())
    }

    /// The tokens that the server believes in. `None`: the sequence is not known.
    pub fn believed(&self, sequence: i32) -> Option<&[i32]> {
        let Some(sequence) = self.sequences.get(&sequence) else {
            return Some(&[]);
        };
        let tokens = || &sequence.tokens[..sequence.believed];
        sequence.is_known().then(tokens)
    }

    /// Under what the sequence was evaluated; `None` if it is empty or not known, or if its rows are still to be
    /// written: nothing of it can be saved then.
    pub fn conditions(&self, sequence: i32) -> Option<Conditions> {
        let lacks_rows = self.lacks_rows(sequence);
        let sequence = self.sequences.get(&sequence)?;
        let is_known = sequence.is_known() && !sequence.tokens.is_empty();
        let is_there = !lacks_rows && sequence.pending == 0 && !sequence.lost;
        (is_known && is_there).then_some(sequence.conditions)
    }

    /// How many tokens the engine holds of all known sequences.
    pub fn held(&self) -> usize {
        let all = self.sequences.values();
        all.map(|sequence| sequence.tokens.len()).sum()
    }

    /// All sequences that were ever used.
    pub fn sequences(&self) -> impl Iterator<Item = i32> {
        self.sequences.keys().copied()
    }

    /// Nothing is known of a sequence any more; negative: of all. Its tokens ahead must have been removed.
    pub fn obscure(&mut self, sequence: i32) {
        self.obscure_as(sequence, Why::Unseen);
    }

    /// The same: what is evaluated next in a sequence looks at rows that the engine's windows do not have any more.
    pub fn looks_too_far(&mut self, sequence: i32) {
        self.obscure_as(sequence, Why::Window);
    }

    fn obscure_as(&mut self, sequence: i32, why: Why) {
        if sequence >= 0 {
            self.sequences.entry(sequence).or_default();
        }
        self.each(sequence, |sequence| {
            if sequence.first > 0 && sequence.past.is_empty() {
                sequence.past = sequence.beginning().to_vec();
            }
            sequence.forget_from(0, why);
            sequence
                .rest
                .iter_mut()
                .for_each(|rest| rest.tokens.clear());
        });
    }

    /// Something is evaluated from this position on of which nothing is known but that it is an image or a sound. What is ahead
    /// must have been removed.
    pub fn evaluated_media(&mut self, sequence: i32, first: i32) {
        let first = usize::try_from(first).unwrap_or(0);
        let is_bound = self.is_bound;
        let sequence = self.sequences.entry(sequence).or_default();
        sequence.forget_from(if is_bound { 0 } else { sequence.index(first) }, Why::Media);
        let known = sequence.end();
        if let Some(rest) = &mut sequence.rest {
            rest.why = Why::Media;
            // What stands there is no token, and more may follow.
            rest.put(first.saturating_sub(known), &[]);
            rest.tokens.push(None);
        }
    }

    /// The tokens of a sequence at the positions `[from, to)` stand `delta` further behind now, and are not what they would be
    /// if they had been evaluated there. Negative: from the beginning, to the end. What is ahead must have been removed.
    pub fn moved(&mut self, sequence: i32, from: i32, to: i32, delta: i32) {
        let place = |at: i32| usize::try_from(at).ok();
        let (from, to) = (place(from).unwrap_or(0), place(to).unwrap_or(usize::MAX));
        let target = from.checked_add_signed(delta as isize);
        let (Some(target), false) = (target, self.is_bound || sequence < 0) else {
            return self.obscure(sequence);
        };
        self.obscure_copies(sequence);
        self.each(sequence, |sequence| {
            sequence.forget_from(sequence.index(from.min(target)), Why::Moved);
            let known = sequence.end();
            if let Some(rest) = &mut sequence.rest {
                rest.why = Why::Moved;
                rest.shift(from.max(known) - known, to.saturating_sub(known), delta);
            }
        });
    }

    /// A sequence was restored from a file that says that it has these tokens; empty: it does not say.
    pub fn restored(&mut self, sequence: i32, tokens: &[i32]) {
        self.overwritten(sequence);
        let may_be_seen = !self.is_bound && !self.is_open(sequence);
        let tokens = if may_be_seen { tokens } else { &[] };
        self.each(sequence, |sequence| {
            sequence.rest = Some(Rest {
                why: Why::Restored,
                tokens: tokens.iter().copied().map(Some).collect(),
            });
        });
    }

    /// Positions `[from, to)` were removed; negative: from the beginning, to the end. A negative sequence
    /// stands for all.
    pub fn removed(&mut self, sequence: i32, from: i32, to: i32) {
        let from = usize::try_from(from).unwrap_or(0);
        let to = usize::try_from(to).unwrap_or(usize::MAX);
        let is_bound = self.is_bound;
        self.each(sequence, |sequence| {
            // So many tokens are before, and where they end.
            let (kept, known) = (sequence.index(from), sequence.end());
            if from == 0 && to == usize::MAX {
                *sequence = Sequence::default();
            } else if from >= to {
            } else if let Some(rest) = &mut sequence.rest {
                if to == usize::MAX {
                    sequence.past.truncate(from);
                }
                rest.remove(from.max(known) - known, to.saturating_sub(known));
                if from <= known && to == usize::MAX {
                    // All that was not known is gone.
                    sequence.rest = None;
                    sequence.tokens.truncate(kept);
                    sequence.settle();
                } else if from < known {
                    sequence.forget_from(kept, Why::Unseen);
                    if let Some(rest) = &mut sequence.rest {
                        rest.remove(0, to - from);
                    }
                }
            } else if to >= known {
                let in_engine = sequence.tokens.len() - sequence.pending;
                sequence.tokens.truncate(kept);
                sequence.believed = sequence.believed.min(kept);
                sequence.reused = sequence.reused.min(kept);
                sequence.pending = sequence.tokens.len().saturating_sub(in_engine);
                if from == 0 {
                    *sequence = Sequence::default();
                }
            } else if from < known {
                sequence.forget_from(if is_bound { 0 } else { kept }, Why::Unseen);
                let known = sequence.end();
                if let Some(rest) = &mut sequence.rest {
                    rest.remove(from.saturating_sub(known), to.saturating_sub(known));
                }
            }
            sequence.forget_part_of_media();
        });
    }

    /// Every sequence but one was removed.
    pub fn kept(&mut self, sequence: i32) {
        self.sequences.retain(|&id, _| id == sequence);
    }

    /// All sequences were removed.
    pub fn cleared(&mut self) {
        self.sequences.clear();
    }

    /// Positions `[from, to)` of one sequence now are the content of another.
    pub fn copied(&mut self, source: i32, target: i32, from: i32, to: i32) {
        if source == target {
            return;
        }
        let mut copy = self.sequences.get(&source).cloned().unwrap_or_default();
        let was_empty = self
            .sequences
            .get(&target)
            .is_none_or(|sequence| sequence.tokens.is_empty() && sequence.is_known());
        let mut is_unseen = from > 0 || !was_empty || copy.pending > 0;
        if let Ok(to) = usize::try_from(to) {
            is_unseen |= self.is_bound && to < copy.end();
            copy.cut_to(to);
            copy.forget_part_of_media();
        }
        if is_unseen || self.is_bound && !copy.is_known() {
            copy.forget_from(0, Why::Unseen);
            copy.rest = Some(Rest::new(Why::Unseen));
            copy.past.clear();
            copy.first = 0;
        }
        self.sequences.insert(target, copy);
        self.open.insert((source, target));
    }

    /// A sequence was replaced by a state that the server had saved.
    pub fn replaced(&mut self, sequence: i32, by: Held) {
        self.obscure_copies(sequence);
        let open = self.is_open(sequence);
        let restored = Sequence {
            believed: by.tokens.len(),
            draft: by.tokens.len(),
            conditions: by.conditions,
            shares: media::is_any_shared(&by.tokens),
            tokens: by.tokens,
            rest: by.rest,
            first: by.first,
            ..Sequence::default()
        };
        self.sequences.insert(sequence, restored);
        // An open copy will overwrite it, or take it for what was to be copied.
        if open {
            self.obscure(sequence);
        }
    }

    /// A sequence was replaced by something that is not known. Negative: all of them.
    pub fn overwritten(&mut self, sequence: i32) {
        self.obscure_copies(sequence);
        self.each(sequence, |sequence| sequence.first = 0);
        self.obscure(sequence);
        self.each(sequence, |sequence| sequence.past.clear());
    }

    /// The rows of a sequence were replaced: what is still to be copied from it gets these, not those that it had.
    fn obscure_copies(&mut self, sequence: i32) {
        let mut sources = vec![sequence];
        while let Some(source) = sources.pop() {
            let targets: Vec<i32> = self
                .open
                .iter()
                .filter(|&&(from, to)| (sequence < 0 || from == source) && to != source)
                .map(|&(_, to)| to)
                .collect();
            for target in targets {
                if !self.is_obscure(target) {
                    self.obscure(target);
                    sources.push(target);
                }
            }
        }
    }

    /// Nothing of it is known, not even that it is empty.
    fn is_obscure(&self, sequence: i32) -> bool {
        let sequence = self.sequences.get(&sequence);
        let is_unseen = |rest: &Rest| rest.tokens.is_empty();
        sequence.is_some_and(|sequence| {
            sequence.tokens.is_empty() && sequence.rest.as_ref().is_some_and(is_unseen)
        })
    }

    fn each(&mut self, sequence: i32, mut work: impl FnMut(&mut Sequence)) {
        match sequence {
            0.. => {
                if let Some(sequence) = self.sequences.get_mut(&sequence) {
                    work(sequence);
                }
            }
            _ => self.sequences.values_mut().for_each(work),
        }
    }
}

impl Sequence {
    /// The tokens that are known from its beginning on.
    fn beginning(&self) -> &[i32] {
        if self.is_known() {
            &self.tokens[..self.believed]
        } else if self.tokens.is_empty() {
            &self.past
        } else {
            &self.tokens
        }
    }

    /// Not within an image that the engine cannot be cut in.
    fn ahead(&self) -> bool {
        self.is_known() && self.tokens.len() > self.cuttable()
    }

    /// How many tokens are left if what is ahead is cut off.
    fn cuttable(&self) -> usize {
        if self.shares {
            media::cuttable(&self.tokens, self.believed)
        } else {
            self.believed
        }
    }

    /// See [`Session::position`].
    fn position(&self, len: usize) -> usize {
        if self.shares {
            media::position(&self.tokens[..len.min(self.tokens.len())])
        } else {
            len
        }
    }

    /// One more than the last position that the server has.
    fn reach(&self) -> usize {
        if self.shares {
            media::reach(&self.tokens[..self.believed])
        } else {
            self.believed
        }
    }

    /// The position behind its known tokens.
    fn end(&self) -> usize {
        self.position(self.tokens.len())
    }

    /// See [`Session::index`].
    fn index(&self, position: usize) -> usize {
        if self.shares {
            media::index(&self.tokens, position)
        } else {
            position
        }
    }

    /// Whether a run begins where the server's view ends.
    fn is_followed_by(&self, run: &Run) -> bool {
        let first = usize::try_from(run.first);
        first.is_ok_and(|first| first == self.position(self.believed))
    }

    fn is_known(&self) -> bool {
        self.rest.is_none()
    }

    /// The server believes in all of its tokens, and no answer has begun.
    fn settle(&mut self) {
        self.believed = self.tokens.len();
        (self.draft, self.steps) = (self.believed, 0);
    }

    /// Only what the server believes of the first `len` tokens is known from now on.
    fn forget_from(&mut self, len: usize, why: Why) {
        let known = match self.rest {
            None => self.believed.min(self.tokens.len() - self.pending),
            Some(_) => self.tokens.len(),
        };
        self.tokens.truncate(known);
        let len = len.min(known);
        let forgotten = self.tokens.split_off(len);
        let mut tokens: Vec<Option<i32>>;
        if self.shares {
            tokens = vec![None; media::position(&forgotten).max(media::reach(&forgotten))];
            let placed = media::positions(&forgotten).zip(&forgotten);
            placed.for_each(|(at, token)| tokens[at] = Some(*token));
        } else {
            tokens = forgotten.into_iter().map(Some).collect();
        }
        match &mut self.rest {
            Some(rest) => {
                tokens.append(&mut rest.tokens);
                rest.tokens = tokens;
            }
            None => self.rest = Some(Rest { why, tokens }),
        }
        self.pending = 0;
        self.settle();
    }

    /// A part of an image or a sound is of no use.
    fn forget_part_of_media(&mut self) {
        let whole = media::whole(&self.tokens);
        if self.is_known() && whole < self.tokens.len() {
            self.forget_from(whole, Why::Media);
        }
    }

    /// Only what stands before this position is there.
    fn cut_to(&mut self, end: usize) {
        let (len, behind) = (self.index(end), end.saturating_sub(self.end()));
        if let Some(rest) = &mut self.rest {
            rest.tokens.truncate(behind);
        }
        if behind == 0 {
            self.rest = None;
        }
        self.tokens.truncate(len);
        self.believed = self.believed.min(len);
    }
}

impl Rest {
    /// Nothing of it was seen.
    fn new(why: Why) -> Self {
        Self {
            why,
            tokens: Vec::new(),
        }
    }

    /// These tokens stand here. (What was not seen before them may stand there, too.)
    fn put(&mut self, at: usize, tokens: &[i32]) {
        self.tokens.truncate(at);
        self.tokens.resize(at, None);
        self.tokens.extend(tokens.iter().copied().map(Some));
    }

    /// Nothing stands there any more. What stood behind it stays where it is.
    fn remove(&mut self, from: usize, to: usize) {
        if to >= self.tokens.len() {
            self.tokens.truncate(from);
        } else {
            self.tokens[from.min(to)..to].fill(None);
        }
    }

    /// What stands there stands elsewhere now.
    fn shift(&mut self, from: usize, to: usize, delta: i32) {
        let end = to.min(self.tokens.len());
        let all: Vec<_> = self
            .tokens
            .get_mut(from..end)
            .unwrap_or_default()
            .iter_mut()
            .map(Option::take)
            .collect();
        let Some(target) = from.checked_add_signed(delta as isize) else {
            return self.tokens.clear();
        };
        let least = target + all.len();
        if self.tokens.len() < least {
            self.tokens.resize(least, None);
        }
        self.tokens[target..least].copy_from_slice(&all);
        while self.tokens.last() == Some(&None) {
            self.tokens.pop();
        }
    }
}
