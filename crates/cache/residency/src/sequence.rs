//! What is known of one KV sequence, which is a slot.

use crate::adapters::{Blend, Named, Wanted};
use crate::requests::RequestKey;
use crate::token::Token;
use crate::tree::Holder;

/// A KV sequence of the primary context.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Stands at the end of the positions `0..n` that the sequence holds without a gap.
    pub(crate) holder: Holder,
    /// Stands at the end of the content that is about to replace this sequence's own.
    pub(crate) arriving: Option<Holder>,
    /// Keeps what the sequence has left and may still walk back into.
    pub(crate) ghost: Option<Ghost>,
    /// Tokens beyond a gap, ascending and disjoint. Not empty only between the calls of a shift:
    /// the engine reuses nothing from beyond a gap.
    pub(crate) tail: Vec<Fragment>,
    /// The task that the slot works on, until its prompt has been evaluated.
    pub(crate) launch: Option<Launch>,
    /// Index in `Ledger::in_flight`, if the sequence is in the batch that is being evaluated.
    pub(crate) in_flight: Option<usize>,
    /// The sequence may hold tokens that the ledger does not know. `holder` stands at the root.
    pub(crate) unknown: bool,
    /// The server will forget what is written now ([`Event::Uncached`](crate::Event::Uncached)):
    /// the number by which its placeholders are made ([`unseen_token`](crate::unseen_token)).
    pub(crate) forgotten: Option<u32>,
    /// The LoRA adapters that the slot worked under last; `None`: not known.
    pub(crate) blend: Option<Blend>,
    /// The next batch decides under which adapters the slot goes on.
    pub(crate) unsettled: bool,
}

impl Sequence {
    pub(crate) fn new(holder: Holder) -> Self {
        Self {
            holder,
            arriving: None,
            ghost: None,
            tail: Vec::new(),
            launch: None,
            in_flight: None,
            unknown: false,
            forgotten: None,
            blend: Some(Blend::default()),
            unsettled: false,
        }
    }

    /// The holders that keep tokens for this sequence.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> {
        let ghost = self.ghost.as_ref().map(|ghost| ghost.holder);
        [Some(self.holder), self.arriving, ghost]
            .into_iter()
            .flatten()
    }

    /// Whether the server would use this slot's tokens for a request that wants these adapters.
    pub(crate) fn suits(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Any => true,
            Wanted::Unknown => false,
            Wanted::Blend(wanted) => {
                self.unsettled || self.blend.is_some_and(|blend| blend.keeps_for(wanted))
            }
        }
    }

    /// Notes that the task that was just launched names adapters.
    pub(crate) fn mark_named(&mut self) {
        if let Some(launch) = &mut self.launch {
            launch.names_adapters = true;
        }
    }
}

/// Keeps a branch that a sequence has left. The branch is *undecided*: the same tokens may be
/// evaluated again.
#[derive(Debug)]
pub(crate) struct Ghost {
    /// Stands where the sequence stood.
    pub(crate) holder: Holder,
    /// Tokens were moved, or cut out of the middle: a loss of this branch is a [`Reason::Shifted`].
    ///
    /// [`Reason::Shifted`]: crate::Reason::Shifted
    pub(crate) shifted: bool,
}

/// A run of tokens somewhere in a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The first position. 64 bits, because a shift may take an arbitrary `i32` out of its range.
    pub(crate) start: i64,
    pub(crate) tokens: Vec<Token>,
}

impl Fragment {
    /// One past the last position.
    pub(crate) fn end(&self) -> i64 {
        self.start + self.tokens.len() as i64
    }

    /// The parts below `from` and from `to` on; what lies between is dropped.
    pub(crate) fn without(mut self, from: i64, to: i64) -> impl Iterator<Item = Self> {
        let (start, end) = (self.start, self.end());
        let clamp = |position: i64| (position.clamp(start, end) - start) as usize;
        let upper = self.tokens.split_off(clamp(to.max(from)));
        let upper = Self {
            start: end - upper.len() as i64,
            tokens: upper,
        };
        self.tokens.truncate(clamp(from));
        [self, upper].into_iter().filter(|f| !f.tokens.is_empty())
    }
}

/// A task on a slot whose prompt has not been evaluated completely.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The request; `None`: it has no id.
    pub(crate) request: Option<RequestKey>,
    /// The task asks for the output of every prompt token, as embedding tasks do. So an output does
    /// not mean that the prompt is complete: it may go on in the next batch.
    pub(crate) every_output: bool,
    /// Index of this prompt's mark in the request's marks, once it is set. Only with
    /// `every_output`.
    pub(crate) mark: Option<usize>,
    /// Tokens of the prompt were submitted. Kept only where adapters are applied.
    pub(crate) submitted: bool,
    /// No token of the prompt was or will be submitted, and the slot's adapters were already
    /// changed to what the task left.
    pub(crate) blend_settled: bool,
    /// The request names adapters.
    pub(crate) names_adapters: bool,
    /// The adapters that the request names, until the ledger learns which adapters the server has.
    pub(crate) named: Option<Named>,
}
