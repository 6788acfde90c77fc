//! How many tokens a cached beginning has.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use contextpilot_order::Block;

use crate::block::Blocks;

/// Learns from what the engine reused.
///
/// A beginning that was reused before has as many tokens as then. For others: the tokens of its
/// blocks (the engine's own tokenizer says how many these are) and what prompts of as many blocks
/// had beyond that, which is the template. Blocks of which only the id is known count as much
/// as blocks do on average.
#[derive(Debug, Default)]
pub(crate) struct Predictor {
    /// By the hash of its blocks: the tokens of a beginning.
    known: HashMap<u64, u64>,
    order: VecDeque<u64>,
    /// What there was beyond the tokens of blocks, the last times, by the number of blocks.
    beyond: HashMap<usize, VecDeque<i64>>,
    /// Tokens and blocks of whole prompts, fading.
    tokens: f64,
    blocks: f64,
    /// What whole prompts had beyond the tokens of their blocks, the last times: template and
    /// question.
    whole: VecDeque<i64>,
}

/// Beginnings that are remembered.
const KNOWN: usize = 100_000;
/// Prompts with as many blocks at their beginnings, of which the one in the middle counts.
const LAST: usize = 7;
/// Tokens by which prompts of one template differ, since their next blocks begin alike.
const NEAR: u64 = 16;
/// Of the averages: what a new prompt changes.
const FADE: f64 = 0.98;

impl Predictor {
    /// What a block is worth, in tokens: at least one.
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

    /// A prompt that was expected to begin with these blocks reused so many tokens.
    pub(crate) fn learn(&mut self, beginning: &[Block], reused: u64, blocks: &Blocks) {
        let sum = self.sum(beginning, blocks);
        // Far less than its blocks: it was gone when the prompt came. Nothing at all: the slot was
        // empty. Neither says anything of the template.
        if reused == 0 || reused < sum / 2 {
            return;
        }
        let beyond = signed(reused).saturating_sub(signed(sum));
        let last = self.beyond.entry(beginning.len()).or_default();
        note(last, beyond);
        if beginning.is_empty() {
            return;
        }
        // Far from what it is mostly: the engine found more than was known, or less.
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
        note(&mut self.whole, beyond);
    }

    /// Tokens of a whole prompt of these blocks.
    pub(crate) fn prompt(&self, of: &[Block], blocks: &Blocks) -> u64 {
        let sum = self.sum(of, blocks);
        sum.saturating_add_signed(median(&self.whole))
    }

    fn sum(&self, of: &[Block], blocks: &Blocks) -> u64 {
        of.iter().map(|block| self.weight(*block, blocks)).sum()
    }

    fn average(&self) -> u64 {
        if self.blocks > 0.0 {
            (self.tokens / self.blocks) as u64
        } else {
            1
        }
    }

    /// As it was mostly with as many blocks, or at least without any: where more was found, that
    /// was a beginning that nobody knew of. Else on the line through the two nearest numbers of
    /// blocks that are known.
    fn beyond(&self, count: usize) -> i64 {
        if let Some(last) = self.beyond.get(&count) {
            return match count {
                0 => last.iter().copied().min().unwrap_or(0),
                _ => median(last),
            };
        }
        let known = self.beyond.iter();
        let mut near: Vec<(usize, i64)> = known.map(|(n, last)| (*n, median(last))).collect();
        near.sort_unstable_by_key(|(known, _)| (known.abs_diff(count), *known));
        match near[..] {
            [] => 0,
            [(_, beyond)] => beyond,
            [(a, at_a), (b, at_b), ..] => {
                let slope = (at_b - at_a) as f64 / (b as f64 - a as f64);
                at_a + (slope * (count as f64 - a as f64)).round() as i64
            }
        }
    }
}

fn note(last: &mut VecDeque<i64>, one: i64) {
    last.push_back(one);
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

fn hash(blocks: &[Block]) -> u64 {
    let mut hasher = DefaultHasher::new();
    blocks.hash(&mut hasher);
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
            let key = Key::of(&json!(format!("text {id}"))).expect("a key");
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
    fn what_was_reused_before_is_expected_again() {
        let blocks = blocks(&[10, 20]);
        let mut predictor = Predictor::default();
        predictor.learn(&[0, 1], 41, &blocks);
        assert_eq!(predictor.tokens(&[0, 1], &blocks), 41);
        // It had been evicted meanwhile.
        predictor.learn(&[0, 1], 3, &blocks);
        assert_eq!(predictor.tokens(&[0, 1], &blocks), 41);
    }
}
