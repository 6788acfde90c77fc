//! Prompts that share nothing but a chosen beginning.

/// `length` letters, each a token. Different seeds differ from the first letter on.
pub(crate) fn text(seed: u64, length: usize) -> String {
    // SplitMix64: every seed gives an unrelated stream.
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let first = char::from(b'A' + (seed % 26) as u8);
    std::iter::once(first)
        .chain(std::iter::repeat_with(|| {
            char::from(b'a' + (next() % 26) as u8)
        }))
        .take(length)
        .collect()
}
