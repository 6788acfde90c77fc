//! One round of the sender thread: wait for a batch, post it, judge the answer.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::shared::{Shared, unix_ms};
use crate::MAX_IDS_PER_POST;
use crate::config::{Config, LogSink};
use crate::http::{Answer, Client};
use crate::once_per::OncePer;
use crate::retry::{Backoff, SplitMix64};
use crate::verdict::{Verdict, classify};

/// Longest wait between attempts while somebody waits for a drain.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);
/// A failure that lasts this long is worth a line; a restart is not.
const OUTAGE: Duration = Duration::from_secs(1);
/// No cause is named to people more often than this.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cause {
    Status(u16),
    Outage,
    Panic,
}

/// What the thread keeps from round to round.
pub(super) struct Round {
    config: Config,
    client: Client,
    backoff: Backoff,
    random: SplitMix64,
    retry_at: Option<Instant>,
    failing_since: Option<Instant>,
    outage_named: bool,
    speech: OncePer<Cause>,
    start: Instant,
}

impl Round {
    pub(super) fn new(config: Config, client: Client) -> Self {
        Round {
            backoff: Backoff::new(config.retry),
            // RandomState is seeded by the system.
            random: SplitMix64(RandomState::new().build_hasher().finish()),
            config,
            client,
            retry_at: None,
            failing_since: None,
            outage_named: false,
            speech: OncePer::new(QUIET),
            start: Instant::now(),
        }
    }

    /// Returns `false` when the thread shall end.
    pub(super) fn run(&mut self, shared: &Shared) -> bool {
        let round = catch_unwind(AssertUnwindSafe(|| {
            let Some((batch, budget)) = self.next_batch(shared) else {
                return false;
            };
            let outcome = self.client.post(&request_body(&batch), budget);
            match outcome {
                Ok(answer) => self.settle(shared, &batch, &answer),
                Err(why) => self.failed(shared, why, None),
            }
            true
        }));
        shared.progress.notify_all();
        round.unwrap_or_else(|_| {
            self.panicked(shared);
            true
        })
    }

    /// Waits until there is something to send and the time to send it.
    fn next_batch(&mut self, shared: &Shared) -> Option<(Vec<Arc<str>>, Duration)> {
        let mut state = shared.lock();
        loop {
            if state.stop {
                return None;
            }
            let now = Instant::now();
            state.drain_until = state.drain_until.filter(|end| *end > now);
            let empty = state.outbox.is_empty();
            let pause = match self.retry_at {
                Some(at) => {
                    let pause = at.saturating_duration_since(now);
                    match state.drain_until {
                        Some(_) => pause.min(DRAIN_PAUSE),
                        None => pause,
                    }
                }
                None => Duration::ZERO,
            };
            if !empty && pause.is_zero() {
                let budget = state
                    .drain_until
                    .map_or(self.config.timeout, |end| end.duration_since(now));
                return Some((state.outbox.take_batch(MAX_IDS_PER_POST), budget));
            }
            state.idle = empty;
            state = shared.wait_for_work(state, (!empty).then_some(pause));
            state.idle = false;
            if state.drain_until.is_some() && !empty {
                // Whatever was left of the pause, a drain has no time for it.
                self.retry_at = None;
            }
        }
    }

    fn settle(&mut self, shared: &Shared, batch: &[Arc<str>], answer: &Answer) {
        let status = answer.status;
        let ids = batch.len() as u64;
        match classify(status, &answer.body, answer.retry_after.as_deref()) {
            Verdict::Delivered => {
                self.told(shared);
                let mut state = shared.lock();
                state.batch_settled(batch);
                state.counts.sent += ids;
            }
            Verdict::NothingThere => {
                self.told(shared);
                let mut state = shared.lock();
                state.batch_settled(batch);
                state.counts.not_needed += ids;
            }
            Verdict::Rejected(advice) => {
                let text =
                    format!("it answered {status}, so {ids} evictions are dropped: {advice}");
                self.say(Cause::Status(status), &text);
                self.settled();
                let mut state = shared.lock();
                state.batch_settled(batch);
                state.settled();
                state.counts.rejected += ids;
                state.note_error(format!("the index answered {status}"));
            }
            Verdict::Retry(after) => {
                self.failed(shared, format!("the index answered {status}"), after);
            }
        }
    }

    /// The index confirmed a POST. Messages first: whoever sees the new counts
    /// has been told what went before.
    fn told(&mut self, shared: &Shared) {
        self.name_overflow(shared);
        if std::mem::take(&mut self.outage_named) {
            self.line("it answers again");
        }
        self.settled();
        let mut state = shared.lock();
        state.settled();
        state.counts.last_success_unix_ms = unix_ms();
    }

    fn settled(&mut self) {
        self.backoff.succeeded();
        self.retry_at = None;
        self.failing_since = None;
    }

    /// The POST must be tried again.
    fn failed(&mut self, shared: &Shared, why: String, retry_after: Option<Duration>) {
        let now = Instant::now();
        let delay = self.backoff.failed(self.random.next(), retry_after);
        let mut state = shared.lock();
        let pause = match state.drain_until {
            Some(_) => delay.min(DRAIN_PAUSE),
            None => delay,
        };
        self.retry_at = Some(now + pause);
        state.outbox.put_back();
        state.collect_overflow();
        state.counts.failed_posts += 1;
        state.counts.failures_in_a_row = self.backoff.failures();
        state.note_error(why.clone());
        let waiting = state.outbox.len();
        drop(state);
        let since = *self.failing_since.get_or_insert(now);
        if now.duration_since(since) >= OUTAGE {
            let text = format!("{why}; {waiting} evictions wait and will be told later");
            self.outage_named |= self.say(Cause::Outage, &text);
        }
    }

    /// A bug of ours must not end delivery, nor keep the processor busy, nor
    /// strike again here: what speaks comes last.
    fn panicked(&mut self, shared: &Shared) {
        shared.lock().counts.panics += 1;
        let recovered = catch_unwind(AssertUnwindSafe(|| {
            self.failed(shared, "the sender thread panicked".to_owned(), None);
            // Its connection may be in any state.
            if let Ok(client) = Client::new(&self.config) {
                self.client = client;
            }
            self.say(
                Cause::Panic,
                "the thread that tells it panicked and goes on; please report this",
            );
        }));
        if recovered.is_err() {
            shared.lock().counts.panics += 1;
        }
    }

    fn name_overflow(&self, shared: &Shared) {
        let mut state = shared.lock();
        state.collect_overflow();
        let dropped = std::mem::take(&mut state.unnamed_overflow);
        drop(state);
        if dropped > 0 {
            self.line(&format!(
                "while it could not be told, {dropped} evictions were dropped, the oldest of too \
                 many: reset it, so that it does not believe in what is gone"
            ));
        }
    }

    /// One line about a cause, unless it was named within the last minute.
    fn say(&mut self, cause: Cause, text: &str) -> bool {
        match self.speech.allow(cause, self.start.elapsed()) {
            None => false,
            Some(0) => {
                self.line(text);
                true
            }
            Some(held_back) => {
                self.line(&format!("{text} ({held_back} times more since last said)"));
                true
            }
        }
    }

    fn line(&self, text: &str) {
        let log: &LogSink = &self.config.log;
        log(&format!(
            "[ContextPilot] Index {}: {text}",
            self.config.endpoint
        ));
    }
}

fn request_body(ids: &[Arc<str>]) -> Vec<u8> {
    let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
    serde_json::json!({ "request_ids": ids })
        .to_string()
        .into_bytes()
}
