//! Numbers that look random, the same for the same seed, on every machine and with every version of every
//! crate: weights of test models, traffic of tests and benchmarks, the spread of retries. Not for secrets.

#![forbid(unsafe_code)]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

/// SplitMix64 (Steele, Lea, Flood 2014): every seed gives an unrelated stream.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Another stream each time, from a seed that is not known.
    #[must_use]
    pub fn of_system() -> Self {
        // RandomState is seeded by the system.
        Self(RandomState::new().build_hasher().finish())
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        finish(self.0)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// A number in a range, which is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// An index below `end`, which is not 0.
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// One of these, of which there is at least one.
    pub fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }

    /// Another stream.
    pub fn split(&mut self) -> Self {
        Self(self.draw())
    }

    /// A text of `length` small letters.
    pub fn letters(&mut self, length: usize) -> String {
        let letter = |_| char::from(b'a' + self.below(26) as u8);
        (0..length).map(letter).collect()
    }
}

/// What the state grows by with each number: 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a number that SplitMix64 makes of its state.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    finish(number.wrapping_add(STEP))
}

const fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_stream_is_that_of_splitmix64() {
        // The first numbers for the seed 1234567, as the authors' program prints them.
        let mut random = Random(1_234_567);
        assert_eq!(random.draw(), 6_457_827_717_110_365_317);
        assert_eq!(random.draw(), 3_203_168_211_198_807_973);
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        // And the system's next number cannot be foreseen.
        assert_ne!(Random::of_system().draw(), Random::of_system().draw());
    }

    #[test]
    fn every_number_of_a_range_is_drawn_and_no_other() {
        fn drawn(draw: impl Fn(&mut Random) -> u64) -> BTreeSet<u64> {
            let mut random = Random(1);
            (0..200).map(|_| draw(&mut random)).collect()
        }
        assert_eq!(drawn(|random| random.below(4)), [0, 1, 2, 3].into());
        assert_eq!(drawn(|random| random.within(5..8)), [5, 6, 7].into());
        assert_eq!(drawn(|random| random.index(3) as u64), [0, 1, 2].into());
        assert_eq!(drawn(|random| random.choose(&[9, 4])), [4, 9].into());
    }

    #[test]
    fn letters_are_small_and_all_of_them_occur() {
        let text = Random(1).letters(500);
        let letters: BTreeSet<char> = text.chars().collect();
        assert_eq!(text.len(), 500);
        assert!(letters.into_iter().eq('a'..='z'));
    }

    #[test]
    fn a_stream_that_is_split_off_is_another_one() {
        let mut random = Random(1);
        let (mut first, mut second) = (random.split(), random.split());
        let numbers = [first.draw(), second.draw(), random.draw()];
        assert_eq!(BTreeSet::from(numbers).len(), 3, "{numbers:?}");
    }
}
