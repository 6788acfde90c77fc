//! What the sequences of one context hold, as far as the store may rely on it.
//!
//! The server has a view of each sequence: the tokens that it asked the engine to evaluate. The engine
//! may hold more: when a stored prompt is loaded, all of it is loaded at once, though the server asks for
//! it batch by batch. What the engine holds beyond the server's view is *ahead*. Nothing but evaluations
//! may meet tokens that are ahead, so whoever is about to ask for anything else first removes them
//! ([`Session::cut`]).
//!
//! A sequence is *known* while its tokens stand at the positions 0, 1, 2, … and all of them were seen,
//! evaluated under the same [`Conditions`]. The store neither reads nor writes other sequences. An empty
//! sequence is always known.
//!
//! The engine copies a sequence to another one in two steps: at once it says that the tokens are there, and
//! their rows follow before the next evaluation (where each sequence has memory of its own). In between a
//! copy is *open*: what it is to be written to must not be saved, and neither of the two may be loaded.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The tokens of all entries, which stand at consecutive positions.
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

/// One sequence.
#[derive(Clone, Debug, Default)]
struct Sequence {
    /// What the engine holds.
    tokens: Vec<i32>,
    /// How many of them the server believes in.
    believed: usize,
    /// Under what the tokens were evaluated. Of no meaning for an empty sequence.
    conditions: Conditions,
    /// Where the last run began, if all of its tokens wanted an output: they may be a draft.
    draft: usize,
    /// Evaluations since the last one that had tokens of a prompt: the steps of an answer.
    steps: usize,
    /// Not known: see the module's documentation.
    unknown: bool,
}

/// The sequences of one context.
#[derive(Debug, Default)]
pub struct Session {
    sequences: BTreeMap<i32, Sequence>,
    /// Open copies: from which sequence to which.
    open: BTreeSet<(i32, i32)>,
}

