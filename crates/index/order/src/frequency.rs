//! How often blocks were requested lately, and together with which others.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use crate::Block;

/// Decaying counts: a request `half_life` contexts ago counts half.
#[derive(Clone, Debug)]
pub struct Frequency {
    half_life: f64,
    /// Blocks kept at most.
    limit: usize,
    contexts: u64,
    counts: HashMap<Block, Count, RandomState>,
    /// The last contexts, the latest one first.
    recent: VecDeque<Vec<Block>>,
    /// Blocks in them.
    recent_blocks: usize,
}

/// The last contexts that are searched for blocks requested together, and the most blocks in them.
const RECENT: usize = 256;
const RECENT_BLOCKS: usize = 1 << 14;
/// How many blocks are chosen one by one. The others follow by their own frequency.
const CHOSEN: usize = 16;
/// The weight of a block's own frequency, relative to being requested together.
const ALONE: f64 = 0.1;

/// A bit for each of the last contexts.
type Contexts = [u64; RECENT / 64];

#[derive(Clone, Copy, Debug)]
struct Count {
    value: f64,
    /// The context at which the value was set.
    at: u64,
}

impl Count {
    /// What is left of it at a later context, or the same.
    fn at_context(&self, context: u64, half_life: f64) -> f64 {
        let age = (context - self.at) as f64;
        self.value * (-age / half_life).exp2()
    }
}

impl Frequency {
    /// Counts that halve every `half_life` contexts (at least one), for about `limit`
    /// blocks: beyond that, the rarest are forgotten.
    #[must_use]
    pub fn new(half_life: f64, limit: usize) -> Self {
        Self {
            half_life: half_life.max(1.0),
            limit: limit.max(1),
            contexts: 0,
            counts: HashMap::default(),
            recent: VecDeque::new(),
            recent_blocks: 0,
        }
    }

    /// A context was requested.
    pub fn note(&mut self, blocks: &[Block]) {
        self.contexts += 1;
        let at = self.contexts;
        for &block in blocks {
            let count = self.counts.entry(block).or_insert(Count { value: 0.0, at });
            let value = count.at_context(at, self.half_life) + 1.0;
            *count = Count { value, at };
        }
        if self.counts.len() > 2 * self.limit {
            self.forget();
        }
        self.recent.push_front(blocks.to_vec());
        self.recent_blocks += blocks.len();
        while self.recent.len() > RECENT || self.recent_blocks > RECENT_BLOCKS {
            let oldest = self.recent.pop_back();
            self.recent_blocks -= oldest.map_or(0, |oldest| oldest.len());
        }
    }

    /// Orders blocks by the likely next requests after `first`: the next block is always the one
    /// that was requested most often together with all before it. Ties keep their order, and
    /// so do blocks that were never requested.
    pub fn sort_after(&self, first: &[Block], blocks: &mut Vec<Block>) {
        let mut wanted: HashMap<Block, Contexts, RandomState> = HashMap::default();
        for block in first.iter().chain(&*blocks) {
            wanted.insert(*block, Contexts::default());
        }
        for (at, context) in self.recent.iter().enumerate() {
            for block in context {
                if let Some(contexts) = wanted.get_mut(block) {
                    contexts[at / 64] |= 1 << (at % 64);
                }
            }
        }
        let mut together: Contexts = [u64::MAX; RECENT / 64];
        for block in first {
            together = both(&together, &wanted[block]);
        }
        // By their own frequency, which decides ties. Stable. With their contexts: they are looked at many times.
        let mut rated: Vec<(f64, Block, Contexts)> = blocks
            .iter()
            .map(|block| (self.how_often(*block), *block, wanted[block]))
            .collect();
        rated.sort_by(|a, b| b.0.total_cmp(&a.0));
        let decay = self.decay();
        for place in 0..rated.len().min(CHOSEN) {
            if together.iter().all(|bits| *bits == 0) {
                break;
            }
            let worth = |(own, _, contexts): &(f64, Block, Contexts)| {
                weight(&both(&together, contexts), &decay) + ALONE * own
            };
            let mut best = (place, worth(&rated[place]));
            for (other, block) in rated.iter().enumerate().skip(place + 1) {
                let worth = worth(block);
                if worth > best.1 {
                    best = (other, worth);
                }
            }
            rated[place..=best.0].rotate_right(1);
            together = both(&together, &rated[place].2);
        }
        for (place, (_, block, _)) in rated.into_iter().enumerate() {
            blocks[place] = block;
        }
    }

