//! Decides when to send which ids.
//!
//! There are two queues: the ids that are sent in batches, and the ids that were set aside because
//! they were refused when they were sent alone. Each has its own pause, so that an id that
//! is always refused does not delay the others.

use std::time::{Duration, Instant};

use crate::MAX_IDS_PER_POST;
use crate::outbox::Outbox;
use crate::retry::{Backoff, RetryPolicy};
use crate::verdict::Next;

#[cfg(test)]
mod tests;

/// Longest wait between attempts while a caller waits for a drain.
pub(super) const DRAIN_PAUSE: Duration = Duration::from_millis(20);

/// Batches that are taken before a larger one is tried. Each that is too large costs a POST and
/// perhaps a pause, so it should not be every other one.
const BEFORE_GROWING: u32 = 8;

/// Where the ids of a POST were taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The oldest of those that wait.
    Queue,
    /// One that was set aside.
    Aside,
}

/// What happens to the ids of a POST that settled nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// They are sent again before all others.
    First,
    /// They are set aside.
    Aside,
}

/// A POST that settled nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) source: Source,
    /// The number of ids in the POST.
    pub(super) ids: usize,
    pub(super) next: Next,
    /// What a `Retry-After` asks for.
    pub(super) after: Option<Duration>,
}

/// The state of batch size and pauses. It reads no clock.
#[derive(Debug)]
pub(super) struct Pace {
    policy: RetryPolicy,
    backoff: Backoff,
    /// Ids in the next batch, at most.
    most: usize,
    /// Batches that were accepted since `most` changed.
    taken: u32,
    queue_at: Option<Instant>,
    aside_at: Option<Instant>,
    failing_since: Option<Instant>,
}

impl Pace {
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Pace {
            policy,
            backoff: Backoff::new(policy),
            most: MAX_IDS_PER_POST,
            taken: 0,
            queue_at: None,
            aside_at: None,
            failing_since: None,
        }
    }

    /// Ids in the next batch from the queue, at most.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Failures since the last POST that settled something.
    pub(super) fn failures(&self) -> u32 {
        self.backoff.failures()
    }

    /// Since when every POST has failed.
    pub(super) fn failing_since(&self) -> Option<Instant> {
        self.failing_since
    }

    /// What may be sent now; else how long to wait before the next call. `None`: until there is
    /// something to send.
    pub(super) fn next(&self, outbox: &Outbox, now: Instant) -> Result<Source, Option<Duration>> {
        let pause =
            |at: Option<Instant>| at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let queue = outbox.has_batch().then(|| pause(self.queue_at));
        let aside = (outbox.aside() > 0).then(|| pause(self.aside_at));
        match (queue, aside) {
            (Some(Duration::ZERO), _) => Ok(Source::Queue),
            (_, Some(Duration::ZERO)) => Ok(Source::Aside),
            _ => Err(queue.into_iter().chain(aside).min()),
        }
    }

    /// A drain has begun: ends the current pauses.
    pub(super) fn hurry(&mut self) {
        self.queue_at = None;
        self.aside_at = None;
    }

    /// The index settled a POST.
    pub(super) fn settled(&mut self, source: Source) {
        self.backoff.succeeded();
        self.queue_at = None;
        self.failing_since = None;
        match source {
            Source::Queue => {
                self.taken += 1;
                if self.taken >= BEFORE_GROWING {
                    self.taken = 0;
                    self.most = (self.most * 2).min(MAX_IDS_PER_POST);
                }
            }
            Source::Aside => self.aside_at = None,
        }
    }

    /// A POST settled nothing. `random` is any 64 bits; `draining`: a drain is under way.
    pub(super) fn failed(
        &mut self,
        failure: Failure,
        now: Instant,
        random: u64,
        draining: bool,
    ) -> Back {
        let at = |pause: Duration| {
            let pause = if draining {
                pause.min(DRAIN_PAUSE)
            } else {
                pause
            };
            Some(now + pause)
        };
        // Slowly, because this may go on for ever.
        let aside = self.policy.cap.max(self.policy.granted(failure.after));
        if failure.source == Source::Aside {
            self.aside_at = at(aside);
            return Back::Aside;
        }
        let divisible = failure.ids > 1;
        if failure.next != Next::Same && divisible {
            self.most = failure.ids / 2;
            self.taken = 0;
            if failure.next == Next::HalfAtOnce {
                self.queue_at = None;
                return Back::First;
            }
        }
        self.failing_since.get_or_insert(now);
        self.queue_at = at(self.backoff.failed(random, failure.after));
        if failure.next == Next::Same || divisible {
            return Back::First;
        }
        if self.aside_at.is_none_or(|due| due <= now) {
            self.aside_at = at(aside);
        }
        Back::Aside
    }
}
