//! A pseudo-random generator of our own: the same weights on every machine and
//! with every version of every crate.

/// SplitMix64 (Steele, Lea, Flood 2014): one addition and a mix per number.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A stream that is named rather than numbered: a tensor's values depend on
    /// its name and not on what was written before it. That is how the draft
    /// model comes to share its layer with the model that it drafts for.
    pub(crate) fn named(seed: u64, name: &str) -> Self {
        // FNV-1a
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash)
    }

    /// Uniform in [-1, 1).
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // 24 bits are what an f32 holds exactly.
        (mixed >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }
}
