//! What the prefix store asks of an engine ([`Engine`]).
//!
//! The hook implements the trait once, by a value that only unsafe code can make: the context is alive, and this thread
//! uses it while a call of the host lasts. Tests can implement it in memory.

#![forbid(unsafe_code)]

mod engine;

pub use engine::{Engine, Refusal};
