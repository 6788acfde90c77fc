//! A typed, blocking client for llama-server and for the hook inside it.
//!
//! [`LlamaServer`] speaks to the server's own endpoints: is it up, which slots
//! are there, save, restore and erase them, complete a prompt and see how long
//! its first token took.
//!
//! ```no_run
//! use contextpilot_client::{Health, LlamaServer};
//!
//! let server = LlamaServer::new("http://127.0.0.1:8080")?;
//! match server.health()? {
//!     Health::Ready => println!("{} slots", server.slots()?.len()),
//!     Health::Loading => println!("not yet"),
//!     Health::Unreachable { why } => println!("unreachable: {why}"),
//! }
//! # Ok::<(), contextpilot_client::Error>(())
//! ```
//!
//! [`Control`] speaks to the hook inside a server that was started by
//! contextpilot-llama-server with `CONTEXTPILOT_LISTEN`: what is cached where,
//! what fell out of the cache and why, as numbers and as it happens. The types of
//! its answers are in [`control`].
//!
//! ```no_run
//! use contextpilot_client::{Control, control::RequestState};
//!
//! let control = Control::new("127.0.0.1:8890")?;
//! if let RequestState::Evicted { reason, by, .. } = control.request("req-1")? {
//!     println!("gone: {}, for {by:?}", reason.as_str());
//! }
//! # Ok::<(), contextpilot_client::Error>(())
//! ```
//!
//! Everything blocks, connections are kept alive, every call has a limit in
//! time, and clients can be cloned and shared between threads. An [`Error`]'s
//! text says what to do.

#![forbid(unsafe_code)]

mod answer;
mod completion;
mod control_client;
mod error;
mod events;
mod http;
mod metrics;
mod server;
mod sse;

pub use completion::{Completion, Prompt, Timings};
/// The types of the control endpoint.
pub use contextpilot_control as control;
pub use control_client::Control;
pub use error::Error;
pub use events::{Events, Update};
pub use metrics::{Metrics, Sample};
pub use server::{Erased, Health, LlamaServer, Props, Restored, Saved, ServerSlot};

/// What calls here answer.
pub type Result<T, E = Error> = std::result::Result<T, E>;
