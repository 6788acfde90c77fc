//! What can be asked of the ledger beyond what it says by itself. Takes a walk each: for people
//! who look, not for every event.

use super::*;
use crate::event::{FILLER, is_unseen};

/// Where the prompts of a live request stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Slots that hold (the first of) its prompts whole, ascending.
    pub sequences: Vec<SequenceId>,
    /// Whether a buffer in host memory does.
    pub host: bool,
}

impl Whereabouts {
    /// One place for all: a slot rather than host memory.
    #[must_use]
    pub fn place(&self) -> Place {
        match self.sequences.first() {
            Some(&sequence) => Place::Slot(sequence),
            None if self.host => Place::Host,
            None => Place::Nowhere,
        }
    }
}

/// Saved sequences, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// How many.
    pub buffers: usize,
    /// Their lengths, added up.
    pub tokens: u64,
}

/// How what a slot holds compares with some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// It begins with them.
    Same,
    /// It may: some of it was written unseen, and the rest agrees.
    Unseen,
    /// It does not.
    Different,
}

/// What a slot holds, to be compared. Under which adapters it worked does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    tokens: Vec<Token>,
    /// It may be anything.
    unknown: bool,
}

impl Contents {
    /// Whether it begins with these tokens.
    #[must_use]
    pub fn likeness(&self, tokens: &[Token]) -> Likeness {
        if tokens.is_empty() {
            return Likeness::Same;
        }
        if self.unknown {
            return Likeness::Unseen;
        }
        let held = &self.tokens;
        if let Some(rest) = tokens.get(held.len()..) {
            // The positions that media take beyond their rows are filled when something follows.
            let after_media = held.last().is_some_and(|&token| token < 0);
            let filled = after_media && rest.iter().all(|&token| token == FILLER);
            if !rest.is_empty() && !filled {
                return Likeness::Different;
            }
        }
        let mut likeness = Likeness::Same;
        for (&ours, &theirs) in held.iter().zip(tokens) {
            if is_unseen(ours) {
                likeness = Likeness::Unseen;
            } else if ours != theirs {
                return Likeness::Different;
            }
        }
        likeness
    }
}

impl Ledger {
    /// What a slot holds.
    #[must_use]
    pub fn contents(&self, sequence: SequenceId) -> Contents {
        match self.sequences.get(&sequence) {
            Some(sequence) => Contents {
                tokens: self.tree.read(sequence.holder, 0),
                unknown: sequence.unknown,
            },
            None => Contents {
                tokens: Vec::new(),
                unknown: self.unheard,
            },
        }
    }

    /// The context whose sequences are the slots; `None`: there is no context.
    #[must_use]
    pub fn primary(&self) -> Option<ContextId> {
        self.contexts.first().copied()
    }

    /// The slots that are known, ascending.
    pub fn slots(&self) -> impl Iterator<Item = SequenceId> {
        self.sequences.keys().copied()
    }

    /// Whether [`Event::Quiet`] could decide something.
    #[must_use]
    pub fn awaits_silence(&self) -> bool {
        let mut sequences = self.sequences.values();
        sequences.any(|one| one.ghost.is_some() || self.has_unsettled_blend(one))
            || self.has_changed_reach()
            || self.requests.answered_incomplete().next().is_some()
    }

    /// What stands in host memory.
    #[must_use]
    pub fn saved(&self) -> Saved {
        Saved {
            buffers: self.buffers.len(),
            tokens: self
                .buffers
                .values()
                .map(|&holder| u64::from(self.tree.depth(holder)))
                .sum(),
        }
    }

    /// The live requests that have a prompt which a slot holds whole, in the order in which
    /// their prompts end. One with several such prompts is there several times.
    #[must_use]
    pub fn requests_in(&self, sequence: SequenceId) -> Vec<&RequestId> {
        let Some(sequence) = self.sequences.get(&sequence) else {
            return Vec::new();
        };
        let mut labels = self.tree.labels_above(sequence.holder);
        labels.reverse();
        labels
            .into_iter()
            .filter_map(|label| self.requests.get(label.request))
            .filter(|request| sequence.suits(request.adapters) && request.evaluation.is_none())
            .map(|request| &request.id)
            .collect()
    }

    /// The tokens that the prompt of a live request begins with, so many at most. `None`: it is not
    /// cached.
    #[must_use]
    pub fn beginning_of(&self, id: &str, most: u32) -> Option<Vec<Token>> {
        let request = self.requests.get(self.requests.find(id)?)?;
        let &mark = request.marks.iter().flatten().next()?;
        let slots = self.sequences.values().map(|sequence| sequence.holder);
        let mut holders = slots.chain(self.buffers.values().copied());
        let holder = holders.find(|&holder| self.tree.covers(holder, mark))?;
        let mut tokens = self.tree.read(holder, 0);
        tokens.truncate(most as usize);
        Some(tokens)
    }

    /// Where the first prompt of a live request stands: nowhere while it is on its way. `None`:
    /// no live request has this id.
    #[must_use]
    pub fn whereabouts(&self, id: &str) -> Option<Whereabouts> {
        let request = self.requests.get(self.requests.find(id)?)?;
        let Some(&mark) = request.marks.iter().flatten().next() else {
            return Some(Whereabouts::default());
        };
        let mut buffers = self.buffers.values();
        Some(Whereabouts {
            sequences: self
                .sequences
                .iter()
                .filter(|(_, sequence)| sequence.suits(request.adapters))
                .filter(|(_, sequence)| self.tree.covers(sequence.holder, mark))
                .map(|(&id, _)| id)
                .collect(),
            host: buffers.any(|&holder| self.tree.covers(holder, mark)),
        })
    }
}
