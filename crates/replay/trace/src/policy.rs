//! Caches whose eviction knows only the past.
//!
//! A block leaves only when no block behind it is there. Of those that may leave, a policy says which one.

use std::collections::BTreeSet;
use std::fmt;

use crate::curve::{Reuse, scaled};
use crate::trace::Trace;
use crate::tree::{Node, ROOT};

/// Which block leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The one that was used longest ago.
    Lru,
    /// The one that was used least often; of several, longest ago.
    Lfu,
    /// As with ARC (Megiddo and Modha 2003): what was used once and what was used more often are two parts, each by last use.
    /// Their sizes follow what is missed: of which part it had been thrown out.
    Arc,
    /// As the prefix store does it (`crates/store/kv-store`): by last use, in chunks of up to 256 tokens that leave as a whole.
    Store,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::Arc, Self::Store];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Arc => "arc",
            Self::Store => "store",
        })
    }
}

/// Tokens of a chunk of the store, at most; it ends at a multiple of them.
const CHUNK: u32 = 256;

/// What a node's blocks are in a cache.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// How many are there, from the first on.
    there: u32,
    /// The request that used them last.
    used: u32,
    /// Uses since the first of them came.
    uses: u32,
    /// How many children have blocks here.
    children: u32,
    /// With [`Policy::Arc`]: how many were thrown out, and of which part.
    gone: u32,
    gone_of: bool,
}

/// A cache.
struct Cache<'a> {
    trace: &'a Trace,
    policy: Policy,
    room: u64,
    taken: u64,
    states: Vec<State>,
    /// What may leave, by rank: the part, uses where they count, the last use.
    leaves: [BTreeSet<(u32, u32, Node)>; 2],
    /// With [`Policy::Arc`]: blocks of what was used once, and how many there shall be.
    once: u64,
    wanted: u64,
}

/// What a cache with room for so many blocks reuses. The first `warm_up` requests are not counted.
#[must_use]
pub fn play(trace: &Trace, policy: Policy, room: u64, warm_up: usize) -> Reuse {
    let mut cache = Cache {
        trace,
        policy,
        room: scaled(room, trace.rate),
        taken: 0,
        states: vec![State::default(); trace.tree.len()],
        leaves: [BTreeSet::new(), BTreeSet::new()],
        once: 0,
        wanted: 0,
    };
    let mut reuse = Reuse::default();
    let mut path = Vec::new();
    for (number, request) in trace.requests.iter().enumerate() {
        trace.tree.path(request.end, &mut path);
        let found = cache.request(number as u32, &path);
        if number >= warm_up {
            let all = trace.tree.depth(request.end);
            reuse.request(trace.counted(request), all);
            reuse.reuse(trace.tokens(request, found), found);
        }
    }
    trace.adjust(&mut reuse, warm_up);
    reuse
}

