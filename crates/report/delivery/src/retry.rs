//! When to try again after a failure: capped exponential backoff with full jitter.

use std::time::Duration;

#[cfg(test)]
mod tests;

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
