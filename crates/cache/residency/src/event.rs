//! Events: what the engine and the server did.

use crate::adapters::{Adapter, Compared, Scale};
use crate::entries::Entries;
use crate::ids::{Arrival, BufferId, ContextId, EvaluationId, RequestId, SequenceId, TaskId};
use crate::rewinding::Rewinding;
use crate::token::{Position, Token};
use std::time::Duration;

/// Something that the engine or the server did. Events must be applied in the order in which the
/// things that they report happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A context was created (`llama_init_from_model`). The oldest living context is the *primary*
    /// context: that of the server's main model. Events of younger contexts (a draft model's) are
    /// ignored: they have the same sequence ids.
    ContextCreated {
        /// The new context.
        context: ContextId,
    },
    /// A context is *bounded*: it can go back to certain positions only, because its model has
    /// sliding-window layers or is recurrent. Sent once, after the context was created.
    Bounded {
        /// The context.
        context: ContextId,
        /// Tokens that the sliding-window layers look back (`llama_model_n_swa`); 0 for a recurrent
        /// model.
        window: u32,
    },
    /// The sliding-window layers of a context keep every position (`--swa-full`). A saved state of a sequence has of them
    /// the window at its end only, so a slot that got its content from one cannot go back before that, and there are no
    /// checkpoints. Sent once, after the context was created.
    WholeWindows {
        /// The context.
        context: ContextId,
        /// Tokens that these layers look back (`llama_model_n_swa`).
        window: u32,
    },
    /// The rules by which the server goes back in a bounded context, or in one with whole windows. Sent after
    /// [`Event::Bounded`] or [`Event::WholeWindows`]. Without it, the rules are the [default](Rewinding::default).
    Rewinds {
        /// The context.
        context: ContextId,
        /// The rules.
        rules: Rewinding,
    },
    /// A context was freed with everything that it held (`llama_free`: sleep, unload, shutdown).
    ContextFreed {
        /// The context.
        context: ContextId,
    },
    /// The thread of a request drew a task number (`server_queue::get_new_id`). A request with several
    /// prompts posts several tasks. For a request without an id it is sent only if there is an observer.
    Posted {
        /// The HTTP request.
        arrival: Arrival,
        /// The task number.
        task: TaskId,
        /// The request's id; `None`: it has no usable one, and the ledger does not follow it.
        id: Option<RequestId>,
    },
    /// The request of a task says `"cache_prompt": false`, and the server is one that forgets such
    /// prompts without a call: the slot will hold the tokens, but the server will not find them
    /// again. Sent before the task is launched, also for requests without an id.
    Uncached {
        /// The task number.
        task: TaskId,
    },
    /// The request of a task names LoRA adapters (the field `lora` of its body). Sent before the
    /// task is launched, also for requests without an id.
    NamedAdapters {
        /// The task number.
        task: TaskId,
        /// The index of each named adapter in the server's list, and its scale. If an index is
        /// named several times, the last counts. Adapters that are not named are not applied.
        scales: Vec<(i32, Scale)>,
    },
    /// These LoRA adapters are applied to what a context evaluates from now on
    /// (`llama_set_adapters_lora`). Before the first such event no adapter is applied. The event
    /// need not be repeated while nothing changes, except after [`Event::OutOfStep`].
    Adapters {
        /// The context.
        context: ContextId,
        /// The adapters, in the server's order. With [`Compared::WhenNamed`] these are all adapters
        /// of the server, also those with a scale of 0.
        adapters: Vec<Adapter>,
        /// For which requests the server compares adapters.
        compared: Compared,
    },
    /// The server has answered a request, or its client is gone. Sent once for each arrival. If the
    /// request posted no task, the server rejected it. For a request without an id it is sent only if
    /// there is an observer.
    Answered {
        /// The HTTP request.
        arrival: Arrival,
        /// The request's id, if it has a usable one.
        id: Option<RequestId>,
    },
    /// A slot took a task (`launch_slot_with_task`).
    Launched {
        /// The slot.
        sequence: SequenceId,
        /// The task.
        task: TaskId,
    },
    /// Only where launches are found by prompts ([`crate::Prompts`]): a request is over, and the
    /// prompt of this task of the request was never found in a slot. A slot may have worked on the
    /// task nevertheless.
    Untied {
        /// The task number.
        task: TaskId,
    },
    /// A slot took a task of one of several requests that wait with equal prompts. Which of the
    /// requests it is will be known later ([`Event::Claimed`]). Until then the state of the prompt
    /// is kept under `evaluation`.
    LaunchedUnclaimed {
        /// The slot.
        sequence: SequenceId,
        /// The number of this evaluation, never used before.
        evaluation: EvaluationId,
        /// The most likely of the waiting tasks, for display. The ledger takes from it only which
        /// adapters the tasks name, which is the same for all of them.
        likely: TaskId,
    },
    /// A task claims an unclaimed evaluation of its prompt. The task's request is cached if the
    /// evaluated prompt is still cached, and evicted if the prompt was lost since. Several tasks may
    /// claim one evaluation, also while it is still running.
    Claimed {
        /// The evaluation.
        evaluation: EvaluationId,
        /// The task. No [`Event::Launched`] was sent for it.
        task: TaskId,
    },
    /// No further task will claim this evaluation.
    ClaimsClosed {
        /// The evaluation.
        evaluation: EvaluationId,
    },
    /// A batch was passed to the engine, which has not computed anything of it yet.
    Submitted {
        /// The context.
        context: ContextId,
        /// The entries, in the order of the batch.
        entries: Entries,
    },
    /// The batch that was submitted last to this context has been evaluated.
    Evaluated {
        /// The context.
        context: ContextId,
        /// Empty if the evaluation succeeded. If it failed: each sequence of the batch with the
        /// last position that the engine now holds of it (−1: none).
        failed: Vec<(SequenceId, Position)>,
        /// It failed because the context had no room for the batch, and not for another reason.
        no_room: bool,
    },
    /// Entries of the batch that was submitted last were not evaluated: the prefix store had their KV, and it
    /// was loaded. Sent before the batch's [`Event::Evaluated`], and only if that succeeded. To the ledger
    /// they are evaluated like all others.
    Loaded {
        /// The context.
        context: ContextId,
        /// The sequence.
        sequence: SequenceId,
        /// The position of the first such entry.
        from: Position,
        /// One past the position of the last.
        to: Position,
        /// How many they are. Rows of an image may share a position.
        entries: u32,
    },
    /// The first position of a sequence that a bounded context holds now
    /// (`llama_memory_seq_pos_min`). Sent before the [`Event::Evaluated`] of the batch that moved
    /// this position, and after [`Event::Restored`] and [`Event::Replaced`].
    Reaches {
        /// The context.
        context: ContextId,
        /// The sequence.
        sequence: SequenceId,
        /// The first position.
        first: Position,
    },
    /// The server saved a checkpoint of a sequence in a bounded context: the part of the state that
    /// cannot be restored otherwise (`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`).
    Checkpointed {
        /// The context.
        context: ContextId,
        /// The sequence.
        sequence: SequenceId,
        /// The buffer of the checkpoint.
        buffer: BufferId,
        /// The first position of the sequence at that time.
        first: Position,
        /// The last position of the sequence at that time.
        last: Position,
    },
    /// Positions `[from, to)` of a sequence were removed. Not sent if the engine refused.
    Removed {
        /// The context.
        context: ContextId,
        /// The sequence; negative: every sequence.
        sequence: SequenceId,
        /// First position; negative: from the beginning.
        from: Position,
        /// One past the last; negative: to the end.
        to: Position,
    },
    /// Every sequence but one was removed (`seq_keep`).
    Kept {
        /// The context.
        context: ContextId,
        /// The sequence that was kept.
        sequence: SequenceId,
    },
    /// Positions `[from, to)` of `source` replaced the content of `target`. If the copy does not
    /// begin at position 0, the ledger claims nothing of `target`, as after [`Event::Obscured`].
    Copied {
        /// The context.
        context: ContextId,
        /// The sequence that was copied from.
        source: SequenceId,
        /// The sequence that was copied to.
        target: SequenceId,
        /// First position; negative: from the beginning.
        from: Position,
        /// One past the last; negative: to the end.
        to: Position,
    },
    /// Positions `[from, to)` of a sequence became `[from + delta, to + delta)`.
    Shifted {
        /// The context.
        context: ContextId,
        /// The sequence.
        sequence: SequenceId,
        /// First position; negative: from the beginning.
        from: Position,
        /// One past the last; negative: to the end.
        to: Position,
        /// By how many positions; negative: towards the beginning.
        delta: Position,
    },
    /// A sequence was changed in a way that is not modelled (`seq_div`, an unreadable state). The
    /// ledger claims nothing of the sequence until it is written from its first position again.
    Obscured {
        /// The context.
        context: ContextId,
        /// The sequence; negative: every sequence.
        sequence: SequenceId,
    },
    /// The whole memory of a context was cleared.
    Cleared {
        /// The context.
        context: ContextId,
    },
    /// A whole sequence was copied into host memory.
    Saved {
        /// The context.
        context: ContextId,
        /// The sequence.
        sequence: SequenceId,
        /// The buffer that it was copied to.
        buffer: BufferId,
    },
    /// A sequence was replaced by the content of a host buffer.
    Restored {
        /// The context.
        context: ContextId,
        /// The sequence.
        sequence: SequenceId,
        /// The buffer. If the ledger does not know it, the content of the sequence is unknown.
        buffer: BufferId,
    },
    /// A host buffer, or the buffer of a checkpoint, was freed or overwritten.
    Freed {
        /// The buffer. An unknown buffer is ignored.
        buffer: BufferId,
    },
    /// A sequence was replaced by these tokens (a state file was loaded).
    Replaced {
        /// The context.
        context: ContextId,
        /// The sequence.
        sequence: SequenceId,
        /// The new tokens.
        tokens: Vec<Token>,
    },
    /// With the state file that was loaded last into a sequence came a checkpoint. Sent after
    /// [`Event::Replaced`] and [`Event::Reaches`], for each in the order in which they were made.
    CheckpointLoaded {
        /// The context.
        context: ContextId,
        /// The sequence.
        sequence: SequenceId,
        /// How many tokens the sequence held when the checkpoint was made.
        tokens: u32,
        /// The first position of the sequence at that time.
        first: Position,
        /// The last position of the sequence at that time.
        last: Position,
    },
    /// The engine has done nothing for this long. Decides what only an evaluation could have kept
    /// (see *Undecided branches* in the crate's docs).
    Quiet {
        /// The time since the last event of the engine.
        elapsed: Duration,
    },
    /// Events were lost: the ledger's state is void, and every live id is evicted. The content of a
    /// sequence is known again from its next batch on (see *Written unseen* in the crate's docs).
    OutOfStep,
    /// All live ids are to be forgotten on demand: each is evicted. The ledger still knows what the
    /// engine holds, so later requests are tracked as usual.
    Reset,
}

