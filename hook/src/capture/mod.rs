//! What a hook takes note of: small tables that lead from what the host passes to what the ledger is
//! told.
//!
//! | module | leads from … to … |
//! |---|---|
//! | [`shadow`], [`legacy`] | a batch that is being filled, to its entries |
//! | [`contexts`], [`adapters`] | a memory to its context; a context to what is applied to it |
//! | [`saved`], [`packed`] | a buffer of the host's to the sequence that was saved in it |
//! | [`sockets`], [`connections`] | a descriptor to the client's connection, and to the thread that serves it |
//! | [`requests`], [`tasks`] | what a client sends to its id; a list of tasks to their numbers |
//! | [`prompts`], [`infill`] | the same where requests are known by their prompts only |
//! | [`recent`] | an id to where it outlives a crash |
//! | [`measure`], `facts` | a context to its size and its model's name, for whoever observes |
//! | `pieces` | a token to the bytes that it stands for, for whoever asks why prompts differ |
//! | [`model`] | loads and uses of contexts to whether the server answers |

pub(crate) mod adapters;
pub(crate) mod connections;
pub(crate) mod contexts;
mod facts;
pub(crate) mod infill;
pub(crate) mod legacy;
pub(crate) mod measure;
pub(crate) mod model;
pub(crate) mod packed;
mod pieces;
pub(crate) mod prompts;
pub(crate) mod recent;
pub(crate) mod requests;
pub(crate) mod saved;
pub(crate) mod shadow;
pub(crate) mod sockets;
pub(crate) mod tasks;
