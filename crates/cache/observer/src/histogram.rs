//! Times to first token, by how much of the prompt was reused.

use contextpilot_residency::TokenCounts;

/// The upper bounds of the buckets, seconds. One more bucket has no bound.
pub(crate) const BOUNDS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The values of the label `reuse`: see [`class_of`].
pub(crate) const CLASSES: [&str; 3] = ["none", "partial", "full"];

/// The class of a prompt, an index into [`CLASSES`]. `full` means nine tenths or more, because a
/// checkpoint is some tokens before the end. `none` means less than a tenth, because all prompts begin
/// alike.
pub(crate) fn class_of(taken: TokenCounts) -> usize {
    let tenths = (taken.reused * 10).checked_div(taken.tokens).unwrap_or(0);
    match tenths {
        0 => 0,
        1..=8 => 1,
        _ => 2,
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Histogram {
    /// Counts for each bucket, not cumulative. The last bucket is beyond all bounds.
    pub(crate) counts: [u64; BOUNDS.len() + 1],
    pub(crate) sum: f64,
}

impl Histogram {
    pub(crate) fn observe(&mut self, seconds: f64) {
        let bucket = BOUNDS.partition_point(|&bound| bound < seconds);
        self.counts[bucket] += 1;
        self.sum += seconds;
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_equal_to_a_bound_counts_in_its_bucket() {
        let mut histogram = Histogram::default();
        for seconds in [0.0, 0.001, 0.0011, 60.0, 61.0] {
            histogram.observe(seconds);
        }
        assert_eq!(histogram.counts[..3], [2, 1, 0]);
        assert_eq!(histogram.counts[BOUNDS.len() - 1..], [1, 1]);
        assert_eq!(histogram.count(), 5);
    }

    #[test]
    fn a_prompt_is_none_below_a_tenth_reused_and_full_from_nine_tenths() {
        let class = |reused, evaluated| {
            let tokens = reused + evaluated;
            CLASSES[class_of(TokenCounts {
                tokens,
                reused,
                evaluated,
            })]
        };
        assert_eq!(class(0, 80), "none");
        assert_eq!(class(1, 80), "none");
        assert_eq!(class(10, 90), "partial");
        assert_eq!(class(89, 11), "partial");
        assert_eq!(class(90, 10), "full");
        assert_eq!(class(0, 0), "none");
    }
}
