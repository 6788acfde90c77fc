//! The ends of prompts in a bounded context, behind what is enough of them to count as cached.
//!
//! The tree has them only while a slot or host entry holds them. They are needed longer, to see how much of a prompt
//! the next content of a slot has in common with it. Equal ones are kept once.

use crate::token::Token;
use std::collections::HashSet;
use std::sync::Arc;

/// The most tokens at the ends of prompts that are kept in a bounded context. Beyond that, a prompt counts as evicted
/// when any of its tokens but the last one is not held any more.
pub const MOST_TAIL_TOKENS: usize = 1 << 21;

/// The ends that are kept.
#[derive(Debug, Default)]
pub(super) struct Tails {
    all: HashSet<Arc<[Token]>>,
    /// Tokens in all of them.
    tokens: usize,
}

impl Tails {
    /// Keeps these tokens for as long as a caller has them. `None`: there is no room.
    pub(super) fn keep(&mut self, tokens: &[Token]) -> Option<Arc<[Token]>> {
        if let Some(kept) = self.all.get(tokens) {
            return Some(Arc::clone(kept));
        }
        if self.tokens + tokens.len() > MOST_TAIL_TOKENS {
            self.all.retain(|tail| Arc::strong_count(tail) > 1);
            self.tokens = self.all.iter().map(|tail| tail.len()).sum();
        }
        if self.tokens + tokens.len() > MOST_TAIL_TOKENS {
            return None;
        }
        let kept: Arc<[Token]> = tokens.into();
        self.tokens += kept.len();
        self.all.insert(Arc::clone(&kept));
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ends_are_kept_once_and_there_is_room_again_when_nobody_has_one() {
        let mut tails = Tails::default();
        let half = |token| vec![token; MOST_TAIL_TOKENS / 2];
        let first = tails.keep(&half(1)).expect("room");
        let same = tails.keep(&half(1)).expect("room");
        assert!(Arc::ptr_eq(&first, &same));
        let second = tails.keep(&half(2)).expect("room");
        assert_eq!(tails.keep(&[3]), None);
        drop(second);
        assert!(tails.keep(&half(4)).is_some());
        assert_eq!(tails.all.len(), 2);
    }
}
