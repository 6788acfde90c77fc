//! Images and sounds for prompts.

use contextpilot_testbed::Random;

/// A square full of letters, in the simplest format that llama-server reads.
pub(crate) fn picture(seed: u64, side: u32) -> Vec<u8> {
    let mut file = format!("P6 {side} {side} 255\n").into_bytes();
    let mut random = Random(seed);
    let letters = std::iter::repeat_with(|| b'a' + random.below(26) as u8);
    file.extend(letters.take((3 * side * side) as usize));
    file
}

/// So many seconds of chords, each second another one, as a WAV of 4,000 bytes a second.
pub(crate) fn sound(seed: u64, seconds: u32) -> Vec<u8> {
    const RATE: u32 = 4000;
    let bytes = RATE * seconds;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend([RATE, RATE].map(u32::to_le_bytes).concat());
    file.extend(b"\x01\0\x08\0data");
    file.extend(bytes.to_le_bytes());
    let mut random = Random(seed);
    for _ in 0..seconds {
        let tones = [(); 3].map(|()| 60 + random.below(1800));
        file.extend((0..RATE).map(|at| {
            let time = f64::from(at) / f64::from(RATE);
            let waves = tones.map(|tone| (std::f64::consts::TAU * tone as f64 * time).sin());
            (128.0 + 40.0 * waves.iter().sum::<f64>()) as u8
        }));
    }
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
