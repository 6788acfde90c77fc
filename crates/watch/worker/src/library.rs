//! The interfaces of the worker to the hook: what it needs, and where events come from.

use std::ffi::OsString;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use contextpilot_control::{Engine, KeptTokens, Losses, ModelState, PrefixStore, Requests};
use contextpilot_journal::Recent;
use contextpilot_kept_tokens::{AnswerId, Answers};
use contextpilot_observer::{Note, Now, Stamp, Stored};
use contextpilot_residency::{Arrival, BufferId, Event, Prompt, RequestId, TaskId, Token};
use contextpilot_server_flags::ServerFlags;

/// The hook in a server's process. Any thread may call these functions.
pub trait Library: Sync {
    /// Marks the calling thread as one of ours until it ends: hooks do not observe its calls.
    fn enter_thread(&self);

    /// Prints one line on stderr.
    fn say(&self, line: fmt::Arguments<'_>);

    /// The time on both clocks.
    fn now(&self) -> Now;

    /// Wakes the worker, even if nothing has happened.
    fn nudge(&self);

    /// Whether hooks still observe.
    fn is_running(&self) -> bool;

    /// After a panic: hooks stop observing for good.
    fn break_down(&self);

    /// Where our code panicked last; empty if it did not.
    fn place_of_panic(&self) -> String;

    /// The engine, and what is hooked.
    fn engine(&self) -> Engine;

    /// An environment variable, as it was when the process started: the host's threads change them.
    fn variable(&self, name: &str) -> Option<OsString>;

    /// The flags with which the server was started.
    fn flags(&self) -> &ServerFlags;

    /// Whether the host prompt cache is followed.
    fn sees_host_cache(&self) -> bool;

    /// The next claim that no longer holds. Each is returned once.
    fn review_claims(&self) -> Option<Withdrawn>;

    /// A number that changes whenever something happens to the model that is not an event.
    fn model_changes(&self) -> usize;

    /// If there is a model and nothing is being loaded: how long the engine must be silent until the
    /// server counts as answering.
    fn model_settles(&self) -> Option<Duration>;

    /// From now on the server counts as answering.
    fn settle_model(&self);

    /// Whether the server loads its model, answers, or sleeps.
    fn model_state(&self) -> ModelState;

    /// Where the server listens now: see [`Stats::listening`](contextpilot_control::Stats::listening).
    fn listening(&self) -> Vec<String>;

    /// Counts of requests that were received so far.
    fn requests(&self) -> Requests;

    /// Counts of what was lost so far.
    fn losses(&self) -> Losses;

    /// The prefix store; `None`: there is none.
    fn store(&self) -> Option<PrefixStore>;

    /// Whether there is a prefix store.
    fn has_store(&self) -> bool;

    /// Whether the prefix store keeps anything because a client has asked for it (`cache_control`).
    fn store_keeps(&self) -> bool;

    /// What the prefix store has of a prompt; `None`: there is none, or that is not known.
    fn stored(&self, tokens: &[Token]) -> Option<Stored>;

    /// Prompts that got the tokens of earlier answers; `None`: none do.
    fn kept(&self) -> Option<KeptTokens>;

    /// Where answers are remembered; `None`: they are not.
    fn answers(&self) -> Option<&'static Mutex<Answers>>;

    /// An answer has ended, or pauses.
    fn keep_answer(&self, answer: AnswerId);

    /// The worker has applied all that was sent before this turn.
    fn note_turn(&self);

    /// Counts a gap: the ledger had to start from empty.
    fn count_gap(&self);

    /// Counts a line of the log file that was dropped.
    fn count_lost_log_line(&self);

    /// From now on, threads that receive a request store its id in this ring.
    fn keep_recent(&self, recent: Recent);

    /// Asks the engine for the bytes of a token. `None` if there is no model now, it does not
    /// have this token, or the engine lacks the function. Waits at most for another such call.
    fn piece(&self, token: Token) -> Option<Vec<u8>>;

    /// For injected errors in tests. Called before the worker looks for work.
    fn before_turn(&self) {}

    /// For injected errors in tests. Called before an event is applied.
    fn before_event(&self) {}
}

/// A claim that no longer holds.
pub struct Withdrawn {
    /// The message for stderr.
    pub message: String,
    /// What no longer counts as cached.
    pub lost: Lost,
}

/// What no longer counts as cached.
pub enum Lost {
    /// The content of these buffers of the host prompt cache.
    Buffers(Vec<BufferId>),
    /// Everything.
    Everything,
}

/// Something that happened, with its time. The time is taken only if there is an observer that needs it.
pub struct Item {
    /// What happened.
    pub what: What,
    /// When it happened.
    pub at: Stamp,
}

/// What happened, by who needs it.
pub enum What {
    /// An event for the ledger.
    Event(Event),
    /// A note for the observer.
    Note(Note),
    /// For tying requests to slots by their prompts.
    Waiting(Waiting),
}

/// Prompts that wait for a slot.
pub enum Waiting {
    /// A request waits with this prompt.
    Prompt {
        /// The request.
        arrival: Arrival,
        /// The number in place of the server's task number.
        task: TaskId,
        /// The prompt.
        prompt: Prompt,
    },
    /// The request no longer waits: it was served, or refused, or its client has left.
    Over {
        /// The request.
        arrival: Arrival,
        /// The request was answered with a success.
        served: bool,
    },
}

/// In what state the worker rests. This decides which events wake it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    /// How long at most; `None`: until an event wakes it.
    pub longest: Option<Duration>,
    /// Only generated tokens are expected.
    pub generating: bool,
    /// Others than the index follow the cache: the control endpoint, or routers.
    pub watched: bool,
}

/// Where the worker gets events from, in the order in which they happened.
pub trait Source {
    /// The next item, if there is one.
    fn next(&mut self) -> Option<Item>;

    /// Whether events were lost. Call this when there is no next item.
    fn close_gap(&mut self) -> bool;

    /// A request whose first event was lost.
    fn stranded(&mut self) -> Option<(Arrival, RequestId)>;

    /// Rests until there is something to do.
    fn rest(&mut self, rest: Rest);
}
