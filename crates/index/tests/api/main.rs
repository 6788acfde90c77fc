//! The whole API, in one thread.

mod golden;
mod state;
mod support;
