//! Tails that wait in memory for their tokens' rows.

use std::sync::Arc;

use contextpilot_kv_store::Conditions;

/// At most so many tails wait.
const MOST: usize = 16;
/// At most so many bytes of tails wait.
pub(crate) const MOST_BYTES: usize = 256 << 20;

/// A tail that was taken while the rows of its tokens are not in the store.
#[derive(Debug)]
pub struct Tail {
    /// The sequence that it was taken of.
    pub sequence: i32,
    /// Those that it stands behind.
    pub tokens: Vec<i32>,
    /// Under what they were evaluated.
    pub conditions: Conditions,
    /// The tail.
    pub bytes: Arc<Vec<u8>>,
    /// How large it is, in bytes. A simulation has none of them.
    pub size: usize,
}

/// The tails of a context, the oldest first.
#[derive(Debug, Default)]
pub struct Tails(Vec<Tail>);

impl Tails {
    /// If there are too many then, the oldest are dropped.
    pub fn add(&mut self, tail: Tail) {
        if tail.size > MOST_BYTES {
            return;
        }
        self.0.push(tail);
        let mut bytes: usize = self.0.iter().map(|tail| tail.size).sum();
        while self.0.len() > MOST || bytes > MOST_BYTES {
            bytes -= self.0.remove(0).size;
        }
    }

    /// The tails of a sequence, which do not wait any more.
    pub fn take_of(&mut self, sequence: i32) -> Vec<Tail> {
        let (of_this, others) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|tail| tail.sequence == sequence);
        self.0 = others;
        of_this
    }

    /// A tail that was [taken](Self::take_of) goes on waiting.
    pub fn put_back(&mut self, tail: Tail) {
        self.0.push(tail);
    }

    /// How many tokens the longest beginning of these has for which a tail of the sequence waits; 0: no tail waits.
    pub fn last(&self, sequence: i32, tokens: &[i32]) -> usize {
        let tails = self.0.iter();
        let of_these =
            tails.filter(|tail| tail.sequence == sequence && tokens.starts_with(&tail.tokens));
        of_these.map(|tail| tail.tokens.len()).max().unwrap_or(0)
    }

    /// How many of these tokens each tail stands behind that waits, the fewest first.
    pub fn within(&self, tokens: &[i32]) -> Vec<usize> {
        let of_these = self
            .0
            .iter()
            .filter(|tail| tokens.starts_with(&tail.tokens));
        let mut ends: Vec<usize> = of_these.map(|tail| tail.tokens.len()).collect();
        ends.sort_unstable();
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(sequence: i32, tokens: &[i32]) -> Tail {
        Tail {
            sequence,
            tokens: tokens.to_vec(),
            conditions: Conditions::default(),
            bytes: Arc::new(vec![0]),
            size: 1,
        }
    }

    #[test]
    fn the_oldest_tails_are_dropped_and_the_longest_of_a_sequence_is_found() {
        let mut tails = Tails::default();
        for length in 1..=20 {
            let tokens: Vec<i32> = (0..length).collect();
            tails.add(tail(length % 2, &tokens));
        }
        let all: Vec<i32> = (0..20).collect();
        assert_eq!((tails.last(0, &all), tails.last(1, &all)), (20, 19));
        assert_eq!((tails.last(0, &all[..5]), tails.last(0, &all[..4])), (0, 0));
        assert_eq!(tails.last(0, &all[..6]), 6, "the first four are gone");
        assert_eq!(tails.within(&all[..8]), [5, 6, 7, 8]);
        let mut of_one = tails.take_of(1);
        assert_eq!((of_one.len(), tails.last(1, &all)), (8, 0));
        tails.put_back(of_one.remove(0));
        assert_eq!(tails.last(1, &all), 5);
    }
}
