//! Events (what the engine did) and effects (what follows): the ledger's interface.

use crate::adapters::{Adapter, Compared, Scale};
use std::sync::Arc;
use std::time::Duration;

use crate::Entries;

/// A vocabulary token, or an opaque media token (negative, see [`media_token`]).
pub type Token = i32;
/// A position in a sequence (`llama_pos`). Negative bounds mean "open", as in the engine's API.
pub type Position = i32;
/// A KV sequence (`llama_seq_id`). In llama-server this *is* the slot id.
pub type SequenceId = i32;
/// A task of llama-server (`server_task::id`), unique while the process lives.
pub type TaskId = i32;
/// An evaluation that is not claimed yet: see [`Event::LaunchedUnclaimed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EvaluationId(pub u64);
/// A request id, as in the request body.
pub type RequestId = Arc<str>;

/// An engine context, named by its address while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId(pub usize);

/// A buffer in host memory that holds a saved sequence, named by its address while it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// One HTTP request as it was received, numbered by the hook. Two requests that
/// carry the same [`RequestId`] are two arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arrival(pub u64);

/// Makes the opaque token that stands for a row of media embeddings with this content hash:
/// of the row or, better, of the media that all of the rows come from.
///
/// Vocabulary tokens are never negative, so the two kinds cannot be confused;
/// equal media have equal tokens and different media differ but for one chance
/// in 2³¹ a token.
#[must_use]
pub const fn media_token(content_hash: u32) -> Token {
    (content_hash | 0x8000_0000) as Token
}

/// The token for positions that media take beyond their rows.
pub const FILLER: Token = media_token(0x6669_6c6c);

/// The tokens of media that have the same token for all rows: this token for each of
/// `positions`. If the rows share a position, fillers follow the first.
pub fn media_run(token: Token, positions: usize, shared: bool) -> impl Iterator<Item = Token> {
    let of = move |nth| if nth > 0 && shared { FILLER } else { token };
    (0..positions).map(of)
}

/// Makes the token that stands at a position of the `nth` content that was written unseen.
///
/// No vocabulary is so large, so it is no other kind of token; and two of its own kind are the
/// same but for one chance in 2³⁰.
#[must_use]
pub const fn unseen_token(nth: u32, position: Position) -> Token {
    // The last step of SplitMix64.
    let mut z = ((nth as u64) << 32) | (position as u32 as u64);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    0x4000_0000 | ((z ^ (z >> 31)) & 0x3fff_ffff) as Token
}

/// Whether it is one that [`unseen_token`] makes.
pub(crate) const fn is_unseen(token: Token) -> bool {
    token >= 0x4000_0000
}

/// Whether a token is one of the model's own: neither media nor content that was written unseen.
#[must_use]
pub const fn is_of_vocabulary(token: Token) -> bool {
    token >= 0 && !is_unseen(token)
}

/// One entry of a batch that was handed to the engine for evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The sequence the entry belongs to; an entry of several sequences is listed once for each.
    pub sequence: SequenceId,
    /// Its position there.
    pub position: Position,
    /// Its token.
    pub token: Token,
    /// Whether its output (logits or embeddings) was asked for.
    pub output: bool,
}

