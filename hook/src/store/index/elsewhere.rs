//! When the process that keeps the folder and a remote alike is asked.

use std::time::{Duration, Instant};

/// From an answer that did not come to the next question. Each further one doubles it.
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(320);

/// When the remote may be asked for something.
#[derive(Debug)]
pub(in crate::store) struct Elsewhere {
    pause: Duration,
    not_before: Option<Instant>,
}

impl Elsewhere {
    pub(in crate::store) fn new() -> Self {
        Self {
            pause: PAUSE,
            not_before: None,
        }
    }

    pub(in crate::store) fn may_be_asked(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }

    /// An answer came in time, or it did not.
    pub(in crate::store) fn note_lateness(&mut self, is_late: bool, now: Instant) {
        if is_late {
            self.not_before = Some(now + self.pause);
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        } else {
            *self = Self::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_asked_less_and_less_often() {
        let mut elsewhere = Elsewhere::new();
        let mut now = Instant::now();
        assert!(elsewhere.may_be_asked(now));
        for seconds in [10, 20, 40, 80, 160, 320, 320] {
            elsewhere.note_lateness(true, now);
            now += Duration::from_secs(seconds - 1);
            assert!(!elsewhere.may_be_asked(now));
            now += Duration::from_secs(1);
            assert!(elsewhere.may_be_asked(now));
        }
        elsewhere.note_lateness(false, now);
        assert!(elsewhere.may_be_asked(now));
        elsewhere.note_lateness(true, now);
        assert!(elsewhere.may_be_asked(now + PAUSE));
    }
}
