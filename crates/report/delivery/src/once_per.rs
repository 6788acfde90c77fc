//! Limits how often a message is repeated.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// Allows each cause once per interval. It counts what was held back, so that
/// the next message can give the number. The caller provides the time, from any steady clock. Meant
/// for a small, fixed set of causes, because it remembers each.
#[derive(Debug)]
pub struct OncePer<K> {
    interval: Duration,
    last: HashMap<K, (Duration, u64)>,
}

impl<K: Eq + Hash> OncePer<K> {
    /// Allows each cause once per `interval`.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        OncePer {
            interval,
            last: HashMap::new(),
        }
    }

    /// `Some(held_back)` if a message about the cause is allowed now, with how many were
    /// held back since the last one; `None` if it must wait.
    pub fn allow(&mut self, cause: K, now: Duration) -> Option<u64> {
        match self.last.get_mut(&cause) {
            Some((said, held_back)) if now.saturating_sub(*said) < self.interval => {
                *held_back += 1;
                None
            }
            known => {
                let held_back = known.map_or(0, |(_, n)| *n);
                self.last.insert(cause, (now, 0));
                Some(held_back)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_allowed_once_a_minute_and_the_rest_counted() {
        let second = Duration::from_secs;
        let mut once = OncePer::new(second(60));
        assert_eq!(once.allow(401, second(5)), Some(0));
        assert_eq!(once.allow(401, second(6)), None);
        assert_eq!(once.allow(404, second(6)), Some(0));
        assert_eq!(once.allow(401, second(64)), None);
        assert_eq!(once.allow(401, second(65)), Some(2));
        assert_eq!(once.allow(401, second(66)), None);
        assert_eq!(once.allow(404, second(66)), Some(0));
    }

    #[test]
    fn if_the_clock_steps_back_nothing_more_is_allowed() {
        let mut once = OncePer::new(Duration::from_secs(60));
        assert_eq!(once.allow((), Duration::from_secs(100)), Some(0));
        assert_eq!(once.allow((), Duration::from_secs(1)), None);
    }
}
