//! A token bucket that holds time.

use std::time::{Duration, Instant};

/// How much may be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// At once.
    pub burst: Duration,
    /// In each second, in the long run.
    pub each_second: Duration,
}

/// What is left of an [`Allowance`]. What is spent is known only afterwards, so there can be a debt.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    allowance: Allowance,
    /// Nanoseconds.
    left: i64,
    filled: Instant,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub fn new(allowance: Allowance, now: Instant) -> Self {
        Self {
            allowance,
            left: nanoseconds(allowance.burst),
            filled: now,
        }
    }

    /// Takes out what was spent. Returns how long it takes until the debt is paid back; zero if there is
    /// none.
    pub fn spend(&mut self, spent: Duration, now: Instant) -> Duration {
        let each_second = nanoseconds(self.allowance.each_second).max(1);
        let passed = nanoseconds(now.saturating_duration_since(self.filled));
        let gained = i128::from(passed) * i128::from(each_second) / 1_000_000_000;
        // Without a gain the time goes on counting: many short calls must add up.
        if gained > 0 {
            self.filled = self.filled.max(now);
            let left = i128::from(self.left) + gained;
            let most = nanoseconds(self.allowance.burst);
            self.left = i64::try_from(left).unwrap_or(most).min(most);
        }
        self.left = self.left.saturating_sub(nanoseconds(spent));
        if self.left >= 0 {
            return Duration::ZERO;
        }
        let wait = i128::from(self.left.unsigned_abs()) * 1_000_000_000 / i128::from(each_second);
        Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

impl Bucket {
    /// How much is missing until it is full, as of the last call of [`Self::spend`].
    #[must_use]
    pub fn missing(&self) -> Duration {
        let missing = nanoseconds(self.allowance.burst).saturating_sub(self.left);
        Duration::from_nanos(u64::try_from(missing).unwrap_or(0))
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn bucket(now: Instant) -> Bucket {
        let allowance = Allowance {
            burst: 100 * MS,
            each_second: 10 * MS,
        };
        Bucket::new(allowance, now)
    }

    #[test]
    fn a_debt_is_paid_back_at_the_rate() {
        let now = Instant::now();
        let mut bucket = bucket(now);
        assert_eq!(bucket.spend(100 * MS, now), Duration::ZERO);
        assert_eq!(bucket.spend(20 * MS, now), 2 * SECOND);
        assert_eq!(bucket.spend(Duration::ZERO, now + SECOND), SECOND);
        assert_eq!(
            bucket.spend(Duration::ZERO, now + 2 * SECOND),
            Duration::ZERO
        );
        assert_eq!(bucket.spend(10 * MS, now + 3 * SECOND), Duration::ZERO);
        // However long it was left alone, it holds the burst and no more.
        let later = now + 3600 * SECOND;
        assert_eq!(bucket.spend(101 * MS, later), SECOND / 10);
    }

    #[test]
    fn times_too_short_for_a_gain_add_up() {
        let now = Instant::now();
        let mut bucket = bucket(now);
        bucket.spend(200 * MS, now);
        let mut last = Duration::ZERO;
        for nth in 0..100_000 {
            last = bucket.spend(Duration::ZERO, now + nth * Duration::from_micros(10));
        }
        let expected = 9 * SECOND;
        assert!(
            last < expected + 2 * MS && last > expected - 2 * MS,
            "{last:?}"
        );
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let now = Instant::now();
        let most = Allowance {
            burst: Duration::MAX,
            each_second: Duration::MAX,
        };
        assert_eq!(
            Bucket::new(most, now).spend(SECOND, now + SECOND),
            Duration::ZERO
        );
        let none = Allowance {
            burst: Duration::ZERO,
            each_second: Duration::ZERO,
        };
        let mut bucket = Bucket::new(none, now);
        assert!(bucket.spend(Duration::MAX, now) > 3600 * SECOND);
        bucket.spend(Duration::MAX, now + SECOND);
        // A clock that goes back gains nothing.
        assert!(bucket.spend(Duration::ZERO, now) > 3600 * SECOND);
    }
}
