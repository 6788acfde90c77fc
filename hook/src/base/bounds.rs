//! The hook's own bounds of memory. Crates set theirs themselves; `memory.rs` lists all bounds.

// ---- from the host's threads to the worker ----

/// Events that may wait: several seconds of a busy server. As a rule almost none wait.
pub(crate) const EVENTS: usize = 65_536;
/// Events that may wait while there is no worker: requests that come before the server begins to
/// load a model. The parent process in router mode never loads one, and keeps this bound.
pub(crate) const EVENTS_BEFORE_WORKER: usize = 1024;
/// Entries of submitted batches and tokens of prompts, summed over all waiting events.
pub(crate) const ENTRIES: usize = 4 << 20;
/// Ids that may be stranded when the queue is full: see [`channel`](crate::channel).
pub(crate) const STRANDED: usize = 16_384;

// ---- answers whose tokens are kept ----

/// Tokens of answers that are remembered, and of what came before them.
pub(crate) const ANSWER_TOKENS: usize = 1 << 20;

// ---- tables that the host's threads look into ----

/// Sockets beyond this number are not followed: their requests count as having no id.
pub(crate) const SOCKETS: usize = 65_536;
/// Sockets on which the server listens at once: one for each address of `--host`.
pub(crate) const LISTENERS: usize = 32;
/// Buckets of eight saved buffers.
pub(crate) const BUFFER_BUCKETS: usize = 8192;
/// Counters of saved buffers, by kind of address.
pub(crate) const BUFFER_KINDS: usize = 2048;
/// Contexts alive at once: a server has one, or two with a draft model.
pub(crate) const CONTEXTS: usize = 64;
/// Sequences of a context whose prompts are told apart, in a program that is no llama-server.
pub(crate) const SEQUENCES: usize = 1024;
/// Batches alive at once: a server has about three.
pub(crate) const BATCHES: usize = 64;
/// Entries for which an unused shadow batch keeps memory.
pub(crate) const BATCH_KEEPS: usize = 16_384;