/// Something the engine or the server did. Order matters: events are applied in
/// the order in which the things they report happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A context was created (`llama_init_from_model`). The oldest living context
    /// is the *primary*: that of the server's main model. A younger one (a draft model's) has
    /// the same sequence ids and is ignored.
    ContextCreated {
        /// The new context.
        context: ContextId,
    },
    /// A context is *bounded*: it can go back to certain positions only, because its model has
    /// sliding-window layers or is recurrent. Sent once, after it was created.
    Bounded {
        /// The context.
        context: ContextId,
        /// Tokens that its layers look back (`llama_model_n_swa`); 0 for recurrent ones.
        window: u32,
    },
    /// A context is gone with everything it held (`llama_free`: sleep, unload, shutdown).
    ContextFreed {
        /// The context.
        context: ContextId,
    },
    /// A request with an id made the server number a task (`server_queue::get_new_id` on its thread).
    Posted {
        /// The HTTP request.
        arrival: Arrival,
        /// The number.
        task: TaskId,
        /// The request's id.
        id: RequestId,
    },
    /// The request of a numbered task says `"cache_prompt": false`, and the server
    /// forgets such prompts without a call: the slot will hold its tokens, and the server will not
    /// find them again. Sent before the task is launched; with or without an id.
    Uncached {
        /// The number.
        task: TaskId,
    },
    /// The request of a numbered task names LoRA adapters (the field `lora` of its body). Sent before
    /// the task is launched; with or without an id.
    NamedAdapters {
        /// The number.
        task: TaskId,
        /// Index of an adapter in the server's list, and how strongly it is to be applied. Of
        /// several for one index the last counts; adapters that are not named are not applied.
        scales: Vec<(i32, Scale)>,
    },
    /// These LoRA adapters are applied to what a context evaluates from now on
    /// (`llama_set_adapters_lora`). None are until this is said; it need not be said again while
    /// nothing changes, but after [`Event::OutOfStep`].
    Adapters {
        /// The context.
        context: ContextId,
        /// The adapters, in the server's order. With [`Compared::WhenNamed`] all that the server
        /// has, also those with a scale of 0.
        adapters: Vec<Adapter>,
        /// When the server compares them.
        compared: Compared,
    },
    /// The server has answered a request, or its client is gone; once for
    /// each arrival. Without a task this means that it was rejected.
    Answered {
        /// The HTTP request.
        arrival: Arrival,
        /// The request's id.
        id: RequestId,
    },
    /// A slot took a task (`launch_slot_with_task`).
    Launched {
        /// The slot.
        sequence: SequenceId,
        /// The task.
        task: TaskId,
    },
    /// Where tasks cannot be seen to be launched ([`crate::Prompts`]): a request is over, and the
    /// prompt of this task of it was never found in a slot. One may have taken it on all the same.
    Untied {
        /// The number.
        task: TaskId,
    },
    /// A slot took a task of one of several requests that wait with equal prompts. Which request
    /// it is will be known later ([`Event::Claimed`]). Until then the state of the prompt is kept
    /// under this number.
    LaunchedUnclaimed {
        /// The slot.
        sequence: SequenceId,
        /// The number, never used before.
        evaluation: EvaluationId,
        /// The task that it most likely is. For observers: the ledger does not guess.
        likely: TaskId,
    },
    /// A task claims an unclaimed evaluation of its prompt. Its request is cached if what the
    /// evaluation left is still cached, and evicted if that was lost since. Several tasks may claim
    /// one evaluation, and they may do so while it goes on.
    Claimed {
        /// The evaluation.
        evaluation: EvaluationId,
        /// The task, which was not launched otherwise.
        task: TaskId,
    },
    /// No further task will claim an evaluation.
    ClaimsClosed {
        /// The evaluation.
        evaluation: EvaluationId,
    },
    /// A batch was passed to the engine, which has not computed anything of it yet.
    Submitted {
        /// Where.
        context: ContextId,
        /// What, in the order of the batch.
        entries: Entries,
    },
    /// The batch that was submitted last to this context has been evaluated.
    Evaluated {
        /// Where.
        context: ContextId,
        /// Empty if the evaluation succeeded. If not: for every sequence of the batch, the
        /// last position that the engine now holds of it (−1: none).
        failed: Vec<(SequenceId, Position)>,
    },
    /// The first position that a bounded context has of a sequence now
    /// (`llama_memory_seq_pos_min`). Sent before the [`Event::Evaluated`] of the
    /// batch that moved it, and after [`Event::Restored`].
    Reaches {
        /// Where.
        context: ContextId,
        /// Which.
        sequence: SequenceId,
        /// The position.
        first: Position,
    },
    /// A checkpoint of a sequence in a bounded context was saved: the state that cannot be restored otherwise
    /// (with `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`).
    Checkpointed {
        /// Where.
        context: ContextId,
        /// Which.
        sequence: SequenceId,
        /// Where to.
        buffer: BufferId,
        /// The first position of the sequence.
        first: Position,
        /// The last.
        last: Position,
    },
    /// Positions `[from, to)` of a sequence were removed. Not sent when the engine refused.
    Removed {
        /// Where.
        context: ContextId,
        /// Which; negative: every sequence.
        sequence: SequenceId,
        /// First position; negative: from the beginning.
        from: Position,
        /// One past the last; negative: to the end.
        to: Position,
    },
    /// Every sequence but one was removed.
    Kept {
        /// Where.
        context: ContextId,
        /// The one.
        sequence: SequenceId,
    },
    /// Positions `[from, to)` of one sequence took the place of what another held.
    /// A copy that does not begin at the beginning obscures the other.
    Copied {
        /// Where.
        context: ContextId,
        /// Copied from.
        source: SequenceId,
        /// Copied to.
        target: SequenceId,
        /// First position; negative: from the beginning.
        from: Position,
        /// One past the last; negative: to the end.
        to: Position,
    },
    /// Positions `[from, to)` of a sequence became `[from + delta, to + delta)`.
    Shifted {
        /// Where.
        context: ContextId,
        /// Which.
        sequence: SequenceId,
        /// First position; negative: from the beginning.
        from: Position,
        /// One past the last; negative: to the end.
        to: Position,
        /// By how much, backwards if negative.
        delta: Position,
    },
    /// A sequence was changed in a way that is not modelled (`seq_div`, an
    /// unreadable state): it counts as empty until the engine empties it.
    Obscured {
        /// Where.
        context: ContextId,
        /// Which; negative: every sequence.
        sequence: SequenceId,
    },
    /// The whole memory of a context was cleared.
    Cleared {
        /// Where.
        context: ContextId,
    },
    /// A sequence was copied into host memory, whole.
    Saved {
        /// Where.
        context: ContextId,
        /// Which.
        sequence: SequenceId,
        /// Where to.
        buffer: BufferId,
    },
    /// A sequence was replaced by the content of a host buffer.
    Restored {
        /// Where.
        context: ContextId,
        /// Which.
        sequence: SequenceId,
        /// The buffer. If it is unknown, the content of the sequence is unknown.
        buffer: BufferId,
    },
    /// A host buffer, or the buffer of a checkpoint, was freed or overwritten.
    Freed {
        /// The buffer. An unknown buffer is ignored.
        buffer: BufferId,
    },
    /// A sequence was replaced by these tokens (a state file was loaded).
    Replaced {
        /// Where.
        context: ContextId,
        /// Which.
        sequence: SequenceId,
        /// The new tokens.
        tokens: Vec<Token>,
    },
    /// The engine has done nothing for this long. Releases tokens that only an
    /// evaluation could have kept (see *undecided branches* in the crate's docs).
    Quiet {
        /// The time since the last event of the engine.
        elapsed: Duration,
    },
    /// Events were lost: the ledger's state is void, and every live
    /// id is evicted. The content of a sequence is known again from its next batch on (see
    /// *written unseen* in the crate's docs).
    OutOfStep,
    /// Everybody who keeps the live ids is to forget them: each is evicted. The ledger still knows what the
    /// engine holds, so later requests are tracked as usual.
    Reset,
}