    /// What each of the last contexts weighs: later ones weigh more.
    fn decay(&self) -> [f64; RECENT] {
        std::array::from_fn(|at| (-(at as f64) / self.half_life).exp2())
    }

    /// How often a block was requested lately; 0: never.
    #[must_use]
    pub fn how_often(&self, block: Block) -> f64 {
        let count = self.counts.get(&block);
        count.map_or(0.0, |count| count.at_context(self.contexts, self.half_life))
    }

    /// What [`Self::how_often`] says, on a scale that does not change as time goes by: of two blocks, the one with the
    /// lower rank was requested less often, now and later. The lowest: never.
    #[must_use]
    pub fn rank(&self, block: Block) -> f64 {
        self.counts.get(&block).map_or(f64::NEG_INFINITY, |count| {
            count.value.log2() + count.at as f64 / self.half_life
        })
    }

    /// A block no longer exists, and its number may be reused.
    pub fn drop_block(&mut self, block: Block) {
        self.counts.remove(&block);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.half_life, self.limit);
    }

    /// Keeps the more frequent half.
    fn forget(&mut self) {
        let mut values: Vec<(f64, Block)> = self
            .counts
            .keys()
            .map(|block| (self.how_often(*block), *block))
            .collect();
        values.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, block) in values.drain(self.limit..) {
            self.counts.remove(&block);
        }
    }
}

/// The weight of a set of contexts.
fn weight(contexts: &Contexts, decay: &[f64; RECENT]) -> f64 {
    let mut weight = 0.0;
    for (word, bits) in contexts.iter().enumerate() {
        let mut bits = *bits;
        while bits != 0 {
            weight += decay[word * 64 + bits.trailing_zeros() as usize];
            bits &= bits - 1;
        }
    }
    weight
}

fn both(a: &Contexts, b: &Contexts) -> Contexts {
    std::array::from_fn(|word| a[word] & b[word])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of two blocks after block 1: 2 was requested together with it, 3 with nothing, but more often.
    fn first_of_two(frequency: &Frequency) -> Block {
        let mut blocks = vec![3, 2];
        frequency.sort_after(&[1], &mut blocks);
        blocks[0]
    }

    #[test]
    fn what_was_requested_together_counts_while_later_contexts_have_few_blocks() {
        let mut frequency = Frequency::new(1e9, 1 << 20);
        frequency.note(&[1, 2]);
        (0..3).for_each(|_| frequency.note(&[3]));
        let held = 2 + 3;
        // All of these are as many as are kept, and one more.
        let many: Vec<Block> = (10..).take(RECENT_BLOCKS - held).collect();
        frequency.note(&many);
        assert_eq!((frequency.recent.len(), first_of_two(&frequency)), (5, 2));
        frequency.note(&[4]);
        assert_eq!(frequency.recent_blocks, RECENT_BLOCKS - 1);
        assert_eq!((frequency.recent.len(), first_of_two(&frequency)), (5, 3));
    }

    #[test]
    fn what_was_requested_together_counts_for_so_many_contexts() {
        let mut frequency = Frequency::new(1e9, 1 << 20);
        frequency.note(&[1, 2]);
        (0..3).for_each(|_| frequency.note(&[3]));
        (4..RECENT).for_each(|_| frequency.note(&[4]));
        assert_eq!(first_of_two(&frequency), 2);
        frequency.note(&[4]);
        assert_eq!(first_of_two(&frequency), 3);
    }
}
