//! Marks: each stands at the end of a node, where the prompt of a request ends.

use std::iter;

use super::*;

impl<M> Tree<M> {
    /// Marks the place at `depth` on the path to a holder, or the holder's own place if `depth` is
    /// beyond it.
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

    /// How many tokens lie above a mark.
    pub(crate) fn depth_of(&self, mark: Mark) -> u32 {
        self.nodes[self.marks[mark.0].node].depth
    }

    /// Whether a holder stands at a mark or below it.
    pub(crate) fn covers(&self, holder: Holder, mark: Mark) -> bool {
        let node = self.marks[mark.0].node;
        self.depth(holder) >= self.nodes[node].depth && self.is_above(node, holder)
    }

    /// The labels of all marks that a holder keeps: those at its place and above, the deepest first, and at
    /// one place the last first.
    pub(crate) fn labels_above(&self, holder: Holder) -> impl Iterator<Item = &M> {
        let Stand { node, depth, .. } = self.holders[holder.0];
        let lowest = if self.nodes[node].depth > depth {
            self.nodes[node].parent
        } else {
            node
        };
        let above = |node| Some(node).filter(|&node| node != ROOT);
        let nodes = iter::successors(above(lowest), move |&node| above(self.nodes[node].parent));
        nodes.flat_map(|node| self.labels_at(&self.nodes[node]))
    }

    /// The labels of the marks at the end of a node, the last first.
    pub(super) fn labels_at(&self, node: &Node) -> impl Iterator<Item = &M> {
        let some = |mark| Some(mark).filter(|&mark| mark != NONE);
        let marks = iter::successors(some(node.marks), move |&mark| some(self.marks[mark].next));
        marks.map(|mark| &self.marks[mark].label)
    }

    /// Removes a mark and returns its label.
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
}
