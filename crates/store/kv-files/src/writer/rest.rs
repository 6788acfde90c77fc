//! When the thread rests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use contextpilot_admission::processor_time;

/// How long the thread waits before it begins: what follows a save is the evaluation for which room was made.
const FIRST: Duration = Duration::from_millis(20);
/// How many times as long as it has worked the thread rests.
const REST: u32 = 3;
/// And the longest rest.
const LONGEST: Duration = Duration::from_millis(50);

/// Spreads the thread's work over time while others compute.
///
/// A low priority is not enough. Threads that compute together wait for each other at every step, so a
/// thread that takes one of their processors for a millisecond keeps all of them waiting. Writing 100 MB
/// at once made one token take 20 ms more; in small pieces with rests it makes each of a few dozen take a
/// little more.
///
/// Work is the thread's processor time. While it waited for a processor, or for the disk, it has rested already: beside
/// threads that spin it waits for milliseconds, and would never be done if it rested as often as long as that.
#[derive(Debug)]
pub(super) struct Rests {
    is_busy: fn() -> bool,
    since: Instant,
    /// The thread's processor time then.
    spent: Duration,
    /// When the last work ended.
    until: Option<Instant>,
}

impl Rests {
    /// `is_busy`: whether others compute now.
    pub(super) fn new(is_busy: fn() -> bool) -> Self {
        Self {
            is_busy,
            since: Instant::now(),
            spent: Duration::ZERO,
            until: None,
        }
    }

    /// The thread begins to work.
    pub(super) fn begin(&mut self, hurry: &AtomicBool) {
        let rested = self.until.is_none_or(|until| until.elapsed() >= FIRST);
        if rested && !hurry.load(Ordering::Relaxed) {
            std::thread::sleep(FIRST);
        }
        self.start();
    }

    /// A piece of the work is done. `hurry`: a caller waits for the rest of it.
    pub(super) fn rest(&mut self, hurry: &AtomicBool) {
        if !hurry.load(Ordering::Relaxed) && (self.is_busy)() {
            let worked = processor_time().saturating_sub(self.spent);
            let rest = due(worked, self.since.elapsed());
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
        }
        self.start();
        self.until = Some(self.since);
    }

    fn start(&mut self) {
        self.since = Instant::now();
        self.spent = processor_time();
    }
}

/// How long to rest after work of so much processor time, and of so much time in all.
fn due(worked: Duration, elapsed: Duration) -> Duration {
    let waited = elapsed.saturating_sub(worked);
    (worked * REST).saturating_sub(waited).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_has_rested() {
        let due = |worked, elapsed| {
            due(
                Duration::from_micros(worked),
                Duration::from_micros(elapsed),
            )
        };
        assert_eq!(due(100, 100), Duration::from_micros(300));
        assert_eq!(due(100, 150), Duration::from_micros(250));
        assert_eq!(due(100, 10_000), Duration::ZERO);
        assert_eq!(due(100_000, 100_000), LONGEST);
    }
}
