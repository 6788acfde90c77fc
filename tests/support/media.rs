//! Images for prompts.

use contextpilot_testbed::Random;

/// A square full of letters, in the simplest format that llama-server reads.
pub(crate) fn picture(seed: u64, side: u32) -> Vec<u8> {
    let mut file = format!("P6 {side} {side} 255\n").into_bytes();
    let mut random = Random(seed);
    let letters = std::iter::repeat_with(|| b'a' + random.below(26) as u8);
    file.extend(letters.take((3 * side * side) as usize));
    file
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| {
            bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            text.push(if digit <= chunk.len() {
                char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])
            } else {
                '='
            });
        }
    }
    text
}
