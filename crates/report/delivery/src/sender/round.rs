//! One round of the sender thread: wait for a batch, post it, judge the answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_random::Random;

use super::pace::{Back, DRAIN_PAUSE, Failure, Pace, Source};
use super::shared::{SenderShared, unix_ms};
use crate::config::{Config, LogSink};
use crate::http::{Client, NoAnswer, Received};
use crate::once_per::OncePer;
use crate::verdict::{Next, Verdict};

/// A failure that lasts this long is reported on stderr. A restart of the index is shorter.
const OUTAGE: Duration = Duration::from_secs(1);
/// The shortest time between two messages about the same cause.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cause {
    /// The index named ids that it does not accept.
    Refused,
    /// No POST is accepted. The status, if there is one.
    Outage(Option<u16>),
    /// Single ids are refused, while others are accepted.
    Aside,
    Panic,
}

/// What was sent.
struct Post {
    source: Source,
    ids: Vec<Arc<str>>,
}

/// Why a POST confirmed nothing.
struct Trouble {
    /// One line.
    why: String,
    status: Option<u16>,
    next: Next,
    after: Option<Duration>,
}

impl Trouble {
    fn new(why: impl Into<String>) -> Self {
        Trouble {
            why: why.into(),
            status: None,
            next: Next::Same,
            after: None,
        }
    }
}

/// The thread's state between rounds.
pub(super) struct Round {
    config: Config,
    client: Client,
    pace: Pace,
    random: Random,
    outage_named: bool,
    speech: OncePer<Cause>,
    start: Instant,
}

impl Round {
    pub(super) fn new(config: Config, client: Client) -> Self {
        Round {
            pace: Pace::new(config.retry),
            random: Random::of_system(),
            config,
            client,
            outage_named: false,
            speech: OncePer::new(QUIET),
            start: Instant::now(),
        }
    }

