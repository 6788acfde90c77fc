//! Holders: each stands at a depth and keeps every token above it.

use super::*;

impl<M> Tree<M> {
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

    /// How many of the tokens above a holder are unchanged since the last call of this: the least
    /// depth at which the holder has stood since. 0 at the first call.
    pub(crate) fn take_lowest(&mut self, holder: Holder) -> u32 {
        let stand = &mut self.holders[holder.0];
        std::mem::replace(&mut stand.lowest, stand.depth)
    }

    /// Removes a holder. The labels of the marks that only this holder kept go to `lost`.
    pub(crate) fn release(&mut self, holder: Holder, lost: &mut Vec<M>) {
        let node = self.leave(holder.0);
        self.holders.remove(holder.0);
        self.prune(node, lost);
    }

    /// Moves a holder up to `depth`. Does nothing if it stands at this depth or above it.
    pub(crate) fn retreat(&mut self, holder: Holder, depth: u32, lost: &mut Vec<M>) {
        let stand = &self.holders[holder.0];
        if depth >= stand.depth {
            return;
        }
        let left = stand.node;
        // A slot is often emptied completely: then there is no need to climb.
        let mut node = if depth == 0 { ROOT } else { left };
        while node != ROOT && self.start(node) >= depth {
            node = self.nodes[node].parent;
        }
        self.relocate(holder.0, node, depth);
        let stand = &mut self.holders[holder.0];
        stand.lowest = stand.lowest.min(depth);
        // The holder already stands at its new place, so that place is not pruned.
        self.prune(left, lost);
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
}
