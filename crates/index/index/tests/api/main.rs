//! The whole API, in one thread.

mod bounds;
mod golden;
mod state;
mod stored;
mod support;
