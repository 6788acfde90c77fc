//! Facts: what the ledger says of the events that it was given.

use crate::adapters::{Adapter, Compared, Scale};
use crate::ids::{Arrival, BufferId, ContextId, EvaluationId, RequestId, SequenceId, TaskId};
use crate::token::Position;
use std::time::Duration;

/// Something that has happened, with all that follows from it.
///
/// The first three are told always. All others are told by a ledger that is
/// [observed](crate::Ledger::observed) only. Facts come in the order in which they came true. They are
/// about the primary context, except where they say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A new request with this id is on its way. An eviction of the same id that was not reported
    /// yet must no longer be reported: the index would take it for an eviction of the new request.
    Awaited {
        /// The id.
        id: RequestId,
    },
    /// The KV of the request's whole prompt now exists. The request stays cached while the engine
    /// would evaluate nothing but the last token again; in a bounded context, while it would reuse
    /// nine tenths of the prompt, rounded up, if these are fewer.
    Cached {
        /// The id.
        id: RequestId,
        /// The slot.
        sequence: SequenceId,
        /// Prompt length, tokens.
        tokens: u32,
    },
    /// The request is no longer cached, or can no longer be: see [`Reason`]. Never taken back.
    Evicted {
        /// The id.
        id: RequestId,
        /// Why it was evicted.
        reason: Reason,
        /// Where its prompt was last.
        place: Place,
        /// The request for which the engine did it, if that is known. `None` unless the ledger is observed.
        by: Option<Asker>,
    },
    /// The server numbered a task of a request.
    Posted {
        /// The request.
        arrival: Arrival,
        /// The task.
        task: TaskId,
        /// Its id, if it has one.
        id: Option<RequestId>,
    },
    /// The server will forget the prompt of a task: see [`Event::Uncached`](crate::Event::Uncached).
    Uncached {
        /// The task.
        task: TaskId,
    },
    /// The request of a task names LoRA adapters: see [`Event::NamedAdapters`](crate::Event::NamedAdapters).
    NamedAdapters {
        /// The task.
        task: TaskId,
        /// The index of each named adapter, and its scale.
        scales: Vec<(i32, Scale)>,
    },
    /// The server has answered a request, or its client is gone. The prompts whose ends only this tells
    /// ([`Self::PromptEvaluated`]) come before.
    Answered {
        /// The request.
        arrival: Arrival,
        /// Its id, if it has one.
        id: Option<RequestId>,
        /// Its client left within a prompt, which the server evaluates until it finds out:
        /// [`Self::PromptGivenUp`] and [`Self::Left`] follow.
        leaves: bool,
    },
    /// Nothing more is evaluated for a request whose client left.
    Left {
        /// The request.
        arrival: Arrival,
    },
    /// A slot took a task.
    Launched {
        /// The slot.
        sequence: SequenceId,
        /// The task: [`UNTIED`](crate::UNTIED) if it is not known.
        task: TaskId,
        /// Who asked for it.
        asker: Asker,
        /// Several requests wait for this evaluation, and `asker` is the most likely of them.
        evaluation: Option<EvaluationId>,
        /// The slot has been at work on this prompt already: only now its request is known.
        goes_on: bool,
    },
    /// A request claims an evaluation for which several have waited.
    Claimed {
        /// The evaluation.
        evaluation: EvaluationId,
        /// The request.
        asker: Asker,
        /// The slot, if it still works on the prompt.
        running: Option<SequenceId>,
    },
    /// No further request will claim this evaluation.
    ClaimsClosed {
        /// The evaluation.
        evaluation: EvaluationId,
        /// The most likely request. If none claimed it, it counts for this one.
        likely: Option<Arrival>,
    },
    /// A batch with entries of a slot's prompt has been evaluated.
    BatchEvaluated {
        /// The slot.
        sequence: SequenceId,
    },
    /// The prompt of a slot's task has been evaluated to its end.
    PromptEvaluated {
        /// The slot.
        sequence: SequenceId,
        /// Who asked for it.
        asker: Asker,
        /// Several requests wait for this evaluation.
        evaluation: Option<EvaluationId>,
        /// Its tokens.
        counts: TokenCounts,
        /// Its end asks for the first token of an answer: [`Self::FirstToken`] follows. Otherwise the
        /// prompt is that of an embedding, whose end is told when the request is over. Its last batch
        /// ended at the last [`Self::BatchEvaluated`].
        answers: bool,
    },
    /// The client of a slot's task has left, and no more of its prompt will be evaluated. [`Self::Left`] follows.
    PromptGivenUp {
        /// The slot.
        sequence: SequenceId,
        /// Who asked for it.
        asker: Asker,
        /// Several requests wait for this evaluation.
        evaluation: Option<EvaluationId>,
        /// Its tokens, as far as it was evaluated.
        counts: TokenCounts,
    },
    /// The first token of a slot's answer is there: the engine evaluates the next batch, or the request
    /// is answered. Some engines return from an evaluation before their device has done it, so its end
    /// says little.
    FirstToken {
        /// The slot.
        sequence: SequenceId,
    },
    /// A slot took over the prompt that another slot has evaluated: a further answer to it (`n`).
    TookOver {
        /// The slot that evaluated the prompt.
        source: SequenceId,
        /// The slot that took it over.
        target: SequenceId,
        /// Who asked for it.
        asker: Asker,
        /// Several requests wait for this evaluation.
        evaluation: Option<EvaluationId>,
        /// The counts of the prompt, as the engine repeats them.
        counts: TokenCounts,
        /// The launch of this further answer was not seen: it is that of the source.
        unseen: bool,
    },
    /// A slot's content was copied to the host prompt cache.
    Saved {
        /// The slot.
        sequence: SequenceId,
        /// The buffer.
        buffer: BufferId,
        /// Its tokens.
        tokens: u32,
    },
    /// A slot's content was replaced by that of an entry of the host prompt cache.
    Restored {
        /// The slot.
        sequence: SequenceId,
        /// The buffer.
        buffer: BufferId,
        /// Its tokens.
        tokens: u32,
    },
    /// A buffer, of any context, holds a checkpoint.
    Checkpointed {
        /// The buffer.
        buffer: BufferId,
        /// The last position of its sequence at that time.
        last: Position,
    },
    /// A buffer holds nothing that counts, or not any more.
    Freed {
        /// The buffer.
        buffer: BufferId,
    },
    /// A context can go back to certain positions only: see [`Event::Bounded`](crate::Event::Bounded).
    Bounded {
        /// The context, of any kind.
        context: ContextId,
        /// Tokens that the sliding-window layers look back; 0 for a recurrent model.
        window: u32,
    },
    /// A context keeps every position of its sliding windows: see [`Event::WholeWindows`](crate::Event::WholeWindows).
    WholeWindows {
        /// The context, of any kind.
        context: ContextId,
        /// Tokens that the sliding-window layers look back.
        window: u32,
    },
    /// A context, of any kind, was freed.
    ContextFreed {
        /// The context.
        context: ContextId,
        /// It was the primary one: all slots and host entries are gone with it.
        primary: bool,
    },
    /// The server applied LoRA adapters, in any context.
    Adapters {
        /// All that it has, or all that it applies: see [`Event::Adapters`](crate::Event::Adapters).
        adapters: Vec<Adapter>,
        /// The context is the primary one.
        primary: bool,
        /// For which requests it compares adapters.
        compared: Compared,
    },
    /// The engine has done nothing for this long, and what only an evaluation could have decided is decided.
    Quiet {
        /// The time since the last event of the engine.
        elapsed: Duration,
    },
    /// Events were lost: nothing is known any more of slots and of the requests that they work for.
    OutOfStep,
}