impl Event {
    /// The request with an id that this event is about.
    #[must_use]
    pub fn request(&self) -> Option<(Arrival, &RequestId)> {
        match self {
            Self::Posted { arrival, id, .. } | Self::Answered { arrival, id } => {
                Some((*arrival, id.as_ref()?))
            }
            _ => None,
        }
    }

    /// The context that it names.
    #[must_use]
    pub fn context(&self) -> Option<ContextId> {
        match *self {
            Self::ContextCreated { context }
            | Self::Bounded { context, .. }
            | Self::WholeWindows { context, .. }
            | Self::Rewinds { context, .. }
            | Self::ContextFreed { context }
            | Self::Adapters { context, .. }
            | Self::Submitted { context, .. }
            | Self::Evaluated { context, .. }
            | Self::Loaded { context, .. }
            | Self::Reaches { context, .. }
            | Self::Checkpointed { context, .. }
            | Self::CheckpointLoaded { context, .. }
            | Self::Removed { context, .. }
            | Self::Kept { context, .. }
            | Self::Copied { context, .. }
            | Self::Shifted { context, .. }
            | Self::Obscured { context, .. }
            | Self::Cleared { context }
            | Self::Saved { context, .. }
            | Self::Restored { context, .. }
            | Self::Replaced { context, .. } => Some(context),
            _ => None,
        }
    }

