//! Blocks. A document is called a block here, as in ContextPilot.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use contextpilot_order::{Block, Frequency};
use serde_json::Value;

/// Decides whether two documents are equal. Text is identified by a hash of 128 bits. Two texts with the
/// same hash would count as equal when an order is chosen, but each would be returned unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Text(u64, u64),
    Integer(i64),
    /// Beyond `i64`.
    Large(u64),
    /// Bits of a number that is not an integer.
    Float(u64),
    Bool(bool),
}

impl Key {
    /// `None` for a value that is not a scalar.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::String(text) => {
                let half = |salt: u8| {
                    let mut hasher = DefaultHasher::new();
                    salt.hash(&mut hasher);
                    text.hash(&mut hasher);
                    hasher.finish()
                };
                Self::Text(half(1), half(2))
            }
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(integer), _, _) => Self::Integer(integer),
                (_, Some(large), _) => Self::Large(large),
                (_, _, Some(float)) if is_integer(float) => Self::Integer(float as i64),
                (_, _, float) => Self::Float(float?.to_bits()),
            },
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        })
    }

    /// By value, for those that have one; text keeps its order.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        match (self.number(), other.number()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => a.is_none().cmp(&b.is_none()),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Text(..) => None,
            Self::Integer(integer) => Some(*integer as f64),
            Self::Large(large) => Some(*large as f64),
            Self::Float(bits) => Some(f64::from_bits(*bits)),
            Self::Bool(value) => Some(f64::from(u8::from(*value))),
        }
    }
}

fn is_integer(float: f64) -> bool {
    // Beyond 2^53 not every integer is a float.
    float.fract() == 0.0 && float.abs() < 9e15
}

/// A known block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    key: Key,
    /// Its number among all blocks ever seen. Hints use it as the name of a text.
    pub(crate) number: u64,
    /// How many requests and turns contain it.
    uses: u32,
    /// Its number of tokens, if the engine was asked.
    pub(crate) tokens: Option<u32>,
    /// Bytes of its text.
    pub(crate) bytes: u32,
}

/// All known blocks. An unused block is kept for its frequency, until the
/// room is needed.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    by_key: HashMap<Key, Block>,
    infos: HashMap<Block, Info>,
    free: Vec<Block>,
    seen: u64,
}

impl Blocks {
    pub(crate) fn len(&self) -> usize {
        self.infos.len()
    }

    pub(crate) fn info(&self, block: Block) -> Option<&Info> {
        self.infos.get(&block)
    }

    pub(crate) fn set_tokens(&mut self, block: Block, tokens: u32) {
        if let Some(info) = self.infos.get_mut(&block) {
            info.tokens = Some(tokens);
        }
    }

    /// The block with this key, if it is known.
    pub(crate) fn known(&self, key: Key) -> Option<Block> {
        self.by_key.get(&key).copied()
    }

    /// The block with this key. Creates it if there is none.
    pub(crate) fn block(&mut self, key: Key, bytes: usize) -> Block {
        if let Some(block) = self.by_key.get(&key) {
            return *block;
        }
        let block = self.free.pop().unwrap_or(self.infos.len() as Block);
        let info = Info {
            key,
            number: self.seen,
            uses: 0,
            tokens: None,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        };
        self.seen += 1;
        self.by_key.insert(key, block);
        self.infos.insert(block, info);
        block
    }

    pub(crate) fn use_all(&mut self, blocks: &[Block]) {
        for block in blocks {
            if let Some(info) = self.infos.get_mut(block) {
                info.uses = info.uses.saturating_add(1);
            }
        }
    }

    pub(crate) fn release_all(&mut self, blocks: &[Block]) {
        for block in blocks {
            if let Some(info) = self.infos.get_mut(block) {
                info.uses = info.uses.saturating_sub(1);
            }
        }
    }

    /// Forgets the rarest unused blocks, until there is room for `more`. Returns whether
    /// there is.
    pub(crate) fn make_room(
        &mut self,
        more: usize,
        limit: usize,
        frequency: &mut Frequency,
    ) -> bool {
        if self.infos.len() + more <= limit {
            return true;
        }
        let mut unused: Vec<(f64, Block)> = self
            .infos
            .iter()
            .filter(|(_, info)| info.uses == 0)
            .map(|(block, _)| (frequency.of(*block), *block))
            .collect();
        unused.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        // Forget more than is needed now, so that this is done seldom.
        let wanted = (self.infos.len() + more - limit).max(limit / 8);
        for (_, block) in unused.into_iter().take(wanted) {
            if let Some(info) = self.infos.remove(&block) {
                self.by_key.remove(&info.key);
                self.free.push(block);
                frequency.drop_block(block);
            }
        }
        self.infos.len() + more <= limit
    }
}
