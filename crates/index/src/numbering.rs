//! Numbers for the blocks of one call, and where they went.

use std::collections::{HashMap, VecDeque};

use contextpilot_order::Block;
use serde_json::Value;

use crate::block::Key;
use crate::query::Context;

/// Numbers by which a tree is ordered: as texts appear; numbers by their value.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// The blocks of each context.
    pub(crate) contexts: Vec<Vec<Block>>,
    /// What each number stands for.
    pub(crate) keys: Vec<Key>,
}

impl Numbers {
    pub(crate) fn of(contexts: &[Context]) -> Self {
        let mut keys: Vec<Key> = Vec::new();
        let mut numbers: HashMap<Key, Block> = HashMap::new();
        for key in contexts.iter().flat_map(|context| &context.keys) {
            numbers.entry(*key).or_insert_with(|| {
                keys.push(*key);
                0
            });
        }
        if !are_texts(contexts) {
            keys.sort_by(Key::compare);
        }
        for (number, key) in keys.iter().enumerate() {
            numbers.insert(*key, number as Block);
        }
        let of = |context: &Context| context.keys.iter().map(|key| numbers[key]).collect();
        Self {
            contexts: contexts.iter().map(of).collect(),
            keys,
        }
    }
}

/// As the Python index judges, by the first block.
pub(crate) fn are_texts(contexts: &[Context]) -> bool {
    let first = contexts.first().and_then(|context| context.values.first());
    first.is_some_and(Value::is_string)
}

/// Where each block of the second stands in the first, the first of equal ones first.
pub(crate) fn places(before: &[Block], after: &[Block]) -> Vec<usize> {
    let mut at: HashMap<Block, VecDeque<usize>> = HashMap::with_capacity(before.len());
    for (place, block) in before.iter().enumerate() {
        at.entry(*block).or_default().push_back(place);
    }
    let place = |block: &Block| at.get_mut(block).and_then(VecDeque::pop_front);
    after.iter().filter_map(place).collect()
}
