//! The launcher: finds llama-server, sets the preload of the hook library, and
//! becomes llama-server by `exec`.
//!
//! ```text
//!  settings ok? ──► server ──► can it be hooked? ──► hook library ──► preload value ──► exec
//!   no: exit 2      no: 127     no: say why, exec the plain server
//!                   or 126          (CONTEXTPILOT_STRICT=1: exit 3)
//! ```
//!
//! Without a setting that asks for the hook only the second and the last step happen,
//! and they open no file: see [`launch()`].
//!
//! The second command, `contextpilot-llama`, is in [`companion`].

mod beside;
pub mod companion;
mod error;
mod hook_lib;
mod launch;
mod misspelt;
mod obstacle;
mod others;
mod preload;
mod say;
mod server;
mod share;
mod sys;
mod table;
mod variables;
mod watcher;

pub use launch::launch;
