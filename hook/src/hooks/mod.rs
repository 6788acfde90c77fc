//! The functions that the host finds in place of its own.
//!
//! Each does three things: call the original, note what happened, return. Exceptions of the
//! engine pass through: every function here may unwind, and holds nothing across the original
//! that an unwinding would not put back.

mod batch;
pub(crate) mod buffers;
mod contexts;
mod evaluate;
mod http;
#[cfg_attr(target_os = "macos", path = "linker/dyld.rs")]
pub(crate) mod linker;
mod media;
mod memory;
mod prompts;
pub(crate) mod replacements;
mod server;
mod state;
mod tls;
