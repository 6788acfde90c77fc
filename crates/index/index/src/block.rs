//! Blocks. A document is called a block here, as in ContextPilot.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use contextpilot_order::{Block, Frequency};
use foldhash::fast::RandomState;
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
    pub(crate) fn from_value(value: &Value) -> Option<Self> {
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
    /// Where it stands among those that are in none.
    rank: u64,
    /// Its number of tokens, if the engine was asked.
    pub(crate) tokens: Option<u32>,
    /// Bytes of its text.
    pub(crate) bytes: u32,
}

/// All known blocks. An unused block is kept for its frequency, until the
/// room is needed.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    by_key: HashMap<Key, Block, RandomState>,
    /// By block: their numbers have no gaps but those of `free`, and a large context looks up thousands.
    infos: Vec<Option<Info>>,
    /// Those in no request and no turn, the rarest first.
    unused: BTreeSet<(u64, Block)>,
    free: Vec<Block>,
    seen: u64,
}

impl Blocks {
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn info(&self, block: Block) -> Option<&Info> {
        self.infos.get(block as usize)?.as_ref()
    }

    fn info_mut(&mut self, block: Block) -> Option<&mut Info> {
        self.infos.get_mut(block as usize)?.as_mut()
    }

    pub(crate) fn set_tokens(&mut self, block: Block, tokens: u32) {
        if let Some(info) = self.info_mut(block) {
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
        let block = self.free.pop().unwrap_or_else(|| {
            self.infos.push(None);
            (self.infos.len() - 1) as Block
        });
        let info = Info {
            key,
            number: self.seen,
            uses: 0,
            rank: 0,
            tokens: None,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        };
        self.seen += 1;
        self.by_key.insert(key, block);
        self.infos[block as usize] = Some(info);
        self.unused.insert((0, block));
        block
    }

    pub(crate) fn use_all(&mut self, blocks: &[Block]) {
        for &block in blocks {
            let Some(info) = self.info_mut(block) else {
                continue;
            };
            let (uses, rank) = (info.uses, info.rank);
            info.uses = uses.saturating_add(1);
            if uses == 0 {
                self.unused.remove(&(rank, block));
            }
        }
    }

    pub(crate) fn release_all(&mut self, blocks: &[Block], frequency: &Frequency) {
        for &block in blocks {
            let Some(info) = self.info_mut(block) else {
                continue;
            };
            info.uses = info.uses.saturating_sub(1);
            if info.uses == 0 {
                info.rank = ascending(frequency.rank(block));
                let rank = info.rank;
                self.unused.insert((rank, block));
            }
        }
    }

    /// Forgets the rarest of those in no request and no turn.
    pub(crate) fn forget_rarest(&mut self) -> Option<Block> {
        let (_, block) = self.unused.pop_first()?;
        let info = self.infos.get_mut(block as usize).and_then(Option::take);
        if let Some(info) = info {
            self.by_key.remove(&info.key);
        }
        self.free.push(block);
        Some(block)
    }
}

/// A number that is larger where the other one is.
fn ascending(rank: f64) -> u64 {
    let bits = rank.to_bits();
    if rank.is_sign_negative() {
        !bits
    } else {
        bits | 1 << 63
    }
}

#[cfg(test)]
mod tests {
    use super::ascending;

    #[test]
    fn ranks_are_in_the_order_of_their_numbers() {
        let ranks = [f64::NEG_INFINITY, -7.5, -0.1, 0.0, 1e-9, 3.0, f64::INFINITY];
        assert!(ranks.is_sorted_by_key(|rank| ascending(*rank)));
    }
}
