//! Hashes of blocks.

/// Fixed as [`fold`] is, so that all servers of all versions give a block the same hash. After a change,
/// routers would see no common blocks between older and newer servers.
const SEED: u64 = 0x636f_6e74_6578_7470;
/// llm-d refuses hashes below this.
const LEAST: u64 = 1 << 32;

/// The name of a block: of its tokens and of all before them, whose name is `parent`; `None`: none
/// come before. Never below 2³². The first block of those that serve requests for a LoRA adapter has
/// the adapter's name in its own, and so have all that follow it.
///
/// Two blocks have the same hash by chance once in 2⁶⁴ pairs. A client could construct two such blocks,
/// which does no harm: the engine compares tokens, and only a router's estimate would be wrong.
#[must_use]
pub fn block_hash(parent: Option<u64>, tokens: &[u32], adapter: Option<&str>) -> u64 {
    let above = parent.or_else(|| adapter.map(adapter_hash)).unwrap_or(0);
    let mut hash = fold(SEED, above, tokens.len() as u64);
    for pair in tokens.chunks(2) {
        let second = pair.get(1).copied().unwrap_or(0);
        hash = fold(hash, u64::from(pair[0]), u64::from(second) + 1);
    }
    if hash < LEAST { hash | LEAST } else { hash }
}

/// The parent of the first block.
fn adapter_hash(name: &str) -> u64 {
    name.bytes().fold(SEED, |hash, byte| {
        fold(hash, u64::from(byte), name.len() as u64)
    })
}

/// Mixes two numbers in: every bit of the result depends on all bits.
const fn fold(hash: u64, one: u64, other: u64) -> u64 {
    contextpilot_random::mix(hash.rotate_left(23) ^ one ^ other.rotate_left(32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn hashes_equal_the_recorded_ones() {
        let first = block_hash(None, &[1, 2, 3, 4], None);
        assert_eq!(first, 0xc67c_247b_06eb_922a);
        let second = block_hash(Some(first), &[1, 2, 3, 4], None);
        assert_eq!(second, 0xb9df_b40d_88fc_cd63);
        assert_eq!(block_hash(None, &[7], None), 0x7089_5e60_8930_52ed);
        let adapted = block_hash(None, &[1, 2, 3, 4], Some("sql"));
        assert_eq!(adapted, 0x830b_4ef5_2866_23c1);
    }

    #[test]
    fn hashes_differ_if_tokens_parent_or_adapter_differ() {
        let mut seen = HashSet::new();
        for parent in [None, Some(LEAST), Some(LEAST + 1), Some(u64::MAX)] {
            for one in 0..20 {
                for other in 0..20 {
                    for tokens in [&[one, other][..], &[one, other, 0], &[one, other, 0, 0]] {
                        for adapter in [None, Some("a"), Some("b"), Some("aa")] {
                            // What lies below a block has its adapter.
                            if parent.is_some() && adapter.is_some() {
                                continue;
                            }
                            let hash = block_hash(parent, tokens, adapter);
                            assert!(hash >= LEAST);
                            assert!(seen.insert(hash), "{parent:?} {tokens:?} {adapter:?}");
                        }
                    }
                }
            }
        }
    }
}
