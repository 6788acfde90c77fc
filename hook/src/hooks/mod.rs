//! What is done when the host calls one of the functions of the
//! [table](crate::attach::table).
//!
//! Each body does three things: call the original, note what happened, return. Exceptions of the
//! engine pass through: every function here may unwind, and holds nothing across the original
//! that an unwinding would not put back.

pub(crate) mod adapters;
pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod contexts;
pub(crate) mod evaluate;
pub(crate) mod http;
pub(crate) mod media;
pub(crate) mod memory;
pub(crate) mod models;
pub(crate) mod prompts;
pub(crate) mod server;
pub(crate) mod state;
pub(crate) mod tls;
