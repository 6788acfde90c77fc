//! How much a recording may have.
//!
//! A few bytes of a file can stand for any number of tokens, and a simulation of a recording takes time and memory for
//! each token and each batch. No server has ever served what is beyond these bounds into one file.

use crate::setup::{Memory, Setup};

/// Tokens of all rows together: a thousand prompts of a million tokens.
pub(crate) const MOST_TOKENS: u64 = 1 << 30;
/// Batches in which they were evaluated.
const MOST_BATCHES: u64 = 1 << 22;
/// With more slots, each batch takes longer to simulate.
const SLOTS: u32 = 64;

/// The rows that were read so far.
#[derive(Debug, Default)]
pub(crate) struct Rows(Vec<Weight>);

/// A row that is beyond the bounds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Beyond {
    /// Where in the file it stands.
    pub(crate) at: usize,
    /// The requests before it.
    pub(crate) requests: usize,
    /// The changes before it.
    pub(crate) changes: usize,
}

#[derive(Debug)]
struct Weight {
    /// Where in the file it stands.
    at: usize,
    is_change: bool,
    prompt: u32,
    /// Tokens after the prompt.
    generated: u32,
}

impl Rows {
    pub(crate) fn request(&mut self, at: usize, prompt: u32, generated: u32) {
        self.0.push(Weight {
            at,
            is_change: false,
            prompt,
            generated,
        });
    }

    /// `tokens`: what the slot holds after it.
    pub(crate) fn change(&mut self, at: usize, tokens: u32) {
        self.0.push(Weight {
            at,
            is_change: true,
            prompt: tokens,
            generated: 0,
        });
    }

    /// The first row that is beyond the bounds.
    pub(crate) fn beyond(&self, setup: &Setup) -> Option<Beyond> {
        let batch = u64::from(setup.batch_size.min(setup.ubatch_size).max(1));
        let of_slots = u64::from((setup.parallel / SLOTS).max(1));
        let (mut tokens, mut batches) = (0_u64, 0_u64);
        let is_beyond = |weight: &Weight| {
            let (prompt, generated) = (u64::from(weight.prompt), u64::from(weight.generated));
            let alone = match setup.memory {
                Memory::Window(_) => generated,
                Memory::Full | Memory::Recurrent => 0,
            };
            tokens += prompt + generated;
            batches += (prompt.div_ceil(batch) + alone) * of_slots;
            tokens > MOST_TOKENS || batches > MOST_BATCHES
        };
        let nth = self.0.iter().position(is_beyond)?;
        let changes = self.0[..nth]
            .iter()
            .filter(|weight| weight.is_change)
            .count();
        Some(Beyond {
            at: self.0[nth].at,
            requests: nth - changes,
            changes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_bounds_is_left_out_and_what_is_before_stays() {
        let mut rows = Rows::default();
        for nth in 0..20 {
            rows.request(100 * nth, 1 << 26, 0);
            rows.change(100 * nth + 50, 0);
        }
        let usual = Setup::default();
        let beyond = |at, before| Beyond {
            at,
            requests: before,
            changes: before,
        };
        assert_eq!(rows.beyond(&usual), Some(beyond(1600, 16)));
        let small = Setup {
            ubatch_size: 8,
            ..usual.clone()
        };
        assert_eq!(rows.beyond(&small), Some(beyond(0, 0)));
        // A million requests of a conversation.
        let mut rows = Rows::default();
        (0..1_000_000).for_each(|nth| rows.request(nth, 700, 300));
        assert_eq!(rows.beyond(&usual), None);
    }
}
