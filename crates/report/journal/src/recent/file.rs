//! The file of a [`Recent`]: in shared memory, in a folder that only this user can write to.
//!
//! ```text
//! /dev/shm/contextpilot-llama-<user>/<state folder>-<identity>-<number>.recent
//! slots | path of the state folder
//! ```
//! The journal of the same number is in the state folder. The process that holds its lock may use
//! this file, too. A user may have several state folders, but has one such folder in memory. So the name
//! has a digest of the state folder's path, and the file the path itself.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use contextpilot_private_folder::PrivateFolder;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};

use super::{BYTES, Map, Recent};
use crate::Identity;
use crate::file::{self, Fault, Opened};
use crate::identity::Digest;

const SUFFIX: &str = ".recent";
/// The longest path of a state folder, bytes. Linux has no longer paths.
const MAX_PATH: u64 = 4096;
/// The most files that are looked at, so that a full folder does not delay the start.
const MOST: usize = 10_000;

/// The rings beside the journals of one state folder: one for each identity and number.
pub(crate) struct Rings {
    memory: PrivateFolder,
    state: PathBuf,
    map: Map,
    /// The digest of the state folder's path.
    digest: u128,
}

/// The ring of this process. The file is locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) recent: Recent,
    memory: PrivateFolder,
    name: String,
    file: File,
}

/// The ring that a dead process left.
pub(crate) struct Left {
    pub(crate) ids: Vec<Arc<str>>,
    name: String,
    _lock: File,
}

impl Rings {
    /// `None`: there is no private folder in shared memory.
    pub(crate) fn new(state: &PrivateFolder, map: Map) -> Option<Self> {
        let path = state.path().canonicalize().ok()?;
        let mut digest = Digest::new();
        digest.write(path.as_os_str().as_bytes());
        Some(Self {
            memory: PrivateFolder::in_memory()?,
            state: path,
            map,
            digest: digest.0,
        })
    }

    fn name(&self, identity: &Identity, number: u32) -> String {
        let digest = self.digest;
        format!("{digest:032x}-{identity}-{number}{SUFFIX}")
    }

    /// The ring that the last process with the journal of this number left, if any. A file that
    /// is no ring of ours is removed.
    pub(crate) fn left(&self, identity: &Identity, number: u32, log: fn(&str)) -> Option<Left> {
        let name = self.name(identity, number);
        let why = match file::open(&self.memory, &name, false) {
            Ok(Opened::File(file, metadata)) if metadata.len() <= BYTES as u64 + MAX_PATH => {
                let mut bytes = Vec::new();
                (&file).take(metadata.len()).read_to_end(&mut bytes).ok()?;
                // If the path is not there, the process ended while it made the file.
                let whole = bytes.get(BYTES..) == Some(self.state.as_os_str().as_bytes());
                bytes.truncate(if whole { BYTES } else { 0 });
                return Some(Left {
                    ids: super::read(&bytes, identity),
                    name,
                    _lock: file,
                });
            }
            Ok(Opened::File(..)) => "it is larger than any of ours",
            Err(Fault::SetAside(why)) => why,
            // There is none, or it cannot be read, or a process holds it that lives on although its state
            // folder was removed.
            Ok(_) | Err(Fault::System(_)) => return None,
        };
        log(&format!(
            "[ContextPilot] {:?} should hold the last request ids before a crash, but cannot be \
             used ({why}): removed; if there was a crash, some ids may stay in the index until \
             it is reset",
            self.memory.path().join(&name)
        ));
        let _ = rustix::fs::unlinkat(&self.memory, &name, AtFlags::empty());
        None
    }

    /// Removes a ring whose ids the journal has by now.
    pub(crate) fn remove(&self, left: &Left) {
        // If this fails, the next start reports its ids once more.
        let _ = rustix::fs::unlinkat(&self.memory, &left.name, AtFlags::empty());
    }

    /// Makes the ring of this process. `None`: there is no room for one.
    pub(crate) fn create(self, identity: &Identity, number: u32) -> Option<Ring> {
        let name = self.name(identity, number);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(rustix::fs::openat(&self.memory, &name, flags, mode).ok()?);
        let Some(recent) = self.prepare(&file, identity) else {
            let _ = rustix::fs::unlinkat(&self.memory, &name, AtFlags::empty());
            return None;
        };
        Some(Ring {
            recent,
            memory: self.memory,
            name,
            file,
        })
    }

    fn prepare(&self, file: &File, identity: &Identity) -> Option<Recent> {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).ok()?;
        // Allocate the pages now: if that failed at a store, the store would end the server with SIGBUS.
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, BYTES as u64).ok()?;
        let path = self.state.as_os_str().as_bytes();
        file.write_all_at(path, BYTES as u64).ok()?;
        Recent::new((self.map)(file, BYTES).ok()?, identity)
    }

    /// Removes rings that no process holds and whose state folders no longer exist.
    pub(crate) fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.memory.path()) else {
            return;
        };
        for entry in entries.take(MOST).flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // Read the path without the lock: a start that wants the ring must not find it locked.
            let gone = name.ends_with(SUFFIX)
                && self.state_of(&name).is_some_and(|state| {
                    state.is_absolute() && matches!(state.try_exists(), Ok(false))
                });
            if !gone {
                continue;
            }
            if let Ok(Opened::File(_lock, _)) = file::open(&self.memory, &name, false) {
                let _ = rustix::fs::unlinkat(&self.memory, &name, AtFlags::empty());
            }
        }
    }

    /// The state folder's path, from the file. `None`: the file cannot be read.
    fn state_of(&self, name: &str) -> Option<PathBuf> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.memory, name, flags, Mode::empty()).ok()?;
        let mut path = Vec::new();
        let mut file = File::from(file);
        file.seek(SeekFrom::Start(BYTES as u64)).ok()?;
        file.take(MAX_PATH).read_to_end(&mut path).ok()?;
        Some(OsString::from_vec(path).into())
    }
}

impl Ring {
    /// Removes the file when the server ends cleanly: the journal has all its ids.
    pub(crate) fn remove(&self) {
        let _ = rustix::fs::unlinkat(&self.memory, &self.name, AtFlags::empty());
    }

    /// Whether the file still has a name, so that the next start can find it. Some systems
    /// clean up shared memory when a user logs out.
    pub(crate) fn has_name(&self) -> bool {
        self.file
            .metadata()
            .is_ok_and(|metadata| metadata.nlink() > 0)
    }
}
