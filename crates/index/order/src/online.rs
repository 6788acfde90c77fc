//! Orders one context by what is cached now.

use std::collections::{HashMap, VecDeque};

use crate::{Block, Frequency, Tiers};

/// Options for what may be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnlineOptions {
    /// How many blocks stay in place at the beginning.
    pub keep_first: usize,
    /// Blocks that are not part of a cached prefix keep their order. Otherwise those that
    /// are requested more often come first, so that the next prompt finds a longer prefix.
    pub stable: bool,
}

/// A context in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Online {
    /// A permutation of the input.
    pub blocks: Vec<Block>,
    /// How many blocks at the beginning are cached.
    pub cached: usize,
    /// A prompt that has these, if there are any.
    pub prompt: Option<u64>,
}

/// Orders a context: first the cached prefix with the greatest weight, then the blocks that are requested
/// most often together with it ([`Frequency::sort_after`]). Equally frequent blocks keep their
/// order, and so do blocks that were never requested. `weight` is the weight of a block, in tokens.
#[must_use]
pub fn online<'a>(
    blocks: &[Block],
    cached: impl Into<Tiers<'a>>,
    frequency: &Frequency,
    weight: impl Fn(Block) -> u64,
    options: &OnlineOptions,
) -> Online {
    let (kept, movable) = blocks.split_at(options.keep_first.min(blocks.len()));
    let cached = cached.into();
    let least = cached.least(blocks, &weight);
    let beginning = cached.best_beginning(kept, movable, &weight, least);
    let mut ordered = kept.to_vec();
    ordered.extend(&beginning.blocks);
    let mut rest = without(movable, &beginning.blocks);
    if !options.stable {
        frequency.sort_after(&ordered, &mut rest);
    }
    ordered.extend(rest);
    // The blocks that stay in place may be cached alone, or in part.
    let (length, prompt) = match beginning.prompt {
        Some(prompt) => (kept.len() + beginning.usable, Some(prompt)),
        None => cached.beginning_of(kept, &weight, least),
    };
    Online {
        blocks: ordered,
        cached: length,
        prompt: prompt.filter(|_| length > 0),
    }
}

/// Removes each of `taken` once.
fn without(blocks: &[Block], taken: &[Block]) -> Vec<Block> {
    let mut taking: HashMap<Block, usize> = HashMap::new();
    for block in taken {
        *taking.entry(*block).or_default() += 1;
    }
    let mut left = blocks.to_vec();
    left.retain(
        |block| match taking.get_mut(block).filter(|count| **count > 0) {
            Some(count) => {
                *count -= 1;
                false
            }
            None => true,
        },
    );
    left
}

/// A note for the model that says which blocks matter most, because their new order does not say it.
/// It lists the blocks in the original order, by their new numbers (from 1). `None`
/// if nothing was moved. The words are those of ContextPilot's `optimize`.
///
/// ```
/// use contextpilot_order::importance_note;
///
/// let note = importance_note(&[9, 3, 1], &[1, 3, 9]).unwrap();
/// assert!(note.starts_with("Read the documents in this importance ranking: 3 > 2 > 1"));
/// assert_eq!(importance_note(&[1, 3], &[1, 3]), None);
/// ```
#[must_use]
pub fn importance_note(given: &[Block], ordered: &[Block]) -> Option<String> {
    if given == ordered {
        return None;
    }
    let mut places: HashMap<Block, VecDeque<usize>> = HashMap::new();
    for (place, block) in ordered.iter().enumerate() {
        places.entry(*block).or_default().push_back(place);
    }
    let ranks: Vec<String> = given
        .iter()
        .filter_map(|block| {
            let place = places.get_mut(block)?.pop_front()?;
            Some((place + 1).to_string())
        })
        .collect();
    let ranking = ranks.join(" > ");
    Some(format!(
        "Read the documents in this importance ranking: {ranking}\n\
         Prioritize information from higher-ranked documents."
    ))
}
