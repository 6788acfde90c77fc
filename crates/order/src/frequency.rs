//! How often blocks were asked for lately.

use std::collections::HashMap;

use crate::Block;

/// Counts that fade: what was asked for `half_life` contexts ago counts half.
#[derive(Clone, Debug)]
pub struct Frequency {
    half_life: f64,
    /// Blocks kept at most.
    limit: usize,
    contexts: u64,
    counts: HashMap<Block, Count>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    value: f64,
    /// Of which context the value is.
    at: u64,
}

impl Frequency {
    /// Counts whose values halve every `half_life` contexts (at least one), of about `limit`
    /// blocks: beyond that, the rarest are forgotten.
    #[must_use]
    pub fn new(half_life: f64, limit: usize) -> Self {
        Self {
            half_life: half_life.max(1.0),
            limit: limit.max(1),
            contexts: 0,
            counts: HashMap::new(),
        }
    }

    /// A context was asked for.
    pub fn note(&mut self, blocks: &[Block]) {
        self.contexts += 1;
        for &block in blocks {
            let value = self.of(block);
            let at = self.contexts;
            self.counts.insert(
                block,
                Count {
                    value: value + 1.0,
                    at,
                },
            );
        }
        if self.counts.len() > 2 * self.limit {
            self.forget();
        }
    }

    /// How often a block was asked for lately; 0: not at all.
    #[must_use]
    pub fn of(&self, block: Block) -> f64 {
        self.counts.get(&block).map_or(0.0, |count| {
            let age = (self.contexts - count.at) as f64;
            count.value * (-age / self.half_life).exp2()
        })
    }

    /// A block does not exist any more: its number may come to mean another one.
    pub fn drop_block(&mut self, block: Block) {
        self.counts.remove(&block);
    }

    /// Nothing was ever asked for.
    pub fn clear(&mut self) {
        self.contexts = 0;
        self.counts = HashMap::new();
    }

    /// Keeps the more frequent half.
    fn forget(&mut self) {
        let mut values: Vec<(f64, Block)> = self
            .counts
            .keys()
            .map(|block| (self.of(*block), *block))
            .collect();
        values.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, block) in values.drain(self.limit..) {
            self.counts.remove(&block);
        }
    }
}