/// Why a request is no longer cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Another prompt was written over it.
    Overwritten,
    /// Its slot was erased, purged or cleared.
    Cleared,
    /// Its tokens moved or their middle was cut out.
    Shifted,
    /// Its last copy was dropped from the host prompt cache.
    DroppedFromHost,
    /// It is in a bounded context (sliding window or recurrent), which can no longer go
    /// back to it.
    OutOfReach,
    /// The slot that held it works under other LoRA adapters now, under which the server would not
    /// use it for a request that names the former ones.
    AdaptersChanged,
    /// The context that held it was freed.
    ContextFreed,
    /// It ended without ever having been cached.
    NeverCached,
    /// Events were lost, so the hook no longer claims anything.
    OutOfStep,
    /// All ids were evicted on demand.
    Reset,
    /// More requests were live than can be tracked, so the oldest was evicted.
    TooMany,
}

impl Reason {
    /// The word for logs and metrics, stable between versions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Overwritten => "overwritten",
            Self::Cleared => "cleared",
            Self::Shifted => "shifted",
            Self::DroppedFromHost => "dropped_from_host",
            Self::OutOfReach => "out_of_reach",
            Self::AdaptersChanged => "adapters_changed",
            Self::ContextFreed => "context_freed",
            Self::NeverCached => "never_cached",
            Self::OutOfStep => "out_of_step",
            Self::Reset => "reset",
            Self::TooMany => "too_many",
        }
    }
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

/// An effect: what follows from an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A request with this id is on its way: an eviction of the same id that was
    /// not told yet must not be told any more, it would strike the newcomer.
    Awaited {
        /// The id.
        id: RequestId,
    },
    /// The KV of the request's whole prompt now exists. (It is gone when the engine
    /// would have to evaluate more of it again than its last token.)
    Cached {
        /// The id.
        id: RequestId,
        /// In which slot.
        sequence: SequenceId,
        /// Prompt length, tokens.
        tokens: u32,
    },
    /// The last copy of the request's KV is gone. Never taken back.
    Evicted {
        /// The id.
        id: RequestId,
        /// Why.
        reason: Reason,
        /// Where it last stood.
        place: Place,
    },
}
