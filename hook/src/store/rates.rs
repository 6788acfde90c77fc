//! How long this engine takes for a token: to evaluate it, to copy it out, and to copy it in. That decides
//! what is worth copying.

use std::time::Duration;

use contextpilot_kv_store::worth;

/// Fewer tokens say more about the call than about a token.
const LEAST_EVALUATED: usize = 32;
const LEAST_COPIED: usize = 256;

/// What was measured of one context.
#[derive(Debug, Default)]
pub(super) struct Rates {
    evaluating: Mean,
    saving: Mean,
    loading: Mean,
}

impl Rates {
    /// So many tokens were evaluated by one call.
    pub(super) fn evaluated(&mut self, tokens: usize, took: Duration) {
        if tokens >= LEAST_EVALUATED {
            self.evaluating.add(tokens, took);
        }
    }

    /// A sequence of so many tokens was copied out.
    pub(super) fn saved(&mut self, tokens: usize, took: Duration) {
        if tokens >= LEAST_COPIED {
            self.saving.add(tokens, took);
        }
    }

    /// A sequence of so many tokens was put together and copied in.
    pub(super) fn loaded(&mut self, tokens: usize, took: Duration) {
        if tokens >= LEAST_COPIED {
            self.loading.add(tokens, took);
        }
    }

    /// How long evaluating so many tokens takes. `None`: it is not known yet.
    pub(super) fn evaluating(&self, tokens: usize) -> Option<Duration> {
        let token = self.evaluating.0?;
        Duration::try_from_secs_f64(token * tokens as f64).ok()
    }

    /// Copying a sequence out is worth it if this many times the tokens that would be lost are as many as it
    /// has.
    pub(super) fn worth_saving(&self) -> usize {
        self.evaluating.over(&self.saving)
    }

    /// Loading a sequence is worth it if this many times the tokens that are gained are as many as it has.
    pub(super) fn worth_loading(&self) -> usize {
        self.evaluating.over(&self.loading)
    }
}

/// Seconds a token, of the last few calls above all.
#[derive(Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn add(&mut self, tokens: usize, took: Duration) {
        const WEIGHT: f64 = 0.125;
        let now = took.as_secs_f64() / tokens as f64;
        self.0 = Some(self.0.map_or(now, |mean| mean + (now - mean) * WEIGHT));
    }

    fn over(&self, other: &Self) -> usize {
        worth::ratio(self.0, other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_is_not_measured_is_as_on_a_fast_card() {
        let mut rates = Rates::default();
        assert_eq!((rates.worth_saving(), rates.worth_loading()), (64, 64));
        rates.evaluated(31, 100 * MS);
        rates.saved(255, MS);
        assert_eq!(rates.worth_saving(), 64);
        assert_eq!(rates.evaluating(256), None);
    }

    #[test]
    fn slow_evaluation_makes_small_gains_worth_it() {
        let mut rates = Rates::default();
        rates.evaluated(100, 200 * MS);
        rates.saved(1_000, 5 * MS);
        rates.loaded(1_000, 10 * MS);
        assert_eq!(rates.evaluating(256), Some(512 * MS));
        assert_eq!((rates.worth_saving(), rates.worth_loading()), (400, 200));
        // A device that goes on after the call seems to be as fast as light.
        let mut rates = Rates::default();
        rates.evaluated(1_000, MS / 10);
        rates.saved(1_000, 5 * MS);
        assert_eq!(rates.worth_saving(), 64);
        rates.saved(1_000, Duration::ZERO);
        assert_eq!(rates.worth_loading(), 64);
    }
}
