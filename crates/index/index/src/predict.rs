//! Estimates how many tokens a cached prefix has.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};

use contextpilot_order::Block;

use crate::block::Blocks;

/// Learns from what the engine reused.
///
/// A prefix that was reused before has as many tokens as then. For others, the estimate is the tokens of its
/// blocks (counted by the engine's own tokenizer) plus the template: the tokens that prompts with as
/// many blocks had beyond their blocks. A block of which only the id is known counts as an average
/// block.
#[derive(Debug, Default)]
pub(crate) struct Predictor {
    /// The tokens of a prefix, by the hash of its blocks.
    known: HashMap<u64, u64>,
    order: VecDeque<u64>,
    /// The last tokens beyond those of the blocks, by the number of blocks.
    beyond: BTreeMap<usize, VecDeque<i64>>,
    /// Tokens and blocks of whole prompts, as decaying sums.
    tokens: f64,
    blocks: f64,
    /// The last tokens of whole prompts beyond those of their blocks: template and
    /// question.
    whole: VecDeque<i64>,
}

/// How many prefixes are kept.
const KNOWN: usize = 100_000;
/// How many of the last prompts with the same number of blocks are kept. Their median counts.
const LAST: usize = 7;
/// By how many tokens prompts of one template differ, because their next blocks may begin alike.
const NEAR: u64 = 16;
/// The weight of a new prompt in the averages.
const FADE: f64 = 0.98;

impl Predictor {
    /// The estimated tokens of a block: at least one.
    pub(crate) fn weight(&self, block: Block, blocks: &Blocks) -> u64 {
        let info = blocks.info(block);
        let known = info.and_then(|info| info.tokens).map(u64::from);
        let by_text = || match info.map_or(0, |info| info.bytes) {
            0 => None,
            bytes => Some(u64::from(bytes) / 4),
        };
        known
            .or_else(by_text)
            .unwrap_or_else(|| self.average())
            .max(1)
    }

    /// Tokens of a beginning.
    pub(crate) fn tokens(&self, beginning: &[Block], blocks: &Blocks) -> u64 {
        if let Some(known) = self.known.get(&hash(beginning)) {
            return *known;
        }
        let sum = self.sum(beginning, blocks);
        sum.saturating_add_signed(self.beyond(beginning.len()))
    }

    /// The number of blocks of the shortest beginning with so many tokens, of at least one block; all of them if
    /// none has.
    pub(crate) fn shortest(&self, of: &[Block], tokens: u64, blocks: &Blocks) -> usize {
        let mut hasher = DefaultHasher::new();
        let mut sum = 0_u64;
        for (at, block) in of.iter().enumerate() {
            hasher.write_u32(*block);
            sum = sum.saturating_add(self.weight(*block, blocks));
            let known = self.known.get(&hasher.finish()).copied();
            let guess = || sum.saturating_add_signed(self.beyond(at + 1));
            if known.unwrap_or_else(guess) >= tokens {
                return at + 1;
            }
        }
        of.len()
    }

    /// A prompt that was forecast to reuse these blocks reused so many tokens.
    pub(crate) fn learn(&mut self, beginning: &[Block], reused: u64, blocks: &Blocks) {
        let sum = self.sum(beginning, blocks);
        // Far less than its blocks: the prefix was evicted before the prompt came. Nothing at all: the
        // slot was empty. Neither says anything about the template.
        if reused == 0 || reused < sum / 2 {
            return;
        }
        let beyond = signed(reused).saturating_sub(signed(sum));
        let last = self.beyond.entry(beginning.len()).or_default();
        remember(last, beyond);
        if beginning.is_empty() {
            return;
        }
        // Far from the median: the engine found more than was known, or less.
        if median(last).abs_diff(beyond) > NEAR {
            return;
        }
        let hash = hash(beginning);
        if self.known.insert(hash, reused).is_none() {
            self.order.push_back(hash);
            if self.order.len() > KNOWN {
                let oldest = self.order.pop_front();
                oldest.map(|oldest| self.known.remove(&oldest));
            }
        }
    }

    /// A whole prompt of these blocks had so many tokens.
    pub(crate) fn note_prompt(&mut self, tokens: u64, of: &[Block], blocks: &Blocks) {
        self.tokens = self.tokens * FADE + tokens as f64;
        self.blocks = self.blocks * FADE + of.len() as f64;
        let beyond = signed(tokens).saturating_sub(signed(self.sum(of, blocks)));
        remember(&mut self.whole, beyond);
    }

