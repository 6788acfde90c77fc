//! What the tree is made of: runs of tokens, who went through them, and how they were lost.

use super::forgotten::Hash;
use crate::slab::Key;
use crate::token::Token;

/// Longest run of one node, tokens. Short under test, as in the ledger's tree.
pub(super) const RUN: usize = if cfg!(any(test, fuzzing)) { 4 } else { 1024 };
pub(super) const ROOT: Key = 0;
pub(super) const NONE: Key = Key::MAX;
/// The number of a prompt, in the order in which prompts were launched, from 1 on.
pub(crate) type Nth = u64;
/// The number of a loss: see [`Losses`](super::super::losses::Losses).
pub(crate) type LossId = u64;
/// How many times prompts had begun. What was recorded at the moment when a prompt began, or before, was there then.
pub(crate) type Moment = u64;

/// Bytes of a node without its tokens: its place in the slab, its edge, its place among the leaves.
pub(super) const NODE_BYTES: usize =
    size_of::<Node>() + 16 + (size_of::<((Key, Token), Key)>() + 1) * 16 / 7 + 48;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Key,
    /// The child in which the latest prompt goes on; [`NONE`] if it ends here.
    pub(super) next: Key,
    pub(super) children: u32,
    /// Depth of the beginning of this run.
    pub(super) start: u32,
    pub(super) tokens: Vec<Token>,
    /// The last prompt that went through here.
    pub(super) latest: Nth,
    /// The earliest prompt that went through here.
    pub(super) first: Nth,
    /// When the run was recorded first.
    pub(super) since: Moment,
    /// The hash of all tokens before this run.
    pub(super) before: Hash,
    /// How the run was last lost from the cache; `None`: it was not.
    pub(super) lost: Option<Lost>,
    /// A number that no other node ever has.
    pub(super) serial: u64,
}

/// A loss of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) loss: LossId,
    /// When it was recorded again; `None`: it was not.
    pub(super) until: Option<Moment>,
}

impl Node {
    /// How the run was lost for a prompt that began at that moment; `None`: it may have been cached.
    pub(super) fn lost_for(&self, begun: Moment) -> Option<LossId> {
        let lost = self.lost?;
        let is_back = lost.until.is_some_and(|until| until <= begun);
        (!is_back).then_some(lost.loss)
    }

    pub(super) fn end(&self) -> u32 {
        self.start + self.tokens.len() as u32
    }

    pub(super) fn bytes(&self) -> usize {
        NODE_BYTES + self.tokens.capacity() * size_of::<Token>()
    }
}
