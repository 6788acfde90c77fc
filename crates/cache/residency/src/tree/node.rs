//! What the tree is made of: runs of tokens with their links, and what stands at them.

use crate::slab::{Key, Slab};
use crate::token::Token;

/// Longest run of one node, tokens. Short under test, so that a few tokens span several nodes.
pub(super) const RUN: usize = if cfg!(any(test, fuzzing)) { 4 } else { 1024 };
/// The root, a node without tokens.
pub(super) const ROOT: Key = 0;
/// No node, no holder, no mark.
pub(super) const NONE: Key = Key::MAX;

/// A run of tokens and its links.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Key,
    pub(super) first_child: Key,
    pub(super) previous_sibling: Key,
    pub(super) next_sibling: Key,
    /// First holder that stands in this run.
    pub(super) holders: Key,
    /// First mark that stands at the end of this run.
    pub(super) marks: Key,
    /// Depth of the end of this run: tokens from the root.
    pub(super) depth: u32,
    pub(super) tokens: Vec<Token>,
}

impl Node {
    pub(super) fn root() -> Self {
        Self::below(ROOT, 0, &[])
    }

    /// A node with a run that begins at depth `start`.
    pub(super) fn below(parent: Key, start: u32, tokens: &[Token]) -> Self {
        Self {
            parent,
            first_child: NONE,
            previous_sibling: NONE,
            next_sibling: NONE,
            holders: NONE,
            marks: NONE,
            depth: start + tokens.len() as u32,
            tokens: tokens.to_vec(),
        }
    }

    /// Whether tokens may be appended to the run: no child and no mark stands at its end. (A holder
    /// may: it stands inside the run afterwards.)
    pub(super) fn is_open_ended(&self) -> bool {
        self.first_child == NONE && self.marks == NONE
    }

    /// Appends to the run. Its capacity grows to the next power of two, at most [`RUN`].
    pub(super) fn grow(&mut self, tokens: &[Token]) {
        let length = self.tokens.len() + tokens.len();
        if length > self.tokens.capacity() {
            let capacity = length.next_power_of_two().min(RUN).max(length);
            self.tokens.reserve_exact(capacity - self.tokens.len());
        }
        self.tokens.extend_from_slice(tokens);
        self.depth += tokens.len() as u32;
    }

    /// Shortens the run to `length` tokens and frees memory.
    pub(super) fn cut(&mut self, length: usize) {
        self.depth -= (self.tokens.len() - length) as u32;
        self.tokens.truncate(length);
        self.tokens.shrink_to(length.next_power_of_two());
    }

    pub(super) fn only_child(&self, nodes: &Slab<Node>) -> Option<Key> {
        let child = self.first_child;
        (child != NONE && nodes[child].next_sibling == NONE).then_some(child)
    }
}

/// Names a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(pub(super) Key);

/// A holder's place in the tree. It stands *in* `node`: at the end of the node's run or inside it,
/// but below the end of the parent's run (unless `node` is the root).
#[derive(Debug)]
pub(super) struct Stand {
    pub(super) node: Key,
    pub(super) depth: u32,
    /// The least depth since the last [`take_lowest`](super::Tree::take_lowest).
    pub(super) lowest: u32,
    pub(super) previous: Key,
    pub(super) next: Key,
}

/// Names a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(pub(super) Key);

/// A mark's place in the tree: the end of the run of `node`.
#[derive(Debug)]
pub(super) struct Flag<M> {
    pub(super) node: Key,
    pub(super) previous: Key,
    pub(super) next: Key,
    pub(super) label: M,
}

/// Where some tokens leave the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(super) node: Key,
    /// How many of the tokens the tree has.
    pub(crate) depth: u32,
}
