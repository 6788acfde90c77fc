//! Times to first token, by how much of the prompt was reused.

use crate::prompt::Taken;

/// Upper bounds in seconds; beyond the last there is one more bucket.
pub(crate) const BOUNDS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The three values of the label `reuse`, and what they mean.
pub(crate) const CLASSES: [&str; 3] = ["none", "partial", "full"];

/// Which class a prompt is of: nine tenths reused are as good as all (a checkpoint stands some
/// tokens before the end), and less than a tenth as nothing (every prompt begins alike).
pub(crate) fn class_of(taken: Taken) -> usize {
    let tenths = (taken.reused * 10).checked_div(taken.tokens).unwrap_or(0);
    match tenths {
        0 => 0,
        1..=8 => 1,
        _ => 2,
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Histogram {
    /// Not cumulative; the last one is of what is beyond all bounds.
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
    fn bounds_are_inclusive() {
        let mut histogram = Histogram::default();
        for seconds in [0.0, 0.001, 0.0011, 60.0, 61.0] {
            histogram.observe(seconds);
        }
        assert_eq!(histogram.counts[..3], [2, 1, 0]);
        assert_eq!(histogram.counts[BOUNDS.len() - 1..], [1, 1]);
        assert_eq!(histogram.count(), 5);
    }

    #[test]
    fn classes_are_told_apart_by_tenths() {
        let class = |reused, evaluated| {
            let tokens = reused + evaluated;
            CLASSES[class_of(Taken {
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
