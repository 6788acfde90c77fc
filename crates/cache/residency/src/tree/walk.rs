//! Moves a holder down, along tokens that the tree has already and tokens that are new. Reads the
//! tokens above a holder.

use super::*;

impl<M> Tree<M> {
    /// Moves a holder down along `tokens` as far as the tree has them. Returns how many that were.
    ///
    /// With `towards`, the walk also ends where it would leave the path to that holder, and at that
    /// holder.
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
                // Nearly every generated token ends here: nothing needs to be hashed for it.
                if here.first_child == NONE {
                    return walked;
                }
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

    /// Moves a holder down along all of `tokens`, and adds those that the tree does not have.
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

    /// The last token of those that a holder keeps.
    pub(crate) fn last(&self, holder: Holder) -> Option<Token> {
        let Stand { node, depth, .. } = self.holders[holder.0];
        let node = &self.nodes[node];
        let below = (node.depth - depth) as usize;
        node.tokens.iter().rev().nth(below).copied()
    }

    /// The tokens that a holder keeps, from depth `from` on.
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

    /// How many of `tokens` a holder keeps, one after the other, from depth `from` on.
    pub(crate) fn agreeing(&self, holder: Holder, from: u32, tokens: &[Token]) -> u32 {
        let Stand {
            mut node, depth, ..
        } = self.holders[holder.0];
        let end = depth.min(from + tokens.len() as u32);
        let mut agreed = end.saturating_sub(from);
        while self.nodes[node].depth > from {
            let start = self.start(node);
            let (low, high) = (start.max(from), self.nodes[node].depth.min(end));
            if low < high {
                let run = &self.nodes[node].tokens[(low - start) as usize..(high - start) as usize];
                let wanted = &tokens[(low - from) as usize..(high - from) as usize];
                let same = run.iter().zip(wanted).take_while(|(a, b)| a == b).count() as u32;
                if same < high - low {
                    agreed = low - from + same;
                }
            }
            node = self.nodes[node].parent;
        }
        agreed
    }

    /// How many tokens a node's run, from its index `from` on, has in common with `tokens`: at most
    /// `limit`.
    fn agree(&self, node: Key, from: usize, tokens: &[Token], limit: u32) -> usize {
        self.nodes[node].tokens[from..]
            .iter()
            .zip(tokens)
            .take(limit as usize)
            .take_while(|(ours, theirs)| ours == theirs)
            .count()
    }
}
