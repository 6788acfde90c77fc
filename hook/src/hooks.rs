//! The hooks: what runs when the host calls one of the functions of the
//! [table](crate::attach::table).
//!
//! Each hook does three things: call the original, note what happened, return. Exceptions of the
//! engine pass through: every function here may unwind, and everything that it holds across the call
//! of the original is restored by unwinding.

mod adapters;
mod batch;
mod buffers;
mod contexts;
mod evaluate;
mod http;
mod lengths;
mod media;
mod memory;
mod models;
mod outputs;
#[cfg(target_os = "macos")]
mod pairs;
mod prompts;
mod purpose;
pub(crate) mod replacements;
mod rows;
mod server;
pub(crate) mod signal;
mod state;
mod tls;
