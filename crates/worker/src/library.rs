//! What the worker asks of the library that it is a part of, and where its work comes from.

use std::fmt;
use std::time::Duration;

use contextpilot_control::{Engine, Losses, ModelState, Requests};
use contextpilot_journal::Recent;
use contextpilot_observer::{Note, Now, Stamp};
use contextpilot_residency::{Arrival, BufferId, Event, Prompt, RequestId, TaskId, Token};

/// The library in a server's process. Any thread may call any of this.
pub trait Library: Sync {
    /// The calling thread is one of the library's own, for life: what it calls is not taken note of.
    fn enter_thread(&self);

    /// Says one line to people.
    fn say(&self, line: fmt::Arguments<'_>);

    /// The time on both clocks.
    fn now(&self) -> Now;

    /// Has the worker look, even if nothing has happened.
    fn nudge(&self);

    /// Whether events are still taken note of.
    fn is_running(&self) -> bool;

    /// After a panic: nothing more is taken note of.
    fn break_down(&self);

    /// Where our code panicked last; empty if nowhere.
    fn place_of_panic(&self) -> String;

    /// What is attached to.
    fn engine(&self) -> Engine;

    /// Whether copies in the host prompt cache are seen.
    fn sees_host_cache(&self) -> bool;

    /// The next claim that does not hold any more, each once.
    fn review_claims(&self) -> Option<Withdrawn>;

    /// Changes whenever something happens to the model that is no event.
    fn model_changes(&self) -> usize;

    /// A model is there and nothing is being loaded: if the engine is silent for this long, the server
    /// answers.
    fn model_settles(&self) -> Option<Duration>;

    /// The server answers, from now on.
    fn settle_model(&self);

    /// How far the server is.
    fn model_state(&self) -> ModelState;

    /// What was received so far.
    fn requests(&self) -> Requests;

    /// What went by unnoticed so far.
    fn losses(&self) -> Losses;

    /// The ledger had to start anew.
    fn count_gap(&self);

    /// A line of the log file was dropped.
    fn count_lost_log_line(&self);

    /// From now on, ids that arrive are kept there by the threads that receive them.
    fn keep_recent(&self, recent: Recent);

    /// The bytes that a token stands for, asked of the engine. `None`: there is no model now, it does not
    /// have this token, or cannot be asked. Waits for nothing longer than for another such call.
    fn piece(&self, token: Token) -> Option<Vec<u8>>;

    /// For errors on demand, in tests: before the worker looks for work, and before an event.
    fn before_turn(&self) {}

    /// See [`before_turn`](Self::before_turn).
    fn before_event(&self) {}
}

/// A claim that does not hold any more.
pub struct Withdrawn {
    /// What people are told.
    pub message: String,
    /// What was believed on its strength.
    pub lost: Lost,
}

/// What counts as cached no more.
pub enum Lost {
    /// What is in these buffers of the host prompt cache.
    Buffers(Vec<BufferId>),
    /// All of it.
    Everything,
}

/// What has happened, and when: only taken while somebody observes, and where it matters then.
pub struct Item {
    /// What.
    pub what: What,
    /// When.
    pub at: Stamp,
}

/// For the ledger, for who observes it, or for who ties requests to it.
pub enum What {
    /// For the ledger.
    Event(Event),
    /// For who observes.
    Note(Note),
    /// For who ties requests to slots by their prompts.
    Waiting(Waiting),
}

/// What the worker is told of the prompts that wait.
pub enum Waiting {
    /// A request waits with this prompt.
    Prompt {
        /// The request.
        arrival: Arrival,
        /// The number that stands for the server's.
        task: TaskId,
        /// The prompt.
        prompt: Prompt,
    },
    /// It waits no more: it was served, or refused, or its client has left.
    Over {
        /// The request.
        arrival: Arrival,
        /// It got what it asked for.
        served: bool,
    },
}

/// How the worker is about to rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    /// At most so long; `None`: as long as it takes.
    pub longest: Option<Duration>,
    /// Nothing is expected but tokens.
    pub generating: bool,
    /// Evictions are on their way to the index: a request may be using one of their ids again.
    pub telling: bool,
    /// Others than the index want to know what is cached.
    pub watched: bool,
}

/// Where the worker's work comes from, in the order in which it happened.
pub trait Source {
    /// What happened next, if anything has.
    fn next(&mut self) -> Option<Item>;

    /// Whether events were lost. Asked when there is no next one.
    fn close_gap(&mut self) -> bool;

    /// A request whose event was lost.
    fn stranded(&mut self) -> Option<(Arrival, RequestId)>;

    /// Rests until there is something to do.
    fn rest(&mut self, rest: Rest);
}
