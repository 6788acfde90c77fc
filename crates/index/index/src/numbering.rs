//! Numbers for the blocks of one call, and their new positions.

use std::collections::{HashMap, VecDeque};

use contextpilot_order::Block;
use foldhash::fast::RandomState;
use serde_json::Value;

use crate::block::Key;
use crate::context::Context;

/// Numbers by which a tree is ordered: as texts appear; numbers by their value.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The blocks of each context.
    pub(crate) contexts: Vec<Vec<Block>>,
    /// What each number stands for.
    pub(crate) keys: Vec<Key>,
    /// The weight of each number: the bytes of its text, which are about proportional to its tokens; 1 for an id.
    pub(crate) weights: Vec<u64>,
}

impl Numbers {
    pub(crate) fn new(contexts: &[Context]) -> Self {
        let mut keys: Vec<Key> = Vec::new();
        let mut numbers: HashMap<Key, Block, RandomState> = HashMap::default();
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
        let mut weights = vec![1; keys.len()];
        for context in contexts {
            for (key, value) in context.keys.iter().zip(&context.values) {
                let bytes = value.as_str().map_or(1, str::len);
                weights[numbers[key] as usize] = bytes as u64;
            }
        }
        Self {
            contexts: contexts.iter().map(of).collect(),
            keys,
            weights,
        }
    }

    /// The weight of a block of the call.
    pub(crate) fn weight(&self, block: Block) -> u64 {
        self.weights.get(block as usize).copied().unwrap_or(1)
    }
}

/// Decided by the first block, as the Python index does.
pub(crate) fn are_texts(contexts: &[Context]) -> bool {
    let first = contexts.first().and_then(|context| context.values.first());
    first.is_some_and(Value::is_string)
}

/// The position in the first list of each block of the second. Equal blocks are taken in order.
pub(crate) fn places(before: &[Block], after: &[Block]) -> Vec<usize> {
    let mut at: HashMap<Block, VecDeque<usize>, RandomState> = HashMap::default();
    at.reserve(before.len());
    for (place, block) in before.iter().enumerate() {
        at.entry(*block).or_default().push_back(place);
    }
    let place = |block: &Block| at.get_mut(block).and_then(VecDeque::pop_front);
    after.iter().filter_map(place).collect()
}
