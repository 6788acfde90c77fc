//! The radix tree of tokens: what is held, and by which holders.
//!
//! ```text
//!                 (root)
//!                   │  "You are a helpful assistant."
//!                   ●──────────────┐
//!       "What is…"  │              │  "Translate…"
//!       req-1 ▶     ●              ●     ◀ req-2, held by the host buffer 0x7f…
//!        "It is…"   │
//!                   ○  ◀ held by slot 0
//! ```
//!
//! A [`Node`] is a run of tokens below its parent. A *holder* (a slot or a host buffer) stands at a
//! depth and keeps every token above it alive. A *mark* stands at the end of a node: the prompt of a
//! request ends there. When the last holder at or below a token leaves, the token is removed, and
//! the marks that stood on it are *lost*.
//!
//! Runs are cut into pieces of at most [`RUN`] tokens. That bounds the cost of splitting and joining
//! nodes: no operation has to copy a whole context of, say, 131,072 tokens. The price is one node
//! (some 100 bytes) per thousand tokens. Memory: 4 bytes a token, at most 8 while a run grows.

use crate::slab::{Key, Slab};
use crate::token::Token;
use std::collections::HashMap;

mod holder;
mod mark;
mod node;
mod path;
mod shape;
mod walk;

use node::{Flag, NONE, Node, ROOT, RUN, Stand};
pub(crate) use node::{Holder, Mark, Spot};

/// The tree. `M` labels the marks.
#[derive(Debug)]
pub(crate) struct Tree<M> {
    nodes: Slab<Node>,
    /// The child of a node, by the first token of the child's run.
    edges: HashMap<(Key, Token), Key>,
    holders: Slab<Stand>,
    marks: Slab<Flag<M>>,
    /// Tokens in all nodes.
    tokens: usize,
}

impl<M> Tree<M> {
    pub(crate) fn new() -> Self {
        let mut nodes = Slab::new();
        let root = nodes.insert(Node::root());
        debug_assert_eq!(root, ROOT);
        Self {
            nodes,
            edges: HashMap::new(),
            holders: Slab::new(),
            marks: Slab::new(),
            tokens: 0,
        }
    }

    /// How many distinct tokens the holders keep.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Depth at which a node's run begins.
    fn start(&self, node: Key) -> u32 {
        let node = &self.nodes[node];
        node.depth - node.tokens.len() as u32
    }

    /// Whether a node lies on the path from the root to a holder.
    fn is_above(&self, node: Key, holder: Holder) -> bool {
        let depth = self.nodes[node].depth;
        let mut at = self.holders[holder.0].node;
        while self.nodes[at].depth > depth {
            at = self.nodes[at].parent;
        }
        at == node
    }

    /// Puts a holder on a node's list of holders.
    fn enter(&mut self, holder: Key, node: Key) {
        let next = self.nodes[node].holders;
        if next != NONE {
            self.holders[next].previous = holder;
        }
        let stand = &mut self.holders[holder];
        stand.node = node;
        stand.previous = NONE;
        stand.next = next;
        self.nodes[node].holders = holder;
    }

    /// Takes a holder off its node's list of holders and returns the node.
    fn leave(&mut self, holder: Key) -> Key {
        let Stand {
            node,
            previous,
            next,
            ..
        } = self.holders[holder];
        if previous == NONE {
            self.nodes[node].holders = next;
        } else {
            self.holders[previous].next = next;
        }
        if next != NONE {
            self.holders[next].previous = previous;
        }
        node
    }

    fn relocate(&mut self, holder: Key, node: Key, depth: u32) {
        if self.holders[holder].node != node {
            self.leave(holder);
            self.enter(holder, node);
        }
        self.holders[holder].depth = depth;
    }

    /// Hangs a node below another.
    fn adopt(&mut self, parent: Key, child: Key) {
        let next = self.nodes[parent].first_child;
        if next != NONE {
            self.nodes[next].previous_sibling = child;
        }
        let node = &mut self.nodes[child];
        node.parent = parent;
        node.previous_sibling = NONE;
        node.next_sibling = next;
        let first = node.tokens[0];
        self.nodes[parent].first_child = child;
        self.edges.insert((parent, first), child);
    }

    /// Unlinks a node from its parent.
    fn orphan(&mut self, child: Key) {
        let node = &self.nodes[child];
        let (parent, previous, next, first) = (
            node.parent,
            node.previous_sibling,
            node.next_sibling,
            node.tokens[0],
        );
        if previous == NONE {
            self.nodes[parent].first_child = next;
        } else {
            self.nodes[previous].next_sibling = next;
        }
        if next != NONE {
            self.nodes[next].previous_sibling = previous;
        }
        self.edges.remove(&(parent, first));
    }

    /// Cuts a node's run at `depth`. Returns the upper part, a new node; the lower part keeps its
    /// key.
    fn split(&mut self, node: Key, depth: u32) -> Key {
        self.orphan(node);
        let start = self.start(node);
        let lower = &mut self.nodes[node];
        let parent = lower.parent;
        let run: Vec<Token> = lower.tokens.drain(..(depth - start) as usize).collect();
        let upper = self.nodes.insert(Node::below(parent, start, &run));
        self.adopt(parent, upper);
        self.adopt(upper, node);
        let mut holder = self.nodes[node].holders;
        while holder != NONE {
            let next = self.holders[holder].next;
            if self.holders[holder].depth <= depth {
                self.leave(holder);
                self.enter(holder, upper);
            }
            holder = next;
        }
        // The parts are shorter than the whole, so each may fit into its neighbour's run.
        self.join(parent);
        self.join(node);
        upper
    }

    /// Joins a node with its only child, unless marks stand between the two or the run would be too
    /// long.
    fn join(&mut self, node: Key) {
        let upper = &self.nodes[node];
        if node == ROOT || upper.marks != NONE {
            return;
        }
        let Some(child) = upper.only_child(&self.nodes) else {
            return;
        };
        if upper.tokens.len() + self.nodes[child].tokens.len() > RUN {
            return;
        }
        while self.nodes[node].holders != NONE {
            let holder = self.nodes[node].holders;
            self.leave(holder);
            self.enter(holder, child);
        }
        self.orphan(child);
        self.orphan(node);
        let mut upper = self.nodes.remove(node);
        let lower = &mut self.nodes[child];
        upper.grow(&lower.tokens);
        lower.tokens = upper.tokens;
        self.adopt(upper.parent, child);
    }

    /// Removes the tokens that no holder keeps any more, from a node upwards. The labels of the
    /// marks on them go to `lost`.
    fn prune(&mut self, from: Key, lost: &mut Vec<M>) {
        let mut node = from;
        while node != ROOT && self.nodes[node].first_child == NONE {
            let here = &self.nodes[node];
            let end = here.depth;
            let start = self.start(node);
            let mut kept = start;
            let mut holder = here.holders;
            while holder != NONE && kept < end {
                kept = kept.max(self.holders[holder].depth);
                holder = self.holders[holder].next;
            }
            if kept == end {
                return;
            }
            let parent = here.parent;
            let mut mark = here.marks;
            while mark != NONE {
                let flag = self.marks.remove(mark);
                lost.push(flag.label);
                mark = flag.next;
            }
            self.nodes[node].marks = NONE;
            self.tokens -= (end - kept) as usize;
            if kept > start {
                self.nodes[node].cut((kept - start) as usize);
                self.join(parent);
                return;
            }
            self.orphan(node);
            self.nodes.remove(node);
            node = parent;
        }
        self.join(node);
    }
}

#[cfg(test)]
mod tests;
