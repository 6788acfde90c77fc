//! Several machines, one prefix store: keeps a store's folder and a Redis alike.
//!
//! ```text
//!  server ──► folder ◄── watch ── Mirror ──► Redis ◄── Mirror ── folder ◄── server
//!        its own writer            a process of its own         another machine
//! ```
//!
//! The names of chunks are the same everywhere, so chunks can be moved by name: what servers here write is sent, and
//! what others have sent is put into the folder, where the servers see it as they see what a neighbour writes. So a
//! prompt never waits for the network, and the server's process knows nothing of it.
//!
//! # In the Redis
//! | key | what |
//! |---|---|
//! | `contextpilot:kv:1:chunk:<name>` | a string: the chunk as its file has it, with checksums |
//! | `contextpilot:kv:1:model:<fingerprint>` | a sorted set of `<name>:<size>`, scored by the order in which they were sent |
//! | `contextpilot:kv:1:sent` | a number: how many were sent |
//!
//! The Redis may evict any key at any time (`maxmemory-policy`): a name without its chunk is taken off the list by
//! whoever finds that out. A chunk that is on no list is sent again.
//!
//! # Who decides what stays
//! Here: the servers, by `CONTEXTPILOT_STORE_GB`; what was fetched counts as used when it came. There: the Redis.

#![forbid(unsafe_code)]

mod mirror;
mod remote;

pub use mirror::{Mirror, MirrorError, Moved};
pub use remote::{Remote, RemoteError, Trouble};
