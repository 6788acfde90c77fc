//! Queries of the ledger. Each walks the tree, so they are meant for a person's requests, not for
//! every event.

use super::Ledger;
use crate::fact::Asker;
use crate::fact::Place;
use crate::fact::TokenCounts;
use crate::ids::{ContextId, RequestId, SequenceId};
use crate::requests::{MarkKind, Remainder};
use crate::token::{FILLER, Token, is_unseen};

/// Where the prompt of a live request is; of several prompts, the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// The slots that hold the whole prompt, ascending; in a bounded context, nine tenths of it.
    pub sequences: Vec<SequenceId>,
    /// Whether an entry of the host prompt cache holds it.
    pub host: bool,
}

impl Whereabouts {
    /// One of the places: the first slot if there is one, else the host prompt cache.
    #[must_use]
    pub fn place(&self) -> Place {
        match self.sequences.first() {
            Some(&sequence) => Place::Slot(sequence),
            None if self.host => Place::Host,
            None => Place::Nowhere,
        }
    }
}

/// A prompt that was not evaluated to its end, as far as outputs tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its tokens up to now.
    pub counts: TokenCounts,
    /// Its tokens in the batch that is being evaluated.
    pub in_batch: u64,
    /// Nothing of it was evaluated or is being evaluated.
    pub untouched: bool,
    /// It is the prompt of an embedding, whose outputs do not tell where it ends.
    pub whole: bool,
}

/// The saved sequences in host memory, in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// How many buffers there are.
    pub buffers: usize,
    /// Tokens in all of them. Tokens that several buffers hold count several times.
    pub tokens: u64,
}

/// Whether the content of a slot begins with given tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// It begins with them.
    Same,
    /// It may begin with them: some of its tokens were written unseen, and the others agree.
    Unseen,
    /// It does not begin with them.
    Different,
}

/// The content of a slot, to be compared with prompts. Adapters are not compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    tokens: Vec<Token>,
    /// The content was written unseen: it may be anything.
    unknown: bool,
}

impl Contents {
    /// Whether the content begins with these tokens.
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
            // The ledger fills the positions that media take beyond their rows only when a token
            // follows.
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
    /// The content of a slot.
    #[must_use]
    pub fn contents(&self, sequence: SequenceId) -> Contents {
        match self.sequences.get(&sequence) {
            Some(sequence) => Contents {
                tokens: self.tree.read(sequence.holder, 0),
                unknown: sequence.unknown,
            },
            None => Contents {
                tokens: Vec::new(),
                unknown: self.gap.unheard,
            },
        }
    }

    /// The tokens that a slot holds. `None`: they are not known, or not all of them.
    #[must_use]
    pub fn tokens_of(&self, sequence: SequenceId) -> Option<Vec<Token>> {
        let sequence = self.sequences.get(&sequence)?;
        let tokens = self.tree.read(sequence.holder, 0);
        let known = !sequence.unknown && !tokens.iter().any(|&token| is_unseen(token));
        known.then_some(tokens)
    }

    /// The primary context, whose sequences are the slots; `None`: there is no context.
    #[must_use]
    pub fn primary(&self) -> Option<ContextId> {
        self.contexts.primary()
    }

    /// The slots that are known, ascending.
    pub fn slots(&self) -> impl Iterator<Item = SequenceId> {
        self.sequences.keys().copied()
    }

    /// Who asked for the last task of a slot, and whether that request is not answered yet. `None`: none
    /// was launched there, or the ledger is not [observed](Self::observed).
    #[must_use]
    pub fn works_for(&self, sequence: SequenceId) -> Option<(Asker, bool)> {
        self.jobs.as_ref()?.in_slot(sequence)
    }

    /// The prompt that a slot works on.
    #[must_use]
    pub fn unfinished(&self, sequence: SequenceId) -> Option<Unfinished> {
        let prompt = self.jobs.as_ref()?.prompt(sequence)?;
        Some(Unfinished {
            counts: prompt.so_far(),
            in_batch: prompt.in_batch(),
            untouched: prompt.is_untouched(),
            whole: prompt.over().is_some(),
        })
    }

    /// Whether [`Event::Quiet`](crate::Event::Quiet) could decide something.
    #[must_use]
    pub fn awaits_silence(&self) -> bool {
        let mut sequences = self.sequences.values();
        sequences.any(|sequence| sequence.ghost.is_some() || self.has_unsettled_blend(sequence))
            || self.has_changed_reach()
            || self.requests.answered_incomplete().next().is_some()
    }

    /// How much is saved in host memory.
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

    /// The live requests with a prompt that a slot holds whole, ordered by where their prompts end. Of more
    /// than `most` prompts, those that end last; equal prompts can be as many as there are live requests.
    /// A request with several such prompts is listed several times.
    #[must_use]
    pub fn requests_in(&self, sequence: SequenceId, most: usize) -> Vec<&RequestId> {
        let Some(sequence) = self.sequences.get(&sequence) else {
            return Vec::new();
        };
        let labels = self
            .tree
            .labels_above(sequence.holder)
            .filter(|label| label.kind != MarkKind::Enough)
            .take(most);
        let mut ids: Vec<&RequestId> = labels
            .filter_map(|label| self.requests.get(label.request))
            .filter(|request| sequence.suits(request.adapters) && request.evaluation.is_none())
            .map(|request| &request.id)
            .collect();
        ids.reverse();
        ids
    }

    /// The first tokens of a live request's prompt, at most `most`. Behind the prompt these are tokens of an answer,
    /// where a slot or host entry holds the prompt. `None`: nothing does, as far as the prompt counts as cached.
    #[must_use]
    pub fn beginning_of(&self, id: &str, most: u32) -> Option<Vec<Token>> {
        let request = self.requests.get(self.requests.find(id)?)?;
        let nth = request.marks().iter().position(Option::is_some)?;
        let holder_of = |mark| {
            let slots = self.sequences.values().map(|sequence| sequence.holder);
            let mut holders = slots.chain(self.buffers.values().copied());
            holders.find(|&holder| self.tree.covers(holder, mark))
        };
        let mark = request.mark(nth)?;
        let mut tokens = match request.remainder(nth) {
            // No slot or host entry holds the end of the prompt.
            Some(Remainder { end: None, tokens }) => {
                let mut all = self.tree.read(holder_of(mark)?, 0);
                all.truncate(self.tree.depth_of(mark) as usize);
                all.extend(tokens.iter());
                all
            }
            remainder => {
                let end = remainder
                    .and_then(|remainder| remainder.end)
                    .unwrap_or(mark);
                self.tree.read(holder_of(end)?, 0)
            }
        };
        tokens.truncate(most as usize);
        Some(tokens)
    }

    /// Where the first prompt of a live request is. Nowhere while the request is on its way. `None`:
    /// no live request has this id.
    #[must_use]
    pub fn whereabouts(&self, id: &str) -> Option<Whereabouts> {
        let request = self.requests.get(self.requests.find(id)?)?;
        let Some(&mark) = request.marks().iter().flatten().next() else {
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
