//! Keyed hashes of blocks of tokens.

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
}
