//! The radix tree of tokens: what is held, and by whom.
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
//! A [`Node`] is a run of tokens below its parent. A *holder* stands at a depth
//! and keeps every token above it alive. A *mark* stands at the end of a node:
//! the prompt of a request ends there. When the last holder at or below a token
//! leaves, the token goes, and the marks that stood on it are *lost*.
//!
//! Runs are cut into pieces of at most [`RUN`] tokens. That bounds what it costs
//! to split and to join nodes, so that no single operation has to copy a whole
//! context of 131,072 tokens, and costs one node (some 100 bytes) in a thousand
//! tokens. Memory: 4 bytes a token, at most 8 while a run grows.

use crate::event::Token;
use crate::slab::{Key, Slab};
use std::collections::HashMap;

mod node;
use node::Node;

/// Longest run of one node, tokens. Short under test, so that a few tokens cross from run to run.
const RUN: usize = if cfg!(any(test, fuzzing)) { 4 } else { 1024 };
/// The root, a node without tokens.
const ROOT: Key = 0;
/// No node, no holder, no mark.
const NONE: Key = Key::MAX;

/// Names a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(Key);

/// Names a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(Key);

/// A holder's place in the tree. It stands *in* `node`: above its end or at it,
/// below the end of its parent (or at the root).
#[derive(Debug)]
struct Stand {
    node: Key,
    depth: u32,
    /// The least depth since [`Tree::take_lowest`].
    lowest: u32,
    previous: Key,
    next: Key,
}

/// A mark's place in the tree: the end of `node`.
#[derive(Debug)]
struct Flag<M> {
    node: Key,
    previous: Key,
    next: Key,
    label: M,
}

/// The way along some tokens, as far as the tree has them.
#[derive(Debug)]
pub(crate) struct Path {
    /// The nodes on it, each with the depth of the last token in it that agrees.
    nodes: HashMap<Key, u32>,
}

/// The tree. `M` labels the marks.
#[derive(Debug)]
pub(crate) struct Tree<M> {
    nodes: Slab<Node>,
    /// The child of a node that begins with a token.
    edges: HashMap<(Key, Token), Key>,
    holders: Slab<Stand>,
    marks: Slab<Flag<M>>,
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

    /// How many distinct tokens are held.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    // ---- holders -------------------------------------------------------

    /// A new holder at the root: it holds nothing.
    pub(crate) fn hold_root(&mut self) -> Holder {
        Holder(self.stand(ROOT, 0))
    }

    /// A new holder where another one stands.
    pub(crate) fn hold_beside(&mut self, holder: Holder) -> Holder {
        let Stand { node, depth, .. } = self.holders[holder.0];
        Holder(self.stand(node, depth))
    }

    /// How many tokens lie above a holder.
    pub(crate) fn depth(&self, holder: Holder) -> u32 {
        self.holders[holder.0].depth
    }

    /// How many tokens have lain above a holder ever since this was called last. For a holder that
    /// is new since then, none.
    pub(crate) fn take_lowest(&mut self, holder: Holder) -> u32 {
        let stand = &mut self.holders[holder.0];
        std::mem::replace(&mut stand.lowest, stand.depth)
    }

    /// Takes a holder away. The labels of the marks that only it kept go to `lost`.
    pub(crate) fn release(&mut self, holder: Holder, lost: &mut Vec<M>) {
        let node = self.leave(holder.0);
        self.holders.remove(holder.0);
        self.prune(node, lost);
    }

    /// Moves a holder up to `depth`; does nothing if it stands there or above.
    pub(crate) fn retreat(&mut self, holder: Holder, depth: u32, lost: &mut Vec<M>) {
        let stand = &self.holders[holder.0];
        if depth >= stand.depth {
            return;
        }
        let left = stand.node;
        // A whole context is left often, and need not be climbed.
        let mut node = if depth == 0 { ROOT } else { left };
        while node != ROOT && self.start(node) >= depth {
            node = self.nodes[node].parent;
        }
        self.relocate(holder.0, node, depth);
        let stand = &mut self.holders[holder.0];
        stand.lowest = stand.lowest.min(depth);
        // Standing higher up, it keeps the pruning from going too far.
        self.prune(left, lost);
    }

