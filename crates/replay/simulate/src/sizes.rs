//! How large saved states and checkpoints are.

use contextpilot_traffic::{Memory, SizeKind, SizeSample};

/// Sizes in bytes, by the number of tokens: the recorded samples, and straight lines between and beyond
/// them. None is beyond a TiB.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    /// Ascending by tokens.
    state: Vec<(u32, u64)>,
    checkpoint: Vec<(u32, u64)>,
}

/// No saved sequence or checkpoint is larger, bytes. A damaged recording may say so, and sums of sizes must not overflow.
const MOST: u64 = 1 << 40;

impl Sizes {
    /// From the recorded samples.
    #[must_use]
    pub fn new(samples: &[SizeSample]) -> Self {
        let of = |kind| {
            let seen = samples.iter().filter(|sample| sample.kind == kind);
            let mut seen: Vec<(u32, u64)> = seen.map(|s| (s.tokens, s.bytes)).collect();
            seen.sort_unstable();
            seen.dedup_by_key(|&mut (tokens, _)| tokens);
            seen
        };
        Self {
            state: of(SizeKind::State),
            checkpoint: of(SizeKind::Checkpoint),
        }
    }

    /// Whether there is a sample of a state. Without one every state counts as 0 bytes, so `--cache-ram`
    /// hardly limits the simulated host prompt cache.
    #[must_use]
    pub fn are_known(&self) -> bool {
        !self.state.is_empty()
    }

    /// The size of a saved sequence of this many tokens, bytes.
    #[must_use]
    pub fn state(&self, tokens: u32) -> u64 {
        on_line(&self.state, tokens).min(MOST)
    }

    /// The size of one token of a saved sequence, bytes. 0: not known.
    #[must_use]
    pub fn of_token(&self) -> u64 {
        const MANY: u32 = 1 << 16;
        (self.state(2 * MANY) - self.state(MANY).min(self.state(2 * MANY))) / u64::from(MANY)
    }

    /// The size of one token's rows in the layers that keep all positions, bytes: what a checkpoint has is left out.
    #[must_use]
    pub fn of_token_without_tail(&self, memory: Memory) -> u64 {
        let (Memory::Window(window), Some(&(tokens, bytes))) = (memory, self.state.last()) else {
            return self.of_token();
        };
        let positions = u64::from(tokens.min(window)).saturating_mul(self.of_position(window));
        bytes.saturating_sub(positions) / u64::from(tokens.max(1))
    }

    /// What the layers with windows take for a position, bytes: a checkpoint has only these, and no more positions than the
    /// window. 0: there is no checkpoint.
    pub(crate) fn of_position(&self, window: u32) -> u64 {
        let checkpoints = self.checkpoint.iter();
        let each = checkpoints.map(|&(tokens, bytes)| bytes / u64::from(tokens.min(window).max(1)));
        each.min().unwrap_or(0)
    }

    /// The size of a tail after this many tokens, bytes: what a checkpoint has. Without a sample of one, a whole state, which is not
    /// smaller.
    #[must_use]
    pub fn tail(&self, tokens: u32) -> u64 {
        if self.checkpoint.is_empty() {
            self.state(tokens)
        } else {
            self.checkpoint(tokens)
        }
    }

    /// The size of a checkpoint after this many tokens, bytes.
    #[must_use]
    pub fn checkpoint(&self, tokens: u32) -> u64 {
        on_line(&self.checkpoint, tokens).min(MOST)
    }
}

fn on_line(seen: &[(u32, u64)], tokens: u32) -> u64 {
    let after = seen.partition_point(|&(at, _)| at < tokens);
    let pair = match seen {
        [] => return 0,
        // A single sample of no tokens cannot be scaled.
        [(0, bytes)] => return *bytes,
        [(at, bytes)] => return scale(*bytes, tokens, *at),
        _ => match after {
            0 => (seen[0], seen[1]),
            after if after == seen.len() => (seen[after - 2], seen[after - 1]),
            after => (seen[after - 1], seen[after]),
        },
    };
    let ((t0, b0), (t1, b1)) = pair;
    let slope = (b1 as f64 - b0 as f64) / f64::from(t1 - t0);
    let bytes = b0 as f64 + slope * (f64::from(tokens) - f64::from(t0));
    bytes.max(0.0).round() as u64
}

fn scale(bytes: u64, tokens: u32, of: u32) -> u64 {
    (u128::from(bytes) * u128::from(tokens) / u128::from(of))
        .try_into()
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_between_and_beyond_the_samples_lie_on_straight_lines() {
        let sample = |tokens, bytes| SizeSample {
            kind: SizeKind::State,
            tokens,
            bytes,
        };
        let sizes = Sizes::new(&[sample(200, 2048), sample(100, 1048), sample(300, 3048)]);
        assert_eq!(sizes.state(50), 548);
        assert_eq!(sizes.state(150), 1548);
        assert_eq!(sizes.state(1000), 10_048);
        assert_eq!(sizes.checkpoint(5), 0);
        let sizes = Sizes::new(&[sample(100, 1000)]);
        assert_eq!(sizes.state(250), 2500);
        assert!(!Sizes::default().are_known());
    }

    #[test]
    fn sizes_that_no_state_has_are_bounded() {
        let kind = SizeKind::Checkpoint;
        let (tokens, bytes) = (7, u64::MAX);
        let sizes = Sizes::new(&[SizeSample {
            kind,
            tokens,
            bytes,
        }]);
        let sum: u64 = (0..1000).map(|tokens| sizes.checkpoint(tokens)).sum();
        assert!(sum <= 1000 * MOST);
    }
}
