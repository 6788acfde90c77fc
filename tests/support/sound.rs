//! Sounds for prompts.

use contextpilot_testbed::Random;

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
