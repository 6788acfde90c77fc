//! The errors of forecasts.

use std::collections::VecDeque;

/// The differences between forecast and reused tokens, of the last 1,000 requests.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    last: VecDeque<u64>,
    /// All requests so far.
    count: u64,
    expected: u64,
    reused: u64,
}

const KEPT: usize = 1000;

impl Errors {
    pub(crate) fn note(&mut self, expected: u64, reused: u64) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(expected.abs_diff(reused));
        self.count += 1;
        self.expected = self.expected.saturating_add(expected);
        self.reused = self.reused.saturating_add(reused);
    }

    /// How many requests were compared.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Forecast tokens and reused tokens, summed over all requests.
    #[must_use]
    pub fn tokens(&self) -> (u64, u64) {
        (self.expected, self.reused)
    }

    /// A quantile of the differences of the last requests, in tokens; `None`
    /// before the first request.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let mut sorted: Vec<u64> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_last_thousand() {
        let mut errors = Errors::default();
        assert_eq!(errors.quantile(0.5), None);
        errors.note(10, 7);
        assert_eq!(
            (errors.quantile(0.5), errors.quantile(0.99)),
            (Some(3), Some(3))
        );
        for error in 0..1000 {
            errors.note(error, 0);
        }
        assert_eq!(
            (errors.quantile(0.5), errors.quantile(0.99)),
            (Some(499), Some(989))
        );
        assert_eq!(errors.count(), 1001);
    }
}