impl Session {
    /// A run is about to be evaluated. Searching is worth it for `least` leading tokens or more.
    pub fn advise(&mut self, run: &Run, conditions: Conditions, least: usize) -> Advice {
        let sequence = self.sequences.entry(run.sequence).or_default();
        if sequence.tokens.is_empty() && !sequence.unknown {
            sequence.conditions = conditions;
        }
        let follows = usize::try_from(run.first).is_ok_and(|first| first == sequence.believed);
        let same = sequence.conditions == conditions;
        if sequence.unknown || !follows || !same {
            let cut = sequence.ahead().then_some(sequence.believed);
            sequence.unknown = true;
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
        let mut tokens = self.believed(run.sequence).unwrap_or_default().to_vec();
        tokens.extend_from_slice(&run.tokens[..run.leading]);
        tokens
    }

    /// How many of a run's first entries the engine holds already, so that they can be left out. Only
    /// valid after what [`Session::advise`] said was done.
    pub fn there(&self, run: &Run) -> usize {
        let Some(sequence) = self.sequences.get(&run.sequence) else {
            return 0;
        };
        if sequence.unknown {
            return 0;
        }
        let ahead = sequence.tokens.get(sequence.believed..).unwrap_or_default();
        common(ahead, &run.tokens[..run.leading])
    }

    /// The run was evaluated, but for the entries that the engine held already.
    pub fn evaluated(&mut self, run: &Run) {
        let sequence = self.sequences.entry(run.sequence).or_default();
        if sequence.unknown {
            return;
        }
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
        sequence.is_some_and(|sequence| !sequence.unknown && kept >= sequence.draft)
    }

    /// Whether a run that was just evaluated is a good moment to copy its sequence out, though nothing is about
    /// to be lost: an answer has begun (its prompt is whole, and nobody waits for its first token any more), or
    /// has grown by `every` steps. Guesses of a draft are no such moment.
    pub fn is_milestone(&self, run: &Run, every: usize) -> bool {
        let sequence = self.sequences.get(&run.sequence);
        run.tokens.len() == 1
            && sequence.is_some_and(|one| {
                !one.unknown && (one.steps == 1 || one.steps > 0 && one.steps % every == 0)
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
        let others = self.sequences.iter().filter(|&(&id, one)| {
            id != run.sequence
                && !one.unknown
                && one.conditions == conditions
                && !one.ahead()
                && !self.lacks_rows(id)
        });
        let shared = others.map(|(&id, one)| (id, common(&one.tokens, wanted)));
        shared.max_by_key(|&(id, shared)| (shared, -id))
    }

    /// The engine's sequence has been replaced by these tokens. The server's view is as before.
    pub fn loaded(&mut self, sequence: i32, tokens: Vec<i32>) {
        let sequence = self.sequences.entry(sequence).or_default();
        debug_assert!(tokens.len() >= sequence.believed);
        sequence.tokens = tokens;
    }

    /// The engine's sequence has been cut to this length.
    pub fn cut(&mut self, sequence: i32, len: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.tokens.truncate(len);
            sequence.believed = sequence.believed.min(len);
        }
    }

    /// The sequences that the engine holds more of than the server believes, and how many tokens the server
    /// believes in.
    pub fn ahead(&self) -> impl Iterator<Item = (i32, usize)> {
        let all = self.sequences.iter();
        all.filter(|(_, sequence)| sequence.ahead())
            .map(|(&id, sequence)| (id, sequence.believed))
    }

    /// As [`Session::ahead`], of one sequence.
    pub fn ahead_of(&self, sequence: i32) -> Option<usize> {
        let sequence = self.sequences.get(&sequence)?;
        sequence.ahead().then_some(sequence.believed)
    }

    /// The tokens that the server believes in. `None`: the sequence is not known.
    pub fn believed(&self, sequence: i32) -> Option<&[i32]> {
        let Some(sequence) = self.sequences.get(&sequence) else {
            return Some(&[]);
        };
        let tokens = || &sequence.tokens[..sequence.believed];
        (!sequence.unknown).then(tokens)
    }

    /// Under what the sequence was evaluated; `None` if it is empty or not known, or if its rows are still to be
    /// written: nothing of it can be saved then.
    pub fn conditions(&self, sequence: i32) -> Option<Conditions> {
        let one = self.sequences.get(&sequence)?;
        let known = !one.unknown && !one.tokens.is_empty() && !self.lacks_rows(sequence);
        known.then_some(one.conditions)
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
        self.each(sequence, |one| {
            one.unknown = true;
            one.tokens.clear();
            one.believed = 0;
        });
        if sequence >= 0 {
            self.sequences.entry(sequence).or_default().unknown = true;
        }
    }

    /// Positions `[from, to)` were removed; negative: from the beginning, to the end. A negative sequence
    /// stands for all.
    pub fn removed(&mut self, sequence: i32, from: i32, to: i32) {
        let from = usize::try_from(from).unwrap_or(0);
        let to = usize::try_from(to).unwrap_or(usize::MAX);
        self.each(sequence, |one| {
            if from == 0 && to == usize::MAX {
                *one = Sequence::default();
            } else if one.unknown || from >= to {
            } else if to >= one.tokens.len() {
                one.tokens.truncate(from);
                one.believed = one.believed.min(from);
                if from == 0 {
                    *one = Sequence::default();
                }
            } else if from < one.tokens.len() {
                one.unknown = true;
            }
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
            .is_none_or(|one| one.tokens.is_empty() && !one.unknown);
        if from > 0 || !was_empty {
            copy.unknown = true;
        }
        if let Ok(to) = usize::try_from(to) {
            copy.tokens.truncate(to);
            copy.believed = copy.believed.min(to);
        }
        if copy.unknown {
            copy.tokens.clear();
            copy.believed = 0;
        }
        self.sequences.insert(target, copy);
        self.open.insert((source, target));
    }

    /// A sequence was replaced by these tokens (a saved state, or a file).
    pub fn replaced(&mut self, sequence: i32, tokens: Vec<i32>, conditions: Conditions) {
        let open = self.is_open(sequence);
        let one = self.sequences.entry(sequence).or_default();
        *one = Sequence {
            believed: tokens.len(),
            draft: tokens.len(),
            conditions,
            tokens,
            steps: 0,
            unknown: false,
        };
        // An open copy will overwrite it, or take it for what was to be copied.
        if open {
            self.obscure(sequence);
        }
    }

    fn each(&mut self, sequence: i32, mut work: impl FnMut(&mut Sequence)) {
        match sequence {
            0.. => {
                if let Some(one) = self.sequences.get_mut(&sequence) {
                    work(one);
                }
            }
            _ => self.sequences.values_mut().for_each(work),
        }
    }
}

impl Sequence {
    fn ahead(&self) -> bool {
        !self.unknown && self.tokens.len() > self.believed
    }
}

/// The length of the common beginning.
fn common(a: &[i32], b: &[i32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