    /// Walks a holder down while the tree already has the tokens; returns how many it had.
    ///
    /// With `towards`, the walk also ends where it would leave the path to that
    /// holder, and where it has reached it.
    pub(crate) fn follow(
        &mut self,
        holder: Holder,
        tokens: &[Token],
        towards: Option<Holder>,
    ) -> usize {
        let mut walked = 0;
        let limit = towards.map_or(u32::MAX, |goal| self.depth(goal));
        loop {
            let Stand { node, depth, .. } = self.holders[holder.0];
            let rest = &tokens[walked..];
            if rest.is_empty() || depth >= limit {
                return walked;
            }
            let here = &self.nodes[node];
            let inside = here.tokens.len() - (here.depth - depth) as usize;
            let run = &here.tokens[inside..];
            if run.is_empty() {
                let Some(&child) = self.edges.get(&(node, rest[0])) else {
                    return walked;
                };
                if towards.is_some_and(|goal| !self.is_above(child, goal)) {
                    return walked;
                }
                let step = self.agree(child, 0, rest, limit - depth);
                self.relocate(holder.0, child, depth + step as u32);
                walked += step;
            } else {
                let step = self.agree(node, inside, rest, limit - depth);
                if step == 0 {
                    return walked;
                }
                self.holders[holder.0].depth += step as u32;
                walked += step;
            }
        }
    }

    /// Walks a holder down, writing the tokens that the tree does not have.
    pub(crate) fn extend(&mut self, holder: Holder, tokens: &[Token]) {
        let mut written = self.follow(holder, tokens, None);
        while written < tokens.len() {
            let Stand { node, depth, .. } = self.holders[holder.0];
            let at = if depth < self.nodes[node].depth {
                self.split(node, depth)
            } else {
                node
            };
            let rest = &tokens[written..];
            let here = &mut self.nodes[at];
            let room = RUN - here.tokens.len();
            let step = if at != ROOT && here.is_open_ended() && room > 0 {
                let step = room.min(rest.len());
                here.grow(&rest[..step]);
                self.holders[holder.0].depth += step as u32;
                step
            } else {
                let step = RUN.min(rest.len());
                let child = self.nodes.insert(Node::below(at, depth, &rest[..step]));
                self.adopt(at, child);
                self.relocate(holder.0, child, depth + step as u32);
                step
            };
            self.tokens += step;
            written += step;
        }
    }

    /// The token right above a holder.
    pub(crate) fn last(&self, holder: Holder) -> Option<Token> {
        let Stand { node, depth, .. } = self.holders[holder.0];
        let node = &self.nodes[node];
        let below = (node.depth - depth) as usize;
        node.tokens.iter().rev().nth(below).copied()
    }

    /// The tokens above a holder, from depth `from` on.
    pub(crate) fn read(&self, holder: Holder, from: u32) -> Vec<Token> {
        let Stand {
            mut node,
            mut depth,
            ..
        } = self.holders[holder.0];
        let mut backwards = Vec::new();
        while depth > from {
            let start = self.start(node);
            let low = from.max(start);
            let run = &self.nodes[node].tokens[(low - start) as usize..(depth - start) as usize];
            backwards.extend(run.iter().rev());
            depth = low;
            node = self.nodes[node].parent;
        }
        backwards.reverse();
        backwards
    }

    /// Follows these tokens from the root.
    pub(crate) fn path(&self, tokens: &[Token]) -> Path {
        let mut nodes = HashMap::from([(ROOT, 0)]);
        let mut node = ROOT;
        let mut depth = 0;
        while let Some(&first) = tokens.get(depth) {
            let Some(&child) = self.edges.get(&(node, first)) else {
                break;
            };
            let run = &self.nodes[child].tokens;
            let pairs = run.iter().zip(&tokens[depth..]);
            let agree = pairs.take_while(|(a, b)| a == b).count();
            depth += agree;
            nodes.insert(child, depth as u32);
            if agree < run.len() {
                break;
            }
            node = child;
        }
        Path { nodes }
    }

