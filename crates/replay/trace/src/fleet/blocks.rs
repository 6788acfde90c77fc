//! The blocks of a prefix store, of which there may be a thousand.

use std::collections::BTreeSet;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::tree::{Node, ROOT, Tree};

/// What is there of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    /// Blocks, from its first on.
    there: u32,
    children: u32,
    used: u64,
    /// When the last of its blocks came.
    came: u64,
}

/// A store: what was used longest ago leaves, and no block before those behind it.
#[derive(Debug)]
pub(super) struct BlockStore {
    room: u64,
    taken: u64,
    items: HashMap<Node, Item, FixedState>,
    leaves: BTreeSet<(u64, Node)>,
}

impl BlockStore {
    /// `room`: blocks.
    pub(super) fn new(room: u64) -> Self {
        Self {
            room,
            taken: 0,
            items: HashMap::with_hasher(FixedState::with_seed(0)),
            leaves: BTreeSet::new(),
        }
    }

    /// How many blocks of a path are there.
    pub(super) fn find(&self, tree: &Tree, path: &[Node]) -> u32 {
        self.find_of(tree, path, u64::MAX)
    }

    /// The same, of what had come at a time.
    pub(super) fn find_of(&self, tree: &Tree, path: &[Node], time: u64) -> u32 {
        let mut found = 0;
        for node in path {
            let item = self.items.get(node).filter(|item| item.came <= time);
            let there = item.map_or(0, |item| item.there);
            found += there;
            if there < tree.length(*node) {
                break;
            }
        }
        found
    }

    /// A path is used.
    pub(super) fn touch(&mut self, path: &[Node], now: u64) {
        for node in path {
            let Some(item) = self.items.get_mut(node) else {
                return;
            };
            let was = item.used;
            item.used = now.max(was);
            if self.leaves.remove(&(was, *node)) {
                self.leaves.insert((item.used, *node));
            }
        }
    }

    /// A path is there from now on, as far as there is room. Returns how many blocks came.
    pub(super) fn insert(&mut self, tree: &Tree, path: &[Node], now: u64) -> u64 {
        self.touch(path, now);
        let mut come = 0;
        for node in path {
            let there = self.items.get(node).map_or(0, |item| item.there);
            let missing = tree.length(*node) - there;
            if missing == 0 {
                continue;
            }
            self.make_room(tree, u64::from(missing), path);
            let blocks = u64::from(missing).min(self.room - self.taken) as u32;
            if blocks > 0 {
                let item = self.items.entry(*node).or_default();
                item.there += blocks;
                item.used = now;
                item.came = now;
                self.taken += u64::from(blocks);
                come += u64::from(blocks);
                let parent = tree.parent(*node);
                if there == 0 {
                    self.leaves.insert((now, *node));
                    if let Some(above) = self.items.get_mut(&parent).filter(|_| parent != ROOT) {
                        above.children += 1;
                        self.leaves.remove(&(above.used, parent));
                    }
                }
            }
            if blocks < missing {
                break;
            }
        }
        come
    }

    /// Lets what was used longest ago go, but for what is on a path.
    fn make_room(&mut self, tree: &Tree, blocks: u64, path: &[Node]) {
        while self.room - self.taken < blocks {
            let leaves = self.leaves.iter().copied();
            let mut free = leaves.filter(|(_, node)| !path.contains(node));
            let Some((used, node)) = free.next() else {
                return;
            };
            let Some(item) = self.items.get_mut(&node) else {
                self.leaves.remove(&(used, node));
                continue;
            };
            let gone = (blocks - (self.room - self.taken)).min(u64::from(item.there));
            item.there -= gone as u32;
            self.taken -= gone;
            if item.there > 0 {
                continue;
            }
            self.items.remove(&node);
            self.leaves.remove(&(used, node));
            let parent = tree.parent(node);
            if let Some(above) = self.items.get_mut(&parent) {
                above.children -= 1;
                if above.children == 0 {
                    self.leaves.insert((above.used, parent));
                }
            }
        }
    }
}
