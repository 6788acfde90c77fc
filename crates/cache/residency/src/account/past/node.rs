//! The nodes of the tree: how they grow, are split, and are forgotten.

use super::*;

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

impl Past {
    pub(super) fn touch(&mut self, node: Key, nth: Nth) {
        let here = &mut self.nodes[node];
        if here.children == 0 {
            self.leaves.remove(&(here.latest, node));
            self.leaves.insert((nth, node));
        }
        here.latest = nth;
        here.first = here.first.min(nth);
        // A slot holds this run now. A prompt that is evaluated at the same time may still find it lost.
        if let Some(lost) = &mut here.lost {
            lost.until.get_or_insert(self.now);
        }
    }

    /// Appends tokens to a node's run, or adds a child with them. Not all of them may fit. Returns the
    /// node that has the first of them.
    pub(super) fn append(&mut self, at: Key, tokens: &[Token], nth: Nth) -> Key {
        let here = &mut self.nodes[at];
        let room = RUN - here.tokens.len();
        let is_alike = here.lost.is_none() && here.first == nth && here.since == self.now;
        if at != ROOT && here.children == 0 && is_alike && room > 0 {
            let added = &tokens[..room.min(tokens.len())];
            self.bytes -= here.bytes();
            let length = here.tokens.len() + added.len();
            if length > here.tokens.capacity() {
                let capacity = length.next_power_of_two().min(RUN).max(length);
                here.tokens.reserve_exact(capacity - here.tokens.len());
            }
            here.tokens.extend_from_slice(added);
            self.bytes += here.bytes();
            return at;
        }
        self.serial += 1;
        let node = Node {
            serial: self.serial,
            parent: at,
            next: NONE,
            children: 0,
            start: here.end(),
            tokens: tokens[..RUN.min(tokens.len())].to_vec(),
            latest: nth,
            first: nth,
            since: self.now,
            before: here.before.after(&here.tokens),
            lost: None,
        };
        here.children += 1;
        if here.children == 1 {
            let latest = here.latest;
            self.leaves.remove(&(latest, at));
        }
        self.bytes += node.bytes();
        let key = self.nodes.insert(node);
        self.edges.insert((at, tokens[0]), key);
        self.leaves.insert((nth, key));
        key
    }

    /// Splits a node's run after `length` tokens. Returns the upper part, a new node; the lower part
    /// keeps its key. Does nothing if the run is not longer than that.
    pub(super) fn split(&mut self, node: Key, length: usize) -> Key {
        let lower = &mut self.nodes[node];
        if length >= lower.tokens.len() {
            return node;
        }
        self.bytes -= lower.bytes();
        let tokens: Vec<Token> = lower.tokens.drain(..length).collect();
        lower.tokens.shrink_to_fit();
        self.serial += 1;
        let upper = Node {
            serial: self.serial,
            parent: lower.parent,
            next: node,
            children: 1,
            start: lower.start,
            latest: lower.latest,
            first: lower.first,
            since: lower.since,
            before: lower.before,
            lost: lower.lost,
            tokens,
        };
        lower.start += length as u32;
        lower.before = upper.before.after(&upper.tokens);
        self.bytes += lower.bytes() + upper.bytes();
        let (parent, first, second) = (upper.parent, upper.tokens[0], lower.tokens[0]);
        let key = self.nodes.insert(upper);
        self.nodes[node].parent = key;
        self.edges.insert((parent, first), key);
        self.edges.insert((key, second), node);
        if self.nodes[parent].next == node {
            self.nodes[parent].next = key;
        }
        key
    }

    /// Forgets the least recently used runs until the rest fits in the limit.
    pub(super) fn shrink(&mut self) {
        while self.bytes > self.limit {
            let Some((_, key)) = self.leaves.pop_first() else {
                return;
            };
            let node = self.nodes.remove(key);
            self.bytes -= node.bytes();
            self.edges.remove(&(node.parent, node.tokens[0]));
            self.forgotten.note(node.before, &node.tokens);
            let parent = &mut self.nodes[node.parent];
            parent.children -= 1;
            if parent.next == key {
                parent.next = NONE;
            }
            if parent.children == 0 && node.parent != ROOT {
                self.leaves.insert((parent.latest, node.parent));
            }
        }
    }
}
