//! The values of weights: the same on every machine and with every version of every crate.

use contextpilot_random::Random;

/// A stream of values.
#[derive(Debug)]
pub(crate) struct Rng(Random);

impl Rng {
    /// A stream that is named rather than numbered: a tensor's values depend on
    /// its name and not on what was written before it. That is how the draft
    /// model comes to share its layer with the model that it drafts for.
    pub(crate) fn named(seed: u64, name: &str) -> Self {
        // FNV-1a
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash))
    }

    /// Uniform in [-1, 1).
    pub(crate) fn next(&mut self) -> f32 {
        // 24 bits are what an f32 holds exactly.
        (self.0.draw() >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }
}
