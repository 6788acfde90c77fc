//! What is done when the host calls one of the functions of the
//! [table](crate::attach::table).
//!
//! Each body does three things: call the original, note what happened, return. Exceptions of the
//! engine pass through: every function here may unwind, and holds nothing across the original
//! that an unwinding would not put back.

mod adapters;
mod batch;
mod buffers;
mod contexts;
mod evaluate;
mod http;
mod media;
mod memory;
mod models;
#[cfg(target_os = "macos")]
mod pairs;
mod prompts;
mod replacements;
mod server;
mod state;
mod tls;

pub(crate) use replacements::REPLACEMENTS;
