//! What is cached, in the engine and below it.

use std::collections::HashMap;

use crate::cached::weight_of;
use crate::{Beginning, Block, Cached};

/// Cached prefixes, by where they are.
#[derive(Clone, Copy, Debug)]
pub struct Tiers<'a> {
    engine: &'a Cached,
    store: Option<[&'a Cached; 2]>,
}

impl<'a> From<&'a Cached> for Tiers<'a> {
    /// Only the engine has any.
    fn from(engine: &'a Cached) -> Self {
        Self {
            engine,
            store: None,
        }
    }
}

impl<'a> Tiers<'a> {
    /// There is also a store, from which prefixes are loaded into the engine. Then a prefix that the engine holds can
    /// be used however short it is: the store takes it from wherever it is. `kept` is what leaves the store last, `others` all
    /// else that it has.
    #[must_use]
    pub fn with_store(engine: &'a Cached, kept: &'a Cached, others: &'a Cached) -> Self {
        Self {
            engine,
            store: Some([kept, others]),
        }
    }

    /// Where prefixes are equal, the first that has them counts.
    fn all(&self) -> impl Iterator<Item = &'a Cached> {
        std::iter::once(self.engine).chain(self.store.into_iter().flatten())
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all().all(|tier| tier.prompts() == 0)
    }

    /// The least weight of a prefix of these blocks that can be used. Without a store that is a tenth of the prompt, for
    /// which llama-server chooses a slot (`--slot-prompt-similarity`).
    #[must_use]
    pub fn least(&self, blocks: &[Block], weight: impl Fn(Block) -> u64) -> u64 {
        match self.store {
            Some(_) => 0,
            None => weight_of(blocks, weight) / 10,
        }
    }

    /// How many of these blocks, in this order, are a cached prefix that can be used, and a prompt that has it. Of
    /// tiers with as many, the engine's, then what is kept. `least`: prefixes of less weight cannot be used.
    #[must_use]
    pub fn beginning_of(
        &self,
        blocks: &[Block],
        weight: impl Fn(Block) -> u64,
        least: u64,
    ) -> (usize, Option<u64>) {
        let all = self.all();
        longest(all.map(|tier| tier.beginning_of(blocks, &weight, least)))
    }

    /// How many of these blocks, in this order, are a cached prefix, whether it can be used or not, and a prompt that
    /// has it.
    #[must_use]
    pub fn longest(&self, blocks: &[Block]) -> (usize, Option<u64>) {
        longest(self.all().map(|tier| tier.longest(blocks)))
    }

    /// The cached prefix with the greatest weight that can be made of these blocks, after `first`: see
    /// [`Cached::best_beginning`]. Of tiers with equal ones, the engine's, then what is kept.
    pub(crate) fn best_beginning(
        &self,
        first: &[Block],
        blocks: &[Block],
        weight: impl Fn(Block) -> u64,
        least: u64,
    ) -> Beginning {
        // A prefix of any prompt is a prefix of one in one of the tiers.
        let all = self
            .all()
            .map(|tier| tier.best_beginning(first, blocks, &weight, least));
        let worth =
            |beginning: &Beginning| weight_of(&beginning.blocks[..beginning.usable], &weight);
        let better = |a: Beginning, b: Beginning| if worth(&b) > worth(&a) { b } else { a };
        all.reduce(better).unwrap_or_default()
    }

    /// The cached prefixes of only these blocks, with other numbers for blocks and prompts, and at most `limit`
    /// blocks. For ordering a batch elsewhere.
    #[must_use]
    pub fn renumbered(&self, numbers: &HashMap<Block, Block>, limit: usize) -> Cached {
        Cached::renumbered(self.all(), numbers, limit)
    }
}

/// The first of the longest.
fn longest(all: impl Iterator<Item = (usize, Option<u64>)>) -> (usize, Option<u64>) {
    let longer = |a: (usize, _), b: (usize, _)| if b.0 > a.0 { b } else { a };
    all.reduce(longer).unwrap_or_default()
}
