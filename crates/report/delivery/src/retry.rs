//! When to try again after a failure: capped exponential backoff with full jitter.

use std::time::Duration;

/// The shape of the backoff. A pure function of the failures so far and a
/// random number; see "Exponential Backoff And Jitter" (AWS architecture blog)
/// for why the whole delay is random: clients of an index that comes back must
/// not all come back with it at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The longest delay after the first failure.
    pub base: Duration,
    /// The longest delay after any number of failures.
    pub cap: Duration,
    /// The longest `Retry-After` that is followed. The sender of the answer may ask for
    /// years, and be wrong or replaced in a minute.
    pub longest_wish: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            base: Duration::from_millis(50),
            cap: Duration::from_secs(5),
            longest_wish: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// The longest delay after `failures` failures in a row: the base, doubled
    /// for each further one, at most the cap. Zero failures, zero delay.
    #[must_use]
    pub fn ceiling(&self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }

    /// How much of a `Retry-After` is followed.
    #[must_use]
    pub fn granted(&self, wish: Option<Duration>) -> Duration {
        wish.unwrap_or_default().min(self.longest_wish)
    }

    /// The delay after `failures` failures in a row: anything from zero to the
    /// [`ceiling`](Self::ceiling), evenly, as `random` (any 64 bits) says.
    #[must_use]
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let ceiling = u64::try_from(self.ceiling(failures).as_nanos()).unwrap_or(u64::MAX);
        let scaled = (u128::from(ceiling) * u128::from(random)) >> 64;
        Duration::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

/// Counts failures in a row, and gives the delay before the next attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    policy: RetryPolicy,
    failures: u32,
}

impl Backoff {
    /// No failure yet.
    #[must_use]
    pub fn new(policy: RetryPolicy) -> Self {
        Backoff {
            policy,
            failures: 0,
        }
    }

    /// How many failures in a row.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// An attempt failed: how long to wait before the next. A `Retry-After`
    /// wish of the server lengthens the wait, up to its own limit.
    pub fn failed(&mut self, random: u64, retry_after: Option<Duration>) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let delay = self.policy.delay(self.failures, random);
        delay.max(self.policy.granted(retry_after))
    }

    /// An attempt was answered.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_random::Random;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_delay_doubles_from_50_ms_to_5_s() {
        let policy = RetryPolicy::default();
        let ms: Vec<u128> = (0..=9).map(|n| policy.ceiling(n).as_millis()).collect();
        assert_eq!(ms, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        for failures in [32, 33, 34, 1000, u32::MAX] {
            assert_eq!(policy.ceiling(failures), Duration::from_secs(5));
        }
    }

    #[test]
    fn delays_are_spread_evenly_from_zero_to_the_longest() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.delay(1, 0), Duration::ZERO);
        assert_eq!(policy.delay(1, 1 << 63), Duration::from_millis(25));
        let most = policy.delay(9, u64::MAX);
        assert!(most > Duration::from_millis(4999) && most < Duration::from_secs(5));
        // Each quarter of the range gets about a quarter of the delays.
        let mut random = Random(7);
        let mut quarters = [0; 4];
        for _ in 0..4000 {
            let delay = policy.delay(9, random.draw()).as_millis();
            quarters[usize::try_from(delay / 1250).expect("at most 3")] += 1;
        }
        assert!(
            quarters.iter().all(|n| (900..1100).contains(n)),
            "{quarters:?}"
        );
    }

    #[test]
    fn after_a_success_the_delays_start_again() {
        let mut backoff = Backoff::new(RetryPolicy::default());
        for failures in 1..=20 {
            backoff.failed(u64::MAX, None);
            assert_eq!(backoff.failures(), failures);
        }
        backoff.succeeded();
        assert_eq!(backoff.failures(), 0);
        assert!(backoff.failed(u64::MAX, None) < Duration::from_millis(50));
    }

    #[test]
    fn retry_after_lengthens_the_delay_up_to_a_minute() {
        let mut backoff = Backoff::new(RetryPolicy::default());
        let wish = |s| Some(Duration::from_secs(s));
        assert_eq!(backoff.failed(0, wish(2)), Duration::from_secs(2));
        assert_eq!(backoff.failed(0, wish(59)), Duration::from_secs(59));
        assert_eq!(backoff.failed(0, wish(3600)), Duration::from_secs(60));
        assert_eq!(backoff.failed(0, wish(u64::MAX)), Duration::from_secs(60));
        // A wish for less than the backoff shortens nothing.
        let most = backoff.failed(u64::MAX, wish(0));
        assert!(most > Duration::from_millis(799), "{most:?}");
    }

    proptest! {
        #[test]
        fn never_beyond_the_ceiling_nor_the_cap(
            base in 0u64..10_000,
            cap in 0u64..100_000,
            failures in any::<u32>(),
            random in any::<u64>(),
        ) {
            let policy = RetryPolicy {
                base: Duration::from_millis(base),
                cap: Duration::from_millis(cap),
                ..RetryPolicy::default()
            };
            let delay = policy.delay(failures, random);
            prop_assert!(delay <= policy.ceiling(failures));
            prop_assert!(policy.ceiling(failures) <= policy.cap);
            prop_assert!(policy.ceiling(failures) <= policy.ceiling(failures.saturating_add(1)));
        }
    }
}
