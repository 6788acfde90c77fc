//! Orders a batch so that most is shared.
//!
//! Contexts that stand in one cluster begin with the blocks that all of them have in common. So each
//! join of two clusters saves the weight of what both have in common: once evaluated, it is in the
//! cache for the second. And it costs what either could have gone on with in the cache, and cannot after
//! that beginning. This sum is to be large, and it is what the clusters are joined by: those two first
//! whose join saves most. The clustering by distances ([`crate::linkage()`]), as in ContextPilot 0.5.0, joins
//! by a mean over all pairs of members, which says little about what *all* of them have in common.
//!
//! How much more llama-server reuses this way is in the table of docs/index.md, by `scripts/index-bench`. On
//! its workloads, and without a cache, a search through all moves of branches saves 1 percent more than
//! this does.

mod joins;
mod placer;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::{Batch, Block, Cached};
use joins::{Budget, joins_within};
pub use joins::{Join, joins};
use placer::Placer;

/// Comparisons after which no more clusters are joined: some seconds. 10,000 contexts of 15 blocks
/// take a small part of that.
const STEPS: u64 = 1_000_000_000;

/// Orders a batch after what is cached: contexts that have most in common stand together, and begin
/// with it. Among the blocks that a cluster has in common those come first that go on with what is
/// cached, then those that more contexts of the batch have.
///
/// The first `keep_first` blocks of a context stay in place: only contexts with the same ones share
/// what follows. `weight` is what a block is worth (in tokens, or in bytes of text).
///
/// The groups are the clusters that have nothing in common with each other. The one that goes on with
/// most that is cached comes first, since those that are sent first may overwrite it.
#[must_use]
pub fn batch_sharing(
    contexts: &[Vec<Block>],
    keep_first: usize,
    cached: &Cached,
    weight: impl Fn(Block) -> u64,
) -> Batch {
    let mut popularity: HashMap<Block, usize> = HashMap::new();
    for block in contexts.iter().flatten() {
        *popularity.entry(*block).or_default() += 1;
    }
    let mut alike: BTreeMap<&[Block], Vec<usize>> = BTreeMap::new();
    for (number, context) in contexts.iter().enumerate() {
        let kept = &context[..keep_first.min(context.len())];
        alike.entry(kept).or_default().push(number);
    }
    let mut batch = Batch {
        contexts: contexts.to_vec(),
        groups: Vec::new(),
        nodes: 1,
        leaves: contexts.len(),
    };
    let budget = Budget::new(STEPS);
    for (kept, members) in alike {
        let rest: Vec<Vec<Block>> = members
            .iter()
            .map(|number| contexts[*number][kept.len()..].to_vec())
            .collect();
        let joins = joins_within(&rest, kept, cached, &weight, &budget);
        batch.nodes += rest.len() + joins.len();
        let place = Placer {
            kept,
            contexts: &rest,
            joins: &joins,
            cached,
            weight: &weight,
            popularity: &popularity,
            budget: &budget,
        };
        for group in place.groups() {
            let numbers = group.iter().map(|(at, _)| members[*at]).collect();
            batch.groups.push(numbers);
            for (at, blocks) in group {
                batch.contexts[members[at]] = blocks;
            }
        }
    }
    let reuse = |number: &usize| cached.beginning_of(&batch.contexts[*number], &weight, 0).0;
    batch.groups.sort_by_cached_key(|group| {
        let reuse = group.iter().map(reuse).max();
        (Reverse(reuse), Reverse(group.len()), group.first().copied())
    });
    batch
}
