//! The files of the prefix store.
//!
//! ```text
//!  <folder>/v1/            0700, this user's
//!    4f/4f0c….kv           0600, one for each chunk: header, tokens, rows
//!    index                 which chunk stands where, as a process wrote it down; nothing depends on it
//!    digests/…             what is in large files, by what makes a file that file
//!    models/<fingerprint>  what a person calls the model; nothing depends on it
//!    origins/<fingerprint> of what the fingerprint was made; for packs, remotes, people
//!    new/<process>-<n>     what is being written
//!    remote                the process that keeps a remote alike says there how that goes
//!    ask-<machine>         a socket: the process that keeps a remote alike is asked there for what is not here
//! ```
//!
//! # Whole or ignored
//! A file is written under another name and then renamed, so no reader sees half of it. The process
//! may die at any moment: what it was writing stays in `new`, and the next start removes it (the
//! process that writes a file holds a lock on it, so others' files are left alone).
//!
//! Nothing is synchronised to the disk (`fsync`): the store is a cache. After a power cut a file may
//! lack its end or have zeros in the middle. The header has the length of the file and checksums of
//! everything in it. They are checked whenever the file is read, and what is damaged is removed.
//! The checksum is CRC-32 (ISO-HDLC): it is certain to notice damage within 32 successive bits, and
//! misses other damage once in 2³².
//!
//! # Who waits
//! [`Folder::read`] reads on the caller's thread, a [`Flow`] on others of its own, if the system gives some. Everything else happens on the thread of the [`Writer`], whose methods never wait for it.
//!
//! # Who can read it
//! Only this user. The folders above must belong to this user or root, and no other user may write
//! there (`crates/base/private-folder`). The files hold tokens and KV rows: they are as secret as the
//! prompts.

#![forbid(unsafe_code)]

mod asking;
mod beside;
mod budget;
pub mod clock;
mod digests;
mod flow;
mod folder;
mod format;
mod index;
mod list;
mod pack;
mod writer;

pub use asking::{Answers, AskedChunk, Asker, Door, Wish};
pub use budget::UsualLimit;
pub use digests::digest_of;
pub use flow::{Flow, LeftOut, Lost, Readers, Span};
pub use folder::{Folder, FolderError, Problem, ReadError};
pub use index::{Child, Index};
pub use list::{Header, Headers, Listing, Watch};
pub use pack::{Pack, PackError, PackWriter, read_header, read_whole};
pub use writer::{Done, Refusal, Writer};
