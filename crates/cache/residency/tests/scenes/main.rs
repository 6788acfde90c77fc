//! Scenes on a server: what the ledger says of them.

mod adapters;
mod engine;
mod prompts;
mod reach;
mod requests;
mod server;
mod shape;
mod slots;
mod uncached;
mod unseen;

const NOTHING: [&str; 0] = [];
