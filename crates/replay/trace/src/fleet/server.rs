//! One server: its slots, its host cache, and a store of its own.

use std::collections::VecDeque;

use super::blocks::BlockStore;
use crate::tree::{Node, ROOT, Tree};

/// A slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The chain that it holds.
    end: Node,
    /// When its last answer is there: it is free then, and was used last.
    free: u64,
    /// The shared store has what it holds, or will have it.
    is_written: bool,
}

#[derive(Debug)]
pub(super) struct FleetServer {
    slots: Vec<Slot>,
    /// Chains, the oldest first, and whether the shared store has them.
    host: VecDeque<(Node, bool)>,
    host_blocks: u64,
    host_room: u64,
    pub(super) store: BlockStore,
    /// Until when prompts are evaluated that it has taken on.
    pub(super) evaluates_until: u64,
    pub(super) scratch: Vec<Node>,
}

/// A slot that was chosen for a request.
pub(super) struct Taken {
    pub(super) nth: usize,
    /// When it is free.
    pub(super) free: u64,
    /// Blocks of the prompt that it has, with what came from the host cache.
    pub(super) reused: u32,
    /// What it held and holds no more.
    pub(super) lost: Option<Node>,
    /// The shared store has that.
    pub(super) was_written: bool,
}

impl FleetServer {
    /// With so many slots, and so much room in the host cache and in the store, blocks.
    pub(super) fn new(slots: u32, host_room: u64, store_blocks: u64) -> Self {
        let empty = Slot {
            end: ROOT,
            free: 0,
            is_written: true,
        };
        Self {
            slots: vec![empty; slots.max(1) as usize],
            host: VecDeque::new(),
            host_blocks: 0,
            host_room,
            store: BlockStore::new(store_blocks),
            evaluates_until: 0,
            scratch: Vec::new(),
        }
    }

    /// When it can begin with another prompt.
    pub(super) fn ready(&self) -> u64 {
        let free = self.slots.iter().map(|slot| slot.free).min().unwrap_or(0);
        free.max(self.evaluates_until)
    }

    /// How many blocks of a path it has: in a slot, in host memory, or in a store of its own.
    pub(super) fn has(&self, tree: &Tree, path: &[Node]) -> u32 {
        self.remembers(tree, path).max(self.store.find(tree, path))
    }

    /// How many it has in a slot or in host memory.
    pub(super) fn remembers(&self, tree: &Tree, path: &[Node]) -> u32 {
        let slots = self.slots.iter().map(|slot| slot.end);
        let chains = slots.chain(self.host.iter().map(|(end, _)| *end));
        chains.map(|end| common(tree, end, path)).max().unwrap_or(0)
    }

    /// Chooses a slot. What it holds is exchanged for what the host cache has, if that serves the prompt better.
    pub(super) fn take_slot(
        &mut self,
        tree: &Tree,
        path: &[Node],
        now: u64,
        similarity: f64,
    ) -> Taken {
        let prompt = path.last().map_or(0, |end| tree.depth(*end));
        let (mut chosen, mut most) = (None, 0);
        for (nth, slot) in self.slots.iter().enumerate() {
            let shared = if slot.free <= now {
                common(tree, slot.end, path)
            } else {
                0
            };
            if shared > most && f64::from(shared) > similarity * f64::from(prompt) {
                (chosen, most) = (Some(nth), shared);
            }
        }
        // Empty ones first, then the one that is free, or will be, for longest.
        let by_use = || {
            let slots = self.slots.iter().enumerate();
            let oldest = slots.min_by_key(|(nth, slot)| {
                let is_empty = slot.end == ROOT && slot.free <= now;
                (!is_empty, slot.free, *nth)
            });
            oldest.map_or(0, |(nth, _)| nth)
        };
        let nth = chosen.unwrap_or_else(by_use);
        let slot = self.slots[nth];
        let held = tree.depth(slot.end);
        let mut taken = Taken {
            nth,
            free: slot.free,
            reused: common(tree, slot.end, path),
            lost: None,
            was_written: slot.is_written,
        };
        if taken.reused == held {
            return taken;
        }
        taken.lost = Some(slot.end);
        let is_exchanged = chosen.is_none() || 2 * taken.reused < held;
        if is_exchanged {
            self.save(tree, slot.end, slot.is_written);
            taken.reused = taken.reused.max(self.load(tree, path, taken.reused));
        }
        taken
    }

    /// The slot holds a chain from now on, and is busy with its answer.
    pub(super) fn fill_slot(
        &mut self,
        tree: &Tree,
        nth: usize,
        end: Node,
        free: u64,
        is_written: bool,
    ) {
        // What was written stays so if nothing new came.
        let was = self.slots[nth];
        let is_written = is_written || (was.is_written && was.end == end && end != ROOT);
        let is_written = is_written || tree.depth(end) == 0;
        self.slots[nth] = Slot {
            end,
            free,
            is_written,
        };
    }

    /// Puts a chain into the host cache. Its beginnings there leave.
    fn save(&mut self, tree: &Tree, end: Node, is_written: bool) {
        let blocks = |end: Node| u64::from(tree.depth(end));
        let room = self.host_room;
        if end == ROOT || blocks(end) > room {
            return;
        }
        if self.host.iter().any(|(held, _)| begins(tree, end, *held)) {
            return;
        }
        let mut gone = 0;
        self.host.retain(|(held, _)| {
            let stays = !begins(tree, *held, end);
            gone += if stays { 0 } else { blocks(*held) };
            stays
        });
        self.host_blocks = self.host_blocks - gone + blocks(end);
        self.host.push_back((end, is_written));
        while self.host_blocks > room {
            let Some((oldest, _)) = self.host.pop_front() else {
                break;
            };
            self.host_blocks -= blocks(oldest);
        }
    }

    /// Takes the chain out of the host cache that has most of a path, if that is more than `reused`.
    fn load(&mut self, tree: &Tree, path: &[Node], reused: u32) -> u32 {
        let chains = self.host.iter().enumerate();
        let shared = chains.map(|(nth, (end, _))| (common(tree, *end, path), nth, *end));
        // A quarter of it must serve, as the server has it.
        let served = shared.filter(|(shared, _, end)| 4 * *shared >= tree.depth(*end));
        let best = served.max_by_key(|(shared, nth, _)| (*shared, *nth));
        let Some((shared, nth, end)) = best.filter(|(shared, ..)| *shared > reused) else {
            return reused;
        };
        self.host.remove(nth);
        self.host_blocks -= u64::from(tree.depth(end));
        shared
    }
}

/// How many blocks a chain has in common with a path.
fn common(tree: &Tree, end: Node, path: &[Node]) -> u32 {
    let mut node = end;
    while node != ROOT {
        let depth = tree.depth(node);
        let nth = path.partition_point(|node| tree.depth(*node) < depth);
        if path.get(nth) == Some(&node) {
            return depth;
        }
        node = tree.parent(node);
    }
    0
}

/// Whether a chain is the beginning of another.
fn begins(tree: &Tree, short: Node, long: Node) -> bool {
    let depth = tree.depth(short);
    let mut node = long;
    while tree.depth(node) > depth {
        node = tree.parent(node);
    }
    node == short
}