    /// Returns `false` when the thread shall end.
    pub(super) fn run(&mut self, shared: &SenderShared) -> bool {
        let round = catch_unwind(AssertUnwindSafe(|| {
            let Some((post, budget)) = self.next_post(shared) else {
                return false;
            };
            match self.client.post(&request_body(&post.ids), budget) {
                Ok(answer) => self.settle(shared, &post, &answer),
                Err(NoAnswer { why, was_cut }) => {
                    let divisible = was_cut && post.ids.len() > 1;
                    let next = if divisible { Next::Half } else { Next::Same };
                    let trouble = Trouble::new(why);
                    self.failed(shared, &post, Trouble { next, ..trouble });
                }
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
    fn next_post(&mut self, shared: &SenderShared) -> Option<(Post, Duration)> {
        let mut state = shared.lock();
        // Ids that came while the thread waited for nothing else have not waited.
        let mut is_fresh = false;
        loop {
            if state.stop {
                return None;
            }
            let now = Instant::now();
            state.drain_until = state.drain_until.filter(|end| *end > now);
            let pause = match self.pace.next(&state.outbox, now) {
                Ok(_) if !is_fresh && state.drain_until.is_none() => {
                    drop(state);
                    (self.config.catch_up)();
                    is_fresh = true;
                    state = shared.lock();
                    continue;
                }
                Ok(source) => {
                    let ids = match source {
                        Source::Queue => state.outbox.take_batch(self.pace.most()),
                        Source::Aside => state.outbox.take_aside(),
                    };
                    let budget = state
                        .drain_until
                        .map_or(self.config.timeout, |end| end.duration_since(now));
                    return Some((Post { source, ids }, budget));
                }
                // The pause may have begun before the drain.
                Err(pause) if state.drain_until.is_some() => pause.map(|p| p.min(DRAIN_PAUSE)),
                Err(pause) => pause,
            };
            // If ids come into an empty queue, wake up: they need not wait as long as the ids that
            // were set aside.
            state.idle = !state.outbox.has_batch();
            is_fresh = state.idle && pause.is_none();
            state = shared.wait_for_work(state, pause);
            state.idle = false;
            if state.drain_until.is_some() && pause.is_some() {
                self.pace.hurry();
            }
        }
    }

    fn settle(&mut self, shared: &SenderShared, post: &Post, answer: &Received) {
        let ids = post.ids.len() as u64;
        match answer.verdict() {
            Verdict::Delivered => {
                self.reported(shared, post.source);
                let mut state = shared.lock();
                state.batch_settled(&post.ids);
                state.counts.sent += ids;
            }
            Verdict::NothingThere => {
                self.reported(shared, post.source);
                let mut state = shared.lock();
                state.batch_settled(&post.ids);
                state.counts.not_needed += ids;
            }
            Verdict::Refused(places) if places.iter().all(|&place| place < post.ids.len()) => {
                self.refused(shared, post.source, &places, answer.status);
            }
            Verdict::Refused(_) => {
                let why = "the index refused ids that it was not sent";
                self.failed(shared, post, Trouble::new(why));
            }
            Verdict::Retry(retry) => {
                let status = answer.status;
                let why = match retry.advice {
                    Some(advice) => format!("the index answered {status} ({advice})"),
                    None => format!("the index answered {status}"),
                };
                let trouble = Trouble {
                    why,
                    status: Some(status),
                    next: retry.next,
                    after: retry.after,
                };
                self.failed(shared, post, trouble);
            }
        }
    }

    /// The index confirmed a POST. Messages come first, so that a reader of the new counts
    /// can also see the messages about what happened before.
    fn reported(&mut self, shared: &SenderShared, source: Source) {
        self.name_overflow(shared);
        if std::mem::take(&mut self.outage_named) {
            self.line("it answers again");
        }
        self.pace.settled(source);
        let mut state = shared.lock();
        state.settled();
        state.counts.last_success_unix_ms = unix_ms();
    }

    /// The index does not accept the ids at these positions.
    fn refused(&mut self, shared: &SenderShared, source: Source, places: &[usize], status: u16) {
        let ids = places.len();
        let refused = if ids == 1 {
            "an id, so its eviction is dropped".to_owned()
        } else {
            format!("{ids} ids, so these evictions are dropped")
        };
        let text = format!(
            "it answered {status} and refused {refused}: check that CONTEXTPILOT_INDEX_URL leads to a ContextPilot index of a \
             known version"
        );
        self.say(Cause::Refused, &text);
        self.pace.settled(source);
        let mut state = shared.lock();
        state.batch_refused(places);
        state.settled();
        state.counts.rejected += ids as u64;
        let named = form(ids, "id", "ids");
        state.note_error(format!("the index refused {ids} {named} with {status}"));
    }

    /// The POST confirmed nothing, and is sent again.
    fn failed(&mut self, shared: &SenderShared, post: &Post, trouble: Trouble) {
        let Trouble {
            why,
            status,
            next,
            after,
        } = trouble;
        let failure = Failure {
            source: post.source,
            ids: post.ids.len(),
            next,
            after,
        };
        let now = Instant::now();
        let random = self.random.draw();
        let mut state = shared.lock();
        let draining = state.drain_until.is_some();
        match self.pace.failed(failure, now, random, draining) {
            Back::First => state.outbox.put_back(),
            Back::Aside => state.outbox.set_aside(),
        }
        state.collect_overflow();
        state.counts.failed_posts += 1;
        state.counts.failures_in_a_row = self.pace.failures();
        state.note_error(why.clone());
        let (waiting, aside) = (state.outbox.len(), state.outbox.aside());
        drop(state);
        match self.pace.failing_since() {
            Some(since) if now.duration_since(since) >= OUTAGE => {
                let wait = form(waiting, "eviction waits", "evictions wait");
                let text = format!("{why}; {waiting} {wait}, and will be reported when it answers");
                self.outage_named |= self.say(Cause::Outage(status), &text);
            }
            None if post.source == Source::Aside => {
                let wait = form(aside, "eviction waits, and is", "evictions wait, and are");
                let text = format!(
                    "{why} to a POST with one id, but accepts other ids; {aside} such {wait} \
                     sent again one at a time"
                );
                self.say(Cause::Aside, &text);
            }
            _ => {}
        }
    }

    /// A panic of ours must neither end delivery, nor keep the processor busy, nor
    /// happen again here. Log last: logging may panic again.
    fn panicked(&mut self, shared: &SenderShared) {
        shared.lock().counts.panics += 1;
        let recovered = catch_unwind(AssertUnwindSafe(|| {
            let post = Post {
                source: Source::Queue,
                ids: Vec::new(),
            };
            self.failed(shared, &post, Trouble::new("the sender thread panicked"));
            // The connection may be in any state after a panic.
            if let Ok(client) = Client::new(&self.config) {
                self.client = client;
            }
            self.say(
                Cause::Panic,
                "the thread that reports evictions panicked, and goes on; please report this",
            );
        }));
        if recovered.is_err() {
            shared.lock().counts.panics += 1;
        }
    }

    fn name_overflow(&self, shared: &SenderShared) {
        let mut state = shared.lock();
        state.collect_overflow();
        let dropped = std::mem::take(&mut state.unnamed_overflow);
        drop(state);
        if dropped > 0 {
            let were = match dropped {
                1 => "oldest was".to_owned(),
                many => format!("oldest {many} were"),
            };
            self.line(&format!(
                "while it did not answer, too many evictions waited, and the {were} \
                 dropped: reset the index, or it takes these prompts for cached"
            ));
        }
    }

    /// Writes one line about a cause, unless there was one within the last minute.
    fn say(&mut self, cause: Cause, text: &str) -> bool {
        match self.speech.allow(cause, self.start.elapsed()) {
            None => false,
            Some(0) => {
                self.line(text);
                true
            }
            Some(held_back) => {
                let times = form(held_back, "time", "times");
                self.line(&format!(
                    "{text} ({held_back} {times} more since last said)"
                ));
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

/// What is said of so many.
fn form<N: PartialEq + From<u8>>(
    number: N,
    singular: &'static str,
    plural: &'static str,
) -> &'static str {
    if number == N::from(1) {
        singular
    } else {
        plural
    }
}

fn request_body(ids: &[Arc<str>]) -> Vec<u8> {
    let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
    // A list of strings can always be written as JSON.
    let list = serde_json::to_string(&ids).unwrap_or_default();
    format!("{{\"request_ids\":{list}}}").into_bytes()
}
