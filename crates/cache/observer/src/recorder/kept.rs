//! Prompts that got tokens of earlier answers.

use std::collections::HashMap;

use contextpilot_kept_tokens::with_others;
use contextpilot_residency::{Arrival, Token};

use super::slot::Open;
use crate::note::KeptPrompt;

/// Tokens of the tokenizer in place of those of answers, in prompts whose requests are not over. More of them are not
/// recorded.
pub const MOST_OTHER_TOKENS: usize = 1 << 20;

/// The prompts that got such tokens and are not evaluated yet, by their requests.
#[derive(Debug, Default)]
pub(super) struct KeptPrompts {
    all: HashMap<Arrival, Vec<KeptPrompt>>,
    /// What they take, in tokens.
    weight: usize,
}

impl KeptPrompts {
    pub(super) fn add(&mut self, arrival: Arrival, kept: &KeptPrompt) {
        let weight = kept.weight();
        if self.weight + weight <= MOST_OTHER_TOKENS {
            self.weight += weight;
            self.all.entry(arrival).or_default().push(kept.clone());
        }
    }

    /// A prompt of this many tokens was evaluated for a request, which may have several.
    pub(super) fn take(&mut self, arrival: Option<Arrival>, tokens: u32) -> Option<KeptPrompt> {
        let of_request = self.all.get_mut(&arrival?)?;
        let nth = of_request.iter().position(|kept| kept.tokens == tokens)?;
        let kept = of_request.remove(nth);
        self.weight -= kept.weight();
        Some(kept)
    }

    pub(super) fn forget(&mut self, arrival: Arrival) {
        let gone = self.all.remove(&arrival).unwrap_or_default();
        self.weight -= gone.iter().map(KeptPrompt::weight).sum::<usize>();
    }
}

/// How many tokens of a prompt were kept as they were generated, and the request's tokens as they would have been with the
/// tokenizer's own. `None`: none were kept.
pub(super) fn canonical(open: &Open) -> Option<(u32, Vec<Token>)> {
    let kept = open.kept.as_ref()?;
    let (prompt, answer) = open.tokens.split_at_checked(open.record.prompt as usize)?;
    let mut tokens = with_others(prompt, &kept.others);
    tokens.extend_from_slice(answer);
    Some((kept.kept, tokens))
}

#[cfg(test)]
mod tests {
    use contextpilot_kept_tokens::Other;

    use super::*;

    fn prompt(tokens: u32, others: usize) -> KeptPrompt {
        let other = Other {
            ours: 3..5,
            canonical: vec![7; others],
        };
        KeptPrompt {
            tokens,
            kept: 2,
            others: [other].into(),
        }
    }

    #[test]
    fn no_more_waits_than_there_is_room_for() {
        let mut waiting = KeptPrompts::default();
        let (first, second) = (Arrival(1), Arrival(2));
        waiting.add(first, &prompt(20, 4));
        waiting.add(first, &prompt(30, 5));
        waiting.add(second, &prompt(20, MOST_OTHER_TOKENS - 20));
        assert_eq!(waiting.take(Some(second), 20), None, "there was no room");
        assert_eq!(waiting.take(Some(first), 25), None);
        assert_eq!(waiting.take(Some(first), 30), Some(prompt(30, 5)));
        waiting.forget(first);
        assert_eq!((waiting.weight, waiting.all.len()), (0, 0));
        waiting.add(second, &prompt(20, MOST_OTHER_TOKENS - 20));
        assert!(waiting.take(Some(second), 20).is_some());
    }
}
