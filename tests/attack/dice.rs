//! Random choices that a seed repeats.

use contextpilot_testbed::Random;

pub(crate) struct Dice(Random);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random(seed))
    }

    pub(crate) fn another(&mut self) -> Self {
        Self(self.0.split())
    }

    /// Below `most`.
    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0.index(most.max(1))
    }

    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
