//! When the thread rests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the thread waits before it begins: what follows a save is the evaluation for which room was made.
const FIRST: Duration = Duration::from_millis(20);
/// How many times as long as it has worked the thread rests.
const REST: u32 = 3;
/// And the longest rest: work that took longer was interrupted by others.
const LONGEST: Duration = Duration::from_millis(50);

/// Spreads the thread's work over time while others compute.
///
/// A low priority is not enough. Threads that compute together wait for each other at every step, so a
/// thread that takes one of their processors for a millisecond keeps all of them waiting. Writing 100 MB
/// at once made one token take 20 ms more; in small pieces with rests it makes each of a few dozen take a
/// little more.
#[derive(Debug)]
pub(super) struct Rests {
    is_busy: fn() -> bool,
    since: Instant,
    /// When the last work ended.
    until: Option<Instant>,
}

impl Rests {
    /// `is_busy`: whether others compute now.
    pub(super) fn new(is_busy: fn() -> bool) -> Self {
        Self {
            is_busy,
            since: Instant::now(),
            until: None,
        }
    }

    /// The thread begins to work.
    pub(super) fn begin(&mut self, hurry: &AtomicBool) {
        let rested = self.until.is_none_or(|until| until.elapsed() >= FIRST);
        if rested && !hurry.load(Ordering::Relaxed) {
            std::thread::sleep(FIRST);
        }
        self.since = Instant::now();
    }

    /// A piece of the work is done. `hurry`: somebody waits for the rest of it.
    pub(super) fn rest(&mut self, hurry: &AtomicBool) {
        if !hurry.load(Ordering::Relaxed) && (self.is_busy)() {
            std::thread::sleep((self.since.elapsed() * REST).min(LONGEST));
        }
        self.since = Instant::now();
        self.until = Some(self.since);
    }
}
