//! What the observer knows of slots, host buffers, contexts and requests.

use std::sync::Arc;

use contextpilot_control::{Memory, Title, UnfinishedPrompt};
use contextpilot_residency::{
    Account, Arrival, Asker, EvaluationId, SequenceId, TaskId, TokenCounts, Unfinished,
};

use crate::note::Stamp;

/// The times of a slot's last task.
#[derive(Debug, Default)]
pub(crate) struct SlotTimes {
    pub(super) launched: Stamp,
    /// `None`: no task was launched here yet.
    pub(crate) launched_unix_ms: Option<u64>,
    /// What the request of its last task is about.
    pub(crate) title: Option<Arc<Title>>,
    /// The tokens of the prompt of its last task.
    pub(super) tokens: Option<u32>,
    /// When the last batch of its prompt was evaluated.
    pub(super) evaluated: Stamp,
    /// A prompt that is evaluated, until there is the first token of its answer.
    pub(super) untimed: Option<Untimed>,
}

impl SlotTimes {
    /// How far the prompt of its last task has come, of which so much is evaluated. `usual`: tokens a second of the
    /// last prompt.
    pub(crate) fn so_far(
        &self,
        asker: Asker,
        prompt: Unfinished,
        usual: Option<f64>,
        now: Stamp,
    ) -> UnfinishedPrompt {
        let TokenCounts {
            reused, evaluated, ..
        } = prompt.counts;
        // The last batch may have been one of the prompt before.
        let to_batch = self.evaluated.seconds_since(self.launched);
        let last = to_batch.filter(|seconds| evaluated > 0 && *seconds > 0.0);
        let seconds = now.seconds_since(self.launched).unwrap_or(0.0);
        let tokens_per_second = last.map(|seconds| evaluated as f64 / seconds);
        let tokens = self.tokens.map(u64::from);
        // Old servers cut prompts that are too long.
        let left = tokens.and_then(|all| all.checked_sub(reused + evaluated));
        let takes = left.zip(tokens_per_second.or(usual));
        UnfinishedPrompt {
            number: asker.number,
            id: asker.id.as_deref().map(str::to_owned),
            reused,
            evaluated,
            in_batch: prompt.in_batch,
            client_left: false,
            tokens: tokens.filter(|_| left.is_some()),
            seconds_left: takes.map(|(left, rate)| {
                let since_batch = seconds - last.unwrap_or(0.0);
                (left as f64 / rate - since_batch).max(0.0)
            }),
            seconds,
            tokens_per_second,
        }
    }
}

/// A prompt whose evaluation is to be timed.
#[derive(Debug)]
pub(super) struct Untimed {
    /// When it was launched.
    pub(super) since: Stamp,
    pub(super) asker: Option<Arrival>,
    /// Its entry in [`Evaluations`](crate::evaluations::Evaluations).
    pub(super) entry: Option<u64>,
}

/// An evaluation of a prompt for which several requests wait. Which of them it belongs to is known
/// later. Until then it belongs to none of them, as in the ledger.
#[derive(Debug, Default)]
pub(super) struct Unclaimed {
    pub(super) claimed: bool,
    /// Its prompts that are evaluated: several if there are several answers.
    pub(super) done: Vec<Done>,
    /// Its entry in [`Evaluations`](crate::evaluations::Evaluations), if it has one.
    pub(super) entry: Option<u64>,
}

/// A prompt that is evaluated: how many tokens it took, and why.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) sequence: SequenceId,
    pub(super) counts: TokenCounts,
    pub(super) account: Option<Account>,
    pub(super) at: Stamp,
    pub(super) unix_ms: u64,
    /// Its client left before it was evaluated to its end: when it was launched.
    pub(super) given_up: Option<Stamp>,
}

/// A launch as the ledger tells it.
pub(super) struct Launch<'a> {
    pub(super) sequence: SequenceId,
    pub(super) task: TaskId,
    pub(super) asker: &'a Asker,
    pub(super) evaluation: Option<EvaluationId>,
    pub(super) goes_on: bool,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) since_unix_ms: u64,
    /// Tokens of the longest prompt with this id; `None`: none is cached yet.
    pub(super) tokens: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only its size is known yet.
    Sized,
    Sequence,
    Checkpoint,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    pub(crate) capacity: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) can_shift: Option<bool>,
    pub(crate) memory: Memory,
    pub(crate) model: Option<Arc<str>>,
    /// The tokens and bytes of the longest sequence whose size is known.
    pub(crate) measured: (u32, u64),
}

impl Context {
    pub(crate) fn bytes_per_token(&self) -> Option<f64> {
        let (tokens, bytes) = self.measured;
        (tokens > 0).then(|| bytes as f64 / f64::from(tokens))
    }
}

/// What the prompts of a context took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReuseCounts {
    pub(super) prompts: u64,
    pub(super) taken: TokenCounts,
}