    /// Tokens of a whole prompt of these blocks.
    pub(crate) fn prompt(&self, of: &[Block], blocks: &Blocks) -> u64 {
        let sum = self.sum(of, blocks);
        sum.saturating_add_signed(median(&self.whole))
    }

    fn sum(&self, of: &[Block], blocks: &Blocks) -> u64 {
        let weights = of.iter().map(|block| self.weight(*block, blocks));
        weights.fold(0, u64::saturating_add)
    }

    fn average(&self) -> u64 {
        if self.blocks > 0.0 {
            (self.tokens / self.blocks) as u64
        } else {
            1
        }
    }

    /// The median with as many blocks, or the minimum without any (if more was reused, it was an
    /// unknown prefix). Else on the line through the two nearest known numbers of
    /// blocks.
    fn beyond(&self, count: usize) -> i64 {
        if let Some(last) = self.beyond.get(&count) {
            return match count {
                0 => last.iter().copied().min().unwrap_or(0),
                _ => median(last),
            };
        }
        // Of two on either side, those nearest to `count`, the smaller number first.
        let near = |(known, last): (&usize, &VecDeque<i64>)| (*known, median(last));
        let below = self.beyond.range(..count).rev().take(2).map(near);
        let mut near: Vec<(usize, i64)> = below
            .chain(self.beyond.range(count..).take(2).map(near))
            .collect();
        near.sort_unstable_by_key(|(known, _)| (known.abs_diff(count), *known));
        match near[..] {
            [] => 0,
            [(_, beyond)] => beyond,
            [(a, at_a), (b, at_b), ..] => {
                let slope = at_b.saturating_sub(at_a) as f64 / (b as f64 - a as f64);
                let more = (slope * (count as f64 - a as f64)).round() as i64;
                at_a.saturating_add(more)
            }
        }
    }
}

fn remember(last: &mut VecDeque<i64>, beyond: i64) {
    last.push_back(beyond);
    if last.len() > LAST {
        last.pop_front();
    }
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

fn median(last: &VecDeque<i64>) -> i64 {
    let mut sorted: Vec<i64> = last.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// Of the blocks alone, not of their number, so that it can be had for each beginning in turn.
fn hash(blocks: &[Block]) -> u64 {
    let mut hasher = DefaultHasher::new();
    blocks.iter().for_each(|block| hasher.write_u32(*block));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::block::Key;

    fn blocks(tokens: &[u32]) -> Blocks {
        let mut blocks = Blocks::default();
        for (id, tokens) in tokens.iter().enumerate() {
            let key = Key::from_value(&json!(format!("text {id}"))).expect("a key");
            let block = blocks.block(key, 100);
            blocks.set_tokens(block, *tokens);
        }
        blocks
    }

    #[test]
    fn a_template_is_learned_from_a_few_prompts() {
        let blocks = blocks(&[10, 20, 30, 40]);
        let mut predictor = Predictor::default();
        assert_eq!(predictor.tokens(&[0, 1], &blocks), 30);
        // Five tokens before the blocks, two more for each.
        predictor.learn(&[0], 10 + 7, &blocks);
        predictor.learn(&[1, 2], 50 + 9, &blocks);
        assert_eq!(predictor.tokens(&[3], &blocks), 47);
        assert_eq!(predictor.tokens(&[0, 1, 2, 3], &blocks), 100 + 13);
        assert_eq!(predictor.tokens(&[], &blocks), 5);
    }

    #[test]
    fn a_prefix_that_was_reused_before_has_the_same_tokens_again() {
        let blocks = blocks(&[10, 20]);
        let mut predictor = Predictor::default();
        predictor.learn(&[0, 1], 41, &blocks);
        assert_eq!(predictor.tokens(&[0, 1], &blocks), 41);
        // It had been evicted meanwhile.
        predictor.learn(&[0, 1], 3, &blocks);
        assert_eq!(predictor.tokens(&[0, 1], &blocks), 41);
    }

    #[test]
    fn counts_that_no_prompt_has_do_not_overflow() {
        let blocks = blocks(&[10, 20, 30]);
        let mut predictor = Predictor::default();
        // Fewer tokens than its block, and more than there are.
        predictor.learn(&[0], 5, &blocks);
        predictor.learn(&[0, 1], u64::MAX, &blocks);
        predictor.note_prompt(u64::MAX, &[0, 1], &blocks);
        assert!(predictor.tokens(&[0, 1, 2], &blocks) > 1 << 40);
        assert!(predictor.prompt(&[0, 1, 2], &blocks) > 1 << 40);
    }
}
