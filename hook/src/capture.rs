//! The state that hooks keep between calls: small tables that turn what the host passes into events
//! for the ledger.
//!
//! | module | what it keeps or reads |
//! |---|---|
//! | [`shadow`], [`legacy`] | the entries of a batch |
//! | [`contexts`], [`adapters`] | the context of a memory; the adapters of a context |
//! | [`saved`], [`packed`] | which host buffers hold saved sequences; the tokens in a slot's save file |
//! | [`sockets`], [`connections`] | which descriptors are clients' connections; the request that a thread serves |
//! | [`listeners`] | the sockets on which the server listens |
//! | [`requests`], [`tasks`] | a request from its bytes to its answer; the numbers in a list of tasks |
//! | [`prompts`], [`infill`] | the same, if requests are tied to slots by their prompts |
//! | [`engine_prompts`] | where prompts begin and end, if there are no requests |
//! | [`uncached`] | slots whose prompts are to be evaluated, whatever the prefix store has |
//! | `by_task` | what requests say of their prompts, until slots take these |
//! | [`salts`] | which requests share the prompts of slots in the prefix store |
//! | [`hints`] | how long the prompts of slots are worth keeping there |
//! | [`usage`] | how much of each prompt the prefix store has loaded, for its answer |
//! | [`recent`] | ids, where they outlive a crash |
//! | [`refused_ids`] | why ids could not be used |
//! | [`measure`], `facts` | a context's size and its model's name, for the control endpoint |
//! | `pieces` | the bytes of a token, for showing where prompts differ |
//! | [`model`] | whether the server has a model and answers |

pub(crate) mod adapters;
mod by_task;
pub(crate) mod connections;
pub(crate) mod contexts;
pub(crate) mod engine_prompts;
mod facts;
pub(crate) mod hints;
pub(crate) mod host_buffers;
pub(crate) mod infill;
pub(crate) mod kept;
pub(crate) mod listeners;
pub(crate) mod llama_batch;
pub(crate) mod measure;
pub(crate) mod model;
pub(crate) mod only_server;
mod pieces;
pub(crate) mod prompts;
pub(crate) mod recent;
pub(crate) mod refused_ids;
pub(crate) mod requests;
pub(crate) mod rewinding;
pub(crate) mod salts;
pub(crate) mod shadow;
pub(crate) mod slot_file;
pub(crate) mod sockets;
pub(crate) mod task_vector;
pub(crate) mod uncached;
pub(crate) mod usage;
