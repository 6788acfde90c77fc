//! Conversations: what was in earlier turns.

use std::collections::{BTreeMap, HashMap};

use contextpilot_order::Block;

/// A parent with a longer id, in bytes, is not remembered: no request here has one, and a client could fill the memory.
const LONGEST: usize = 128;
/// How many earlier turns are searched, and how many blocks in these.
const CHAIN: usize = 1000;
const CHAIN_BLOCKS: usize = 1 << 14;

#[derive(Debug)]
pub(crate) struct Turn {
    number: u64,
    parent: Option<String>,
    pub(crate) blocks: Vec<Block>,
}

/// All turns, by the ids of their requests.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    by_id: HashMap<String, Turn>,
    ids: BTreeMap<u64, String>,
    next: u64,
    /// In all of them.
    blocks: usize,
}

impl Turns {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// How many blocks all of them have.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// A turn and those before it, the earliest first.
    pub(crate) fn chain<'a>(&'a self, id: &'a str) -> Vec<(&'a str, &'a Turn)> {
        let mut chain = Vec::new();
        let mut blocks = 0;
        let mut next = Some(id);
        while let Some(id) = next.filter(|_| chain.len() < CHAIN && blocks < CHAIN_BLOCKS) {
            let Some(turn) = self.by_id.get(id) else {
                break;
            };
            chain.push((id, turn));
            blocks += turn.blocks.len();
            next = turn.parent.as_deref();
        }
        chain.reverse();
        chain
    }

    pub(crate) fn add(&mut self, id: &str, parent: Option<String>, blocks: Vec<Block>) {
        let number = self.next;
        self.next += 1;
        self.blocks += blocks.len();
        let parent = parent.filter(|parent| parent.len() <= LONGEST);
        self.ids.insert(number, id.to_owned());
        let turn = Turn {
            number,
            parent,
            blocks,
        };
        self.by_id.insert(id.to_owned(), turn);
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<Turn> {
        let turn = self.by_id.remove(id)?;
        self.ids.remove(&turn.number);
        self.blocks -= turn.blocks.len();
        Some(turn)
    }

    pub(crate) fn oldest(&self) -> Option<String> {
        self.ids.values().next().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endless_id_of_a_parent_is_not_kept() {
        let mut turns = Turns::default();
        turns.add("a", Some("x".repeat(1 << 20)), Vec::new());
        turns.add("b", Some("a".to_owned()), Vec::new());
        assert_eq!(turns.by_id["a"].parent, None);
        assert_eq!(turns.chain("b").len(), 2);
    }
}