    /// How far a holder stands on a path.
    pub(crate) fn common(&self, path: &Path, holder: Holder) -> u32 {
        let Stand {
            mut node, depth, ..
        } = self.holders[holder.0];
        loop {
            if let Some(&agreed) = path.nodes.get(&node) {
                return agreed.min(depth);
            }
            node = self.nodes[node].parent;
        }
    }

    // ---- marks ---------------------------------------------------------

    /// Marks the place at `depth` above a holder, or where it stands if that is higher.
    pub(crate) fn mark(&mut self, holder: Holder, depth: u32, label: M) -> Mark {
        let Stand {
            mut node,
            depth: lowest,
            ..
        } = self.holders[holder.0];
        let depth = depth.min(lowest);
        while node != ROOT && self.start(node) >= depth {
            node = self.nodes[node].parent;
        }
        if depth < self.nodes[node].depth {
            node = self.split(node, depth);
        }
        self.mark_node(node, label)
    }

    /// Marks the place where another mark stands.
    pub(crate) fn mark_beside(&mut self, mark: Mark, label: M) -> Mark {
        let node = self.marks[mark.0].node;
        self.mark_node(node, label)
    }

    /// Whether a holder stands at a mark or below it.
    pub(crate) fn covers(&self, holder: Holder, mark: Mark) -> bool {
        let node = self.marks[mark.0].node;
        self.depth(holder) >= self.nodes[node].depth && self.is_above(node, holder)
    }

    /// The labels of the marks at which a holder stands or below which it does, the lowest first.
    pub(crate) fn labels_above(&self, holder: Holder) -> Vec<&M> {
        let Stand {
            mut node, depth, ..
        } = self.holders[holder.0];
        let mut labels = Vec::new();
        if self.nodes[node].depth > depth {
            node = self.nodes[node].parent;
        }
        while node != ROOT {
            let mut mark = self.nodes[node].marks;
            while mark != NONE {
                let flag = &self.marks[mark];
                labels.push(&flag.label);
                mark = flag.next;
            }
            node = self.nodes[node].parent;
        }
        labels
    }

    /// Takes a mark away and returns its label.
    pub(crate) fn unmark(&mut self, mark: Mark) -> M {
        let Flag {
            node,
            previous,
            next,
            label,
        } = self.marks.remove(mark.0);
        if previous == NONE {
            self.nodes[node].marks = next;
        } else {
            self.marks[previous].next = next;
        }
        if next != NONE {
            self.marks[next].previous = previous;
        }
        self.join(node);
        label
    }

    // ---- inside --------------------------------------------------------

    fn mark_node(&mut self, node: Key, label: M) -> Mark {
        let next = self.nodes[node].marks;
        let key = self.marks.insert(Flag {
            node,
            previous: NONE,
            next,
            label,
        });
        if next != NONE {
            self.marks[next].previous = key;
        }
        self.nodes[node].marks = key;
        Mark(key)
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

    /// How many tokens a node's run has in common with `tokens`, from its index `from` on.
    fn agree(&self, node: Key, from: usize, tokens: &[Token], limit: u32) -> usize {
        self.nodes[node].tokens[from..]
            .iter()
            .zip(tokens)
            .take(limit as usize)
            .take_while(|(ours, theirs)| ours == theirs)
            .count()
    }

    fn stand(&mut self, node: Key, depth: u32) -> Key {
        let key = self.holders.insert(Stand {
            node,
            depth,
            lowest: 0,
            previous: NONE,
            next: NONE,
        });
        self.enter(key, node);
        key
    }

    /// Puts a holder on a node's list.
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

    /// Takes a holder off its node's list; returns the node.
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

    /// Takes a node from below its parent.
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

    /// Cuts a node's run at `depth`; returns the upper part, which is new.
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
        // Shorter than the whole, the parts may fit in their neighbours' runs.
        self.join(parent);
        self.join(node);
        upper
    }

    /// Joins a node with its only child if nothing needs the joint.
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

    /// Lets go of what nobody holds any more, from a node upwards.
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