impl Cache<'_> {
    /// A request uses these nodes. Returns how many of its blocks are there.
    fn request(&mut self, number: u32, path: &[Node]) -> u32 {
        let tree = &self.trace.tree;
        let mut found = 0;
        let mut whole = path.len();
        for (nth, node) in path.iter().enumerate() {
            let there = self.states[*node as usize].there;
            found += there;
            if there < tree.length(*node) {
                whole = nth;
                break;
            }
        }
        if self.policy == Policy::Arc {
            path[whole..].iter().for_each(|node| self.missed(*node));
        }
        for node in path {
            self.touch(*node, number);
        }
        for node in &path[whole..] {
            let missing = tree.length(*node) - self.states[*node as usize].there;
            self.make_room(u64::from(missing), number);
            let come = u64::from(missing).min(self.room - self.taken) as u32;
            self.add(*node, come);
            if come < missing {
                break;
            }
        }
        found
    }

    /// Which part a node belongs to.
    fn part(&self, node: Node) -> usize {
        usize::from(self.policy == Policy::Arc && self.states[node as usize].uses > 1)
    }

    fn rank(&self, node: Node) -> (u32, u32, Node) {
        let state = &self.states[node as usize];
        match self.policy {
            Policy::Lfu => (state.uses, state.used, node),
            _ => (0, state.used, node),
        }
    }

    /// Whether a node is one of what may leave.
    fn is_leaf(&self, node: Node) -> bool {
        let state = &self.states[node as usize];
        node != ROOT && state.there > 0 && state.children == 0
    }

    /// Changes a node's state, and where it stands among the leaves.
    fn change(&mut self, node: Node, change: impl FnOnce(&mut State)) {
        if self.is_leaf(node) {
            let rank = self.rank(node);
            let part = self.part(node);
            self.leaves[part].remove(&rank);
        }
        let part = self.part(node);
        self.once -= u64::from(self.states[node as usize].there) * u64::from(part == 0);
        change(&mut self.states[node as usize]);
        let part = self.part(node);
        self.once += u64::from(self.states[node as usize].there) * u64::from(part == 0);
        if self.is_leaf(node) {
            let rank = self.rank(node);
            self.leaves[part].insert(rank);
        }
    }

    fn touch(&mut self, node: Node, number: u32) {
        self.change(node, |state| {
            // What was thrown out not long ago has been used before.
            let is_new = state.there == 0 && state.gone == 0;
            state.uses = if is_new { 1 } else { state.uses + 1 };
            state.used = number;
        });
    }

    fn add(&mut self, node: Node, blocks: u32) {
        if blocks == 0 {
            return;
        }
        let was_there = self.states[node as usize].there > 0;
        self.taken += u64::from(blocks);
        self.change(node, |state| {
            state.there += blocks;
            state.gone = 0;
        });
        if !was_there {
            let parent = self.trace.tree.parent(node);
            self.change(parent, |state| state.children += 1);
        }
    }

    /// Lets others go until there is room for so many blocks, or none may leave. What this request uses stays.
    fn make_room(&mut self, blocks: u64, number: u32) {
        while self.room - self.taken < blocks {
            let first = |part: usize| {
                let leaves = self.leaves[part].iter().map(|(_, _, node)| *node);
                let mut free = leaves.filter(|node| self.states[*node as usize].used != number);
                free.next()
            };
            let order = if self.once > self.wanted {
                [0, 1]
            } else {
                [1, 0]
            };
            let Some(node) = order.into_iter().find_map(first) else {
                return;
            };
            let there = self.states[node as usize].there;
            let wanted = (blocks - (self.room - self.taken)).min(u64::from(there)) as u32;
            let go = match self.policy {
                Policy::Store => self.whole_chunks(node, wanted),
                _ => wanted,
            };
            let part = self.part(node) == 1;
            self.taken -= u64::from(go);
            self.change(node, |state| {
                state.there -= go;
                (state.gone, state.gone_of) = (state.gone.saturating_add(go), part);
            });
            if go == there {
                let parent = self.trace.tree.parent(node);
                self.change(parent, |state| state.children -= 1);
            }
        }
    }

    /// How many blocks leave if so many must: those of whole chunks.
    fn whole_chunks(&self, node: Node, wanted: u32) -> u32 {
        let there = self.states[node as usize].there;
        let per_chunk = CHUNK / self.trace.block;
        if per_chunk < 2 {
            return wanted;
        }
        let before = self.trace.tree.depth(node) - self.trace.tree.length(node);
        let rest = before + there - wanted;
        (there - (rest / per_chunk * per_chunk).saturating_sub(before)).max(wanted)
    }

    /// With [`Policy::Arc`]: what is missed had been thrown out, so its part shall be larger.
    fn missed(&mut self, node: Node) {
        let state = self.states[node as usize];
        let blocks = u64::from(state.gone);
        // What has left longer ago than all that could be there since is forgotten.
        if blocks == 0 {
            return;
        }
        self.wanted = if state.gone_of {
            self.wanted.saturating_sub(blocks)
        } else {
            (self.wanted + blocks).min(self.room)
        };
    }
}
