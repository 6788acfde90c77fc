//! How fast connections are accepted.

use std::time::{Duration, Instant};

use crate::{Allowance, Bucket};

/// Lets so many connections be accepted in a second. Those that come faster wait in the system's queue, which
/// costs nothing.
#[derive(Debug)]
pub struct Pace {
    each: Duration,
    bucket: Bucket,
}

impl Pace {
    /// So many in each second in the long run, and so many at once.
    #[must_use]
    pub fn new(each_second: u32, at_once: usize) -> Self {
        let second = Duration::from_secs(1);
        let each = second / each_second.max(1);
        let most = u32::try_from(at_once).unwrap_or(u32::MAX);
        let allowance = Allowance {
            burst: each.saturating_mul(most),
            each_second: second,
        };
        Self {
            each,
            bucket: Bucket::new(allowance, Instant::now()),
        }
    }

    /// A connection was accepted: waits until the next may be.
    pub fn keep(&mut self) {
        std::thread::sleep(self.bucket.spend(self.each, Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_come_at_once_and_the_others_one_by_one() {
        let begun = Instant::now();
        let mut pace = Pace::new(100, 5);
        for _ in 0..25 {
            pace.keep();
        }
        assert!(begun.elapsed() >= Duration::from_millis(195), "{begun:?}");
    }
}
