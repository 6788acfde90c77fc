//! Places of which it is known that something was forgotten there.

use crate::event::Token;
use std::collections::{HashSet, VecDeque};

/// Places that are kept; of an older one nothing is known any more.
const MOST: usize = if cfg!(any(test, fuzzing)) { 64 } else { 32_768 };
/// Tokens of a run that are looked at.
const LOOKED_AT: usize = 16;

/// Of a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Hash(u64);

impl Hash {
    /// Of the prefix with these tokens behind it.
    pub(super) fn after(self, tokens: &[Token]) -> Self {
        tokens.iter().fold(self, |hash, &token| hash.and(token))
    }

    /// A step of SplitMix64.
    fn and(self, token: Token) -> Self {
        let mut z = (self.0 ^ u64::from(token as u32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(z ^ (z >> 31))
    }
}

#[derive(Debug, Default)]
pub(super) struct Forgotten {
    places: HashSet<Hash>,
    /// Oldest first.
    order: VecDeque<Hash>,
}

impl Forgotten {
    /// A run behind this prefix is forgotten.
    pub(super) fn note(&mut self, before: Hash, run: &[Token]) {
        let place = before.after(&run[..run.len().min(LOOKED_AT)]);
        if !self.places.insert(place) {
            return;
        }
        self.order.push_back(place);
        if self.order.len() > MOST {
            if let Some(oldest) = self.order.pop_front() {
                self.places.remove(&oldest);
            }
        }
    }

    /// Whether a run behind this prefix was forgotten that began like these tokens.
    pub(super) fn knows(&self, before: Hash, tokens: &[Token]) -> bool {
        if self.places.is_empty() {
            return false;
        }
        let mut hash = before;
        tokens.iter().take(LOOKED_AT).any(|&token| {
            hash = hash.and(token);
            self.places.contains(&hash)
        })
    }
}