/// Who asked for a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// The number of the HTTP request ([`Arrival`](Arrival)); 0: it was not seen.
    pub number: u64,
    /// The request's id, if it has one.
    pub id: Option<RequestId>,
}

impl Asker {
    /// The HTTP request.
    #[must_use]
    pub fn arrival(&self) -> Option<Arrival> {
        (self.number > 0).then_some(Arrival(self.number))
    }
}

/// How many tokens a prompt has, and how many of them were reused and evaluated. These are the
/// engine's own `cache_n` and `prompt_n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// `reused` and `evaluated` together.
    pub tokens: u64,
    /// Tokens that the slot had before the first of the prompt's entries, and those that came from the
    /// prefix store.
    pub reused: u64,
    /// Batch entries of the slot, from the launch of the task to the end of the prompt, in batches that
    /// succeeded.
    pub evaluated: u64,
}

impl TokenCounts {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.reused += other.reused;
        self.evaluated += other.evaluated;
    }
}

/// Why a request is no longer cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Another prompt was written over its prompt.
    Overwritten,
    /// Its slot was erased, purged or cleared.
    Cleared,
    /// Its tokens were moved to other positions, or some were cut out of the middle (context shift,
    /// `--cache-reuse`).
    Shifted,
    /// Its last copy was dropped from the host prompt cache.
    DroppedFromHost,
    /// Its tokens are in a bounded context (sliding window or recurrent), which can no longer go
    /// back to them.
    OutOfReach,
    /// The slot that held its prompt works under other LoRA adapters now, so the server would not
    /// use the slot's tokens for it.
    AdaptersChanged,
    /// The context that held its prompt was freed.
    ContextFreed,
    /// The request ended, or can no longer be cached, without ever having been cached.
    NeverCached,
    /// Events were lost, so the hook no longer claims anything.
    OutOfStep,
    /// All ids were evicted on demand.
    Reset,
    /// More requests were live than can be tracked, so the oldest was evicted.
    TooMany,
}

/// Where a request's prompt is, or was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In a slot.
    Slot(SequenceId),
    /// In the host prompt cache.
    Host,
    /// Nowhere yet.
    Nowhere,
}
