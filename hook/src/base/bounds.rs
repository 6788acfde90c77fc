//! Every bound of the memory that the hook takes in a server. Those of the crates that it is made of
//! are set there; `memory.rs` lists them all.

// ---- from the host's threads to the worker ----

/// Events that may wait: several seconds of a busy server. Almost none do, as a rule.
pub(crate) const EVENTS: usize = 65_536;
/// Events that may wait while there is no worker: requests that come before the server begins to
/// load a model. A process that never does (a router) leaves it at that.
pub(crate) const EVENTS_BEFORE_WORKER: usize = 1024;
/// Entries of submitted batches, and tokens of prompts, in these events, all together.
pub(crate) const ENTRIES: usize = 4 << 20;
/// Ids that may be stranded when events find no room.
pub(crate) const STRANDED: usize = 16_384;

// ---- tables that the host's threads look into ----

/// Sockets beyond this number are not followed: their requests count as having no id.
pub(crate) const SOCKETS: usize = 65_536;
/// Buckets of eight saved buffers.
pub(crate) const BUFFER_BUCKETS: usize = 8192;
/// Counters of these by kind of address.
pub(crate) const BUFFER_KINDS: usize = 2048;
/// Contexts alive at once: a server has one, or two with a draft model.
pub(crate) const CONTEXTS: usize = 64;
/// Batches alive at once: a server has about three.
pub(crate) const BATCHES: usize = 64;
/// Entries for which an unused copy of a batch keeps room.
pub(crate) const BATCH_KEEPS: usize = 16_384;
