//! Several machines, one prefix store: keeps a store's folder and a remote alike. A remote is a Redis, or a bucket of a
//! server that speaks S3.
//!
//! ```text
//!  server ──► folder ◄── watch ── Mirror ──► Remote ◄── Mirror ── folder ◄── server
//!        its own writer            a process of its own         another machine
//! ```
//!
//! The names of chunks are the same everywhere, so chunks can be moved by name: what servers here write is sent, and
//! what others have sent is put into the folder, where the servers see it as they see what a neighbour writes. The
//! server's process knows nothing of the network.
//!
//! What a prompt wants and the folder does not have, because it has left the folder or is still to come, a server asks for
//! through a socket in the folder. A [`Supplier`] fetches that at once. It knows what is there, so a prompt of which nothing
//! is there waits for no network; and a server that asks waits no longer for a chunk than evaluating it would take.
//!
//! # In a Redis
//! | key | what |
//! |---|---|
//! | `contextpilot:kv:1:chunk:<name>` | a string: the chunk as its file has it, with checksums |
//! | `contextpilot:kv:1:model:<fingerprint>` | a sorted set of `<name>:<size>`, scored by the Redis's own time (microseconds) when they were sent |
//! | `contextpilot:kv:1:models` | a sorted set of fingerprints, scored by the time when something was sent last |
//! | `contextpilot:kv:1:epoch` | drawn by a process that finds none: it tells all that the Redis has lost its keys |
//!
//! The Redis may evict any key at any time (`maxmemory-policy`): a name without its chunk is taken off the list by
//! a process that finds that out. A chunk that is on no list is sent again.
//!
//! # In a bucket
//! | object | what |
//! |---|---|
//! | `<prefix>/contextpilot/kv/1/<fingerprint>/<name>` | the chunk as its file has it, with checksums |
//! | `<prefix>/contextpilot/kv/1/news` | an epoch, and what was sent last, at most 1,024 lines of `<fingerprint>:<name>:<size>` |
//!
//! Requests cost money, and a `LIST` costs what a dozen `GET`s cost. So the news are read every five seconds, unless
//! they are still of the version that is known (`If-None-Match`): one `GET` for all models. All of a model's objects are
//! listed (a `LIST` for each thousand) at the beginning, after an error, and at most every five minutes if there were
//! news. That finds what the news lack: two machines that write them at the same moment lose one's lines, which it
//! writes once more when it sees that, and more than 1,024 chunks have no room. So the news may be wrong, and a list
//! never is: nothing has to be locked, and no server needs conditional writes.
//!
//! Which objects expire is a rule of the bucket. A process that finds that a chunk is gone does not ask for it again before a
//! list shows it, whatever the news tell.
//!
//! Requests are signed by `rusty-s3` (BSD-2-Clause), and sent by the HTTP client and the TLS that the companion command
//! has anyway: with the reader of XML that is 14 crates more, which compute hashes and dates. `object_store` 0.12 is 38
//! more: another HTTP client, HTTP/2, `futures`, `tracing`, for an async interface that a loop which asks one thing at a
//! time does not need.
//!
//! # Who is trusted
//! The remote is not. Each answer has a bound in bytes and in time (the client `redis` 1.2 has none in bytes, so the Redis is
//! asked by a small reader of our own), and `mirror` takes a chunk only if its size, its name and all
//! that it continues are as they must be.
//!
//! # Who decides what stays
//! Here: the servers, by `CONTEXTPILOT_STORE_GB`; what was fetched counts as used when it came. There: the Redis, or the
//! bucket's rules.

#![forbid(unsafe_code)]

mod known;
mod mirror;
mod remote;
mod supply;

pub use known::Known;
pub use mirror::{Mirror, MirrorError, Moved, Turn};
pub use remote::{Remote, RemoteError, Trouble};
pub use supply::Supplier;
