//! Hashes of forgotten runs, so that forgotten tokens are not taken for new ones.

use crate::token::Token;
use std::collections::{HashSet, VecDeque};

/// How many hashes are kept. The oldest go first.
const MOST: usize = if cfg!(any(test, fuzzing)) { 64 } else { 32_768 };
/// How many of the first tokens of a run are hashed.
const LOOKED_AT: usize = 16;

/// The hash of a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Hash(u64);

impl Hash {
    /// The hash of this prefix followed by these tokens.
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
    /// Notes that a run behind this prefix is forgotten.
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

    /// Whether a run behind this prefix was forgotten that began with the first of these tokens.
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
