//! The names of what events tell of: slots, tasks, requests, contexts, buffers.

use std::sync::Arc;

/// A KV sequence (`llama_seq_id`). In llama-server this *is* the slot id.
pub type SequenceId = i32;
/// A task of llama-server (`server_task::id`), unique while the process lives.
pub type TaskId = i32;
/// The task number for a slot that works on a prompt of an unknown request. No request has it.
pub const UNTIED: TaskId = TaskId::MIN;
/// An evaluation of a prompt whose request is not known yet: see
/// [`Event::LaunchedUnclaimed`](crate::Event::LaunchedUnclaimed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EvaluationId(pub u64);
/// A request id, as in the request body (`rid` or `request_id`).
pub type RequestId = Arc<str>;

/// An engine context (`llama_context`), named by its address. Addresses are used again after a
/// context is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId(pub usize);

/// A buffer in host memory that holds a saved sequence, named by its address. Addresses are used
/// again after a buffer is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// One HTTP request as it was received, numbered by the hook. Two requests that
/// carry the same [`RequestId`] are two arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arrival(pub u64);

/// A part of the cache that holds the tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CacheEntry {
    /// A slot.
    Slot(SequenceId),
    /// A buffer of the host prompt cache.
    Host(BufferId),
}
