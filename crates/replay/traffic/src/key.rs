//! Keyed hashes: of blocks of tokens, which are in a file, and of grams, which are not.

use std::fmt;

use siphasher::sip::SipHasher24;

/// Tokens in a block.
pub const BLOCK: usize = 64;

/// The key of a file's hashes. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl Key {
    /// From 16 random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a file that is to keep them.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// One hash for each whole block of `tokens`. It covers all tokens from the first of all to the last
    /// of the block.
    #[must_use]
    pub fn blocks(&self, tokens: &[i32]) -> Vec<u64> {
        let mut chain = 0_u64;
        let blocks = tokens.chunks_exact(BLOCK).map(|block| {
            let mut text = Vec::with_capacity(8 + 4 * BLOCK);
            text.extend(chain.to_le_bytes());
            for token in block {
                text.extend(token.to_le_bytes());
            }
            chain = self.hash(&text);
            chain
        });
        blocks.collect()
    }

    /// SipHash-2-4 (Aumasson and Bernstein, 2012), a pseudorandom function.
    #[must_use]
    pub fn hash(&self, text: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The tokens that decide about an identity: a token and those before it. Rows show what they have in
/// common anywhere if it is at least as long. Fewer tokens would give away more of the text.
pub const GRAM: usize = 16;

/// 2⁶¹ − 1, a prime.
const PRIME: u64 = (1 << 61) - 1;

/// A polynomial of a secret number, whose coefficients are the tokens of a gram (Rabin and Karp). So the
/// next gram's hash follows from the last one's in two multiplications, and no client can choose tokens
/// for which two hashes are equal. The hashes are not written anywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GramHash {
    base: u64,
    /// `base` to the power of [`GRAM`].
    power: u64,
}

impl GramHash {
    pub(crate) fn new(key: &Key) -> Self {
        let base = key.hash(b"grams") % (PRIME - 2) + 2;
        let power = (0..GRAM).fold(1, |power, _| times(power, base));
        Self { base, power }
    }

    /// For each token of a row from the position `from` on, the hash of the gram that ends with it. At the
    /// beginning of a row there are fewer tokens than a gram has. They have hashes of their own.
    pub(crate) fn hashes(self, tokens: &[i32], from: usize) -> impl Iterator<Item = u64> + '_ {
        let begin = from.saturating_sub(GRAM - 1);
        let tokens = tokens.get(begin..).unwrap_or_default();
        // No coefficient is 0, so grams of different lengths differ.
        let of = |token: &i32| u64::from(*token as u32) + 1;
        let mut hash = 0;
        let mut all = tokens.iter().enumerate().map(move |(at, token)| {
            hash = within(times(hash, self.base), of(token));
            if let Some(first) = at.checked_sub(GRAM) {
                hash = within(hash, PRIME - times(of(&tokens[first]), self.power));
            }
            hash
        });
        // `skip` would ask for each of the others whether it is to be skipped.
        for _ in begin..from {
            all.next();
        }
        all
    }
}

fn times(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    // 2⁶¹ is 1 modulo this prime.
    within(product as u64 & PRIME, (product >> 61) as u64)
}

/// The sum of two numbers up to the prime, modulo that.
fn within(a: u64, b: u64) -> u64 {
    let sum = a + b;
    sum.checked_sub(PRIME).unwrap_or(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the paper, and the first vectors of its authors' implementation.
    #[test]
    fn the_hash_is_siphash_2_4() {
        let key = Key::new(std::array::from_fn(|i| i as u8));
        let text: Vec<u8> = (0..15).collect();
        assert_eq!(key.hash(&text), 0xa129_ca61_49be_45e5);
        assert_eq!(key.hash(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(key.hash(&[0]), 0x74f8_39c5_93dc_67fd);
        assert_eq!(key.hash(&text[..8]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn a_changed_token_changes_the_hashes_of_its_block_and_of_all_later_ones() {
        let key = Key::new([7; 16]);
        let mut tokens: Vec<i32> = (0..200).collect();
        let before = key.blocks(&tokens);
        assert_eq!(before.len(), 3);
        tokens[70] += 1;
        let after = key.blocks(&tokens);
        assert_eq!(before[0], after[0]);
        assert_ne!(before[1], after[1]);
        assert_ne!(before[2], after[2]);
        assert_ne!(Key::new([8; 16]).blocks(&tokens)[0], after[0]);
        assert_eq!(format!("{key:?}"), "Key(…)");
    }

    /// The hash of a gram by itself.
    fn alone(grams: GramHash, gram: &[i32]) -> u64 {
        grams.hashes(gram, 0).last().expect("it has tokens")
    }

    #[test]
    fn the_hash_of_a_gram_depends_on_its_tokens_alone() {
        let grams = GramHash::new(&Key::new([5; 16]));
        let tokens: Vec<i32> = (0..100).map(|nth| (nth * nth % 37) - 3).collect();
        for from in [0, 1, GRAM - 1, GRAM, 40, 99, 100] {
            let found: Vec<u64> = grams.hashes(&tokens, from).collect();
            let expected: Vec<u64> = (from..100)
                .map(|last| alone(grams, &tokens[(last + 1).saturating_sub(GRAM)..=last]))
                .collect();
            assert_eq!(found, expected, "{from}");
        }
        assert_ne!(alone(grams, &[0]), alone(grams, &[0, 0]));
        let other = GramHash::new(&Key::new([6; 16]));
        assert_ne!(alone(grams, &tokens), alone(other, &tokens));
    }
}
