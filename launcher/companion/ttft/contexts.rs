//! Text that no server has seen before.

use std::time::{SystemTime, UNIX_EPOCH};

use contextpilot_random::Random;

const WORDS: [&str; 48] = [
    "river", "stone", "lantern", "winter", "market", "copper", "letter", "garden", "engine",
    "island", "mirror", "thunder", "saddle", "harbour", "needle", "forest", "bridge", "window",
    "candle", "valley", "ribbon", "hammer", "meadow", "signal", "carpet", "glacier", "pepper",
    "violin", "anchor", "desert", "feather", "tunnel", "basket", "comet", "orchard", "pillar",
    "rudder", "sparrow", "timber", "velvet", "walnut", "yarrow", "zephyr", "quarry", "nectar",
    "marble", "kettle", "jasmine",
];

const QUESTION: &str = "Question: which of these words comes first in the alphabet?\nAnswer:";

/// Makes contexts of about one size. Each differs from all others, except perhaps for a word
/// or two at the beginning.
pub(super) struct Contexts {
    words: usize,
    /// Measured tokens of one context and of the question.
    tokens: u64,
    question_tokens: u64,
    random: Random,
}

impl Contexts {
    /// Finds out how many words have that many tokens. `count` counts the tokens of a text.
    pub(super) fn new<E>(
        mut count: impl FnMut(&str) -> Result<usize, E>,
        tokens: u32,
    ) -> Result<Self, E> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let seed = since.map_or(1, |since| since.as_nanos() as u64) ^ u64::from(std::process::id());
        let mut contexts = Self {
            words: 100,
            tokens: 0,
            question_tokens: 0,
            random: Random(seed),
        };
        let sample = count(&contexts.next())?.max(1);
        contexts.words = (tokens as usize * 100 / sample).max(2);
        contexts.tokens = count(&contexts.next())? as u64;
        contexts.question_tokens = count(QUESTION)? as u64;
        Ok(contexts)
    }

    /// A context that was never given before.
    pub(super) fn next(&mut self) -> String {
        let words: Vec<&str> = (0..self.words)
            .map(|_| self.random.choose(&WORDS))
            .collect();
        words.join(" ") + ".\n\n"
    }

    /// A prompt: contexts, and a question behind them.
    pub(super) fn ask(contexts: &[&str]) -> String {
        contexts.concat() + QUESTION
    }

    /// Tokens of [A, B, question] and an answer, with a little to spare: no two
    /// contexts have the same number.
    pub(super) fn longest_prompt(&self) -> u64 {
        self.tokens * 2 + self.tokens / 8 + self.question_tokens + 8
    }

    /// The size of contexts that would fit.
    pub(super) fn that_fit(&self, room: u64) -> u64 {
        room.saturating_sub(self.question_tokens + 8) * 8 / 17
    }
}
