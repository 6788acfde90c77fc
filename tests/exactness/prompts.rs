//! Prompts that share nothing but a chosen beginning.

use contextpilot_testbed::Random;

/// `length` letters, each a token. Different seeds differ from the first letter on.
pub(crate) fn text(seed: u64, length: usize) -> String {
    let mut random = Random(seed);
    let first = char::from(b'A' + (seed % 26) as u8);
    std::iter::once(first)
        .chain(std::iter::repeat_with(|| {
            char::from(b'a' + random.below(26) as u8)
        }))
        .take(length)
        .collect()
}