    /// What the event says of the engine's work.
    #[must_use]
    pub fn engine_work(&self) -> EngineWork {
        match self {
            Self::Posted { .. }
            | Self::Uncached { .. }
            | Self::NamedAdapters { .. }
            | Self::Answered { .. }
            | Self::Quiet { .. } => EngineWork::None,
            Self::Submitted { .. } => EngineWork::Begins,
            Self::Evaluated { .. } => EngineWork::Ends,
            Self::Reaches { .. } => EngineWork::Told,
            Self::Launched { .. } => EngineWork::Awaited,
            _ => EngineWork::Other,
        }
    }
}

/// What an event says of the engine's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineWork {
    /// Nothing: the event is about requests, or comes from us.
    None,
    /// An evaluation begins.
    Begins,
    /// An evaluation has ended.
    Ends,
    /// More about the evaluation that has just ended.
    Told,
    /// None yet, but a slot took a task.
    Awaited,
    /// The engine, or the server with it, did something else.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits for the engine to rest goes by this.
    #[test]
    fn an_event_says_whether_the_engine_works() {
        let context = ContextId(1);
        let begins = Event::Submitted {
            context,
            entries: Vec::new().into(),
        };
        let ends = Event::Evaluated {
            context,
            failed: Vec::new(),
            no_room: false,
        };
        let awaited = Event::Launched {
            sequence: 0,
            task: 1,
        };
        for (event, work) in [
            (begins, EngineWork::Begins),
            (ends, EngineWork::Ends),
            (awaited, EngineWork::Awaited),
            (Event::Uncached { task: 1 }, EngineWork::None),
            (Event::Cleared { context }, EngineWork::Other),
        ] {
            assert_eq!(event.engine_work(), work, "{event:?}");
        }
    }
}
