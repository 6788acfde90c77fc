//! What is known of one KV sequence.

use crate::adapters::Blend;
use crate::event::Token;
use crate::ledger::{Named, Wanted};
use crate::requests::RequestKey;
use crate::tree::Holder;

/// A KV sequence of the primary context.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Stands at the end of the positions `0..n` that the sequence holds without a gap.
    pub(crate) holder: Holder,
    /// Stands at the end of what is about to take the place of all that.
    pub(crate) arriving: Option<Holder>,
    /// What the sequence has left and may still walk back into.
    pub(crate) ghost: Option<Ghost>,
    /// Tokens beyond a gap, ascending and disjoint. Only between the calls of a
    /// shift: nothing is reused from beyond a gap.
    pub(crate) tail: Vec<Fragment>,
    /// The task that the slot works on, until its prompt has been evaluated.
    pub(crate) launch: Option<Launch>,
    /// Index in the batch that is being evaluated.
    pub(crate) flight: Option<usize>,
    /// It may hold something of which the ledger knows nothing: `holder` stands at the root.
    pub(crate) unknown: bool,
    /// The number of the content that is written now and will be forgotten: its tokens are like
    /// no others (see [`unseen_token`](crate::unseen_token)).
    pub(crate) forgotten: Option<u32>,
    /// The adapters that it worked under last; `None`: not known.
    pub(crate) blend: Option<Blend>,
    /// The next batch decides under which it goes on.
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
            flight: None,
            unknown: false,
            forgotten: None,
            blend: Some(Blend::default()),
            unsettled: false,
        }
    }

    /// All that keep something for it.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> {
        let ghost = self.ghost.as_ref().map(|ghost| ghost.holder);
        [Some(self.holder), self.arriving, ghost]
            .into_iter()
            .flatten()
    }

    /// Whether the server would use what it holds for a request for these adapters.
    pub(crate) fn suits(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Any => true,
            Wanted::Unknown => false,
            Wanted::Blend(wanted) => {
                self.unsettled || self.blend.is_some_and(|blend| blend.keeps_for(wanted))
            }
        }
    }

    /// The task that was just launched names adapters.
    pub(crate) fn mark_named(&mut self) {
        if let Some(launch) = &mut self.launch {
            launch.names_adapters = true;
        }
    }
}

/// Keeps a branch that a sequence has left *undecided*: the same tokens may be
/// evaluated again.
#[derive(Debug)]
pub(crate) struct Ghost {
    /// Stands where the sequence stood.
    pub(crate) holder: Holder,
    /// Something was cut out of the middle.
    pub(crate) shifted: bool,
}

/// A run of tokens somewhere in a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// In 64 bits: positions are the engine's word, not ours, and a shift adds to them.
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

/// A task at work on a slot whose prompt is not evaluated yet.
#[derive(Debug)]
pub(crate) struct Launch {
    /// Whose; `None` for a request without an id.
    pub(crate) request: Option<RequestKey>,
    /// Asks for the output of every prompt token, as embedding tasks do: the
    /// prompt may go on in the next batch.
    pub(crate) every_output: bool,
    /// Index of the mark among the request's, once it has been set. Only with `every_output`.
    pub(crate) mark: Option<usize>,
    /// Some of it was submitted. Only looked at where adapters are applied.
    pub(crate) submitted: bool,
    /// Nothing of it was submitted or will be, and what it left the slot's adapters at was taken
    /// into account.
    pub(crate) blend_settled: bool,
    /// Its request names adapters.
    pub(crate) names_adapters: bool,
    /// Which, as long as it is not known what they are.
    pub(crate) named: Option<Named>,
}
