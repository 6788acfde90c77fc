//! Finds the request id in the bytes that llama-server's HTTP threads receive.
//!
//! The hook sees each `recv` (or `SSL_read`) of a connection and hands the
//! bytes to that connection's [`ConnectionReader`]. Its [`RequestReader`] follows HTTP/1.x
//! framing the way cpp-httplib, the server's HTTP library, does, and looks for
//! the request id in the JSON body as it streams past: the top-level `rid`,
//! else `request_id`, a string of 1 to [`MAX_ID_BYTES`] bytes. On the way it reads the
//! parameters that servers act upon without a call to the engine: `cache_prompt`, `cache_salt` and `lora`. And it measures the
//! [`Sections`] of a request for a chat.
//!
//! ```text
//! recv ──► RequestReader ──► request line + headers ──► body framing ──► JSON scanner
//!                            (head, fields)             (chunked)        (json)
//! ```
//!
//! Pure: no I/O, no clock, no unsafe, nothing beyond `std`. The cost is linear
//! in the bytes and close to that of `memchr` inside long strings; the state is
//! below one KiB plus the ids found (and 4 KiB of `lora`), whatever the size of the body. What was received
//! behind a request is kept until that is answered, [`MOST_BEHIND`] bytes at most.
//!
//! If it is not certain where the server takes a request to end
//! (ambiguous framing, a message it answers with 400 before it has read the
//! body), the reader is [lost](Step::Lost) and returns nothing more
//! on that connection. Facts about the server are from cpp-httplib 0.40 and
//! 0.58, the versions inside early and late 2026 engines.
//!
//! ```
//! use contextpilot_request::{ConnectionReader, Endpoint, Identity, Step};
//!
//! let mut reader = ConnectionReader::new();
//! assert_eq!(reader.received(b"POST /v1/completions HTTP/1.1\r\nContent-Le"), Step::More);
//! let Step::Complete(request) = reader.received(b"ngth: 13\r\n\r\n{\"rid\":\"r-1\"}") else {
//!     panic!("the request is complete");
//! };
//! assert_eq!(request.identity, Identity::Id("r-1".into()));
//! assert_eq!(request.endpoint, Endpoint::Completion);
//! ```
#![forbid(unsafe_code)]

mod assembly;
mod chunked;
mod connection;
mod endpoint;
mod fields;
mod head;
mod infill;
mod json;
mod loss;
mod reader;
mod scan;
mod sent;
mod title;

pub use assembly::Assembly;
pub use connection::{ConnectionReader, MOST_BEHIND, is_head_of_chunks, is_interim};
pub use endpoint::Endpoint;
pub use head::Method;
pub use infill::{Assembled, Infill, InfillTexts};
pub use json::{
    Adapters, CacheSalt, Identity, InfillParts, MAX_ID_BYTES, MOST_PIECES, MOST_TOKENS, Numbers,
    Piece, Refusal, Sections,
};
pub use loss::Loss;
pub use reader::{Request, RequestReader, Step};
pub use sent::Sent;
pub use title::{MOST_AGENT, MOST_WORDS, Title};
