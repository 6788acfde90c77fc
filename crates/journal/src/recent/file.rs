//! Where a [`Recent`] lies: a file in the memory of the system, beside which nothing of
//! another user can lie.
//!
//! ```text
//! /dev/shm/contextpilot-llama-<user>/<state folder>-<identity>-<number>.recent
//! slots | path of the state folder
//! ```
//! The journal of that number is in the state folder, and its lock is the right to this
//! file too. There is one such memory for all the state folders that a user may have, so
//! the name has a digest of the folder's path, and the file the path itself.

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
/// Of the state folder, bytes; Linux has no longer ones.
const MAX_PATH: u64 = 4096;
/// So that a folder full of anything does not hold up the start.
const MOST: usize = 10_000;

/// The rings of one instance, by the numbers of its journals.
pub(crate) struct Rings {
    memory: PrivateFolder,
    state: PathBuf,
    map: Map,
    identity: Identity,
    /// Of the state folder's path.
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

/// What a dead process left.
pub(crate) struct Left {
    pub(crate) ids: Vec<Arc<str>>,
    name: String,
    _lock: File,
}

impl Rings {
    /// `None`: there is no memory that is fit for it.
    pub(crate) fn of(state: &PrivateFolder, map: Map, identity: Identity) -> Option<Self> {
        let path = state.path().canonicalize().ok()?;
        let mut digest = Digest::new();
        digest.write(path.as_os_str().as_bytes());
        Some(Self {
            memory: PrivateFolder::in_memory()?,
            state: path,
            map,
            identity,
            digest: digest.0,
        })
    }

    fn name(&self, number: u32) -> String {
        let (digest, identity) = (self.digest, self.identity);
        format!("{digest:032x}-{identity}-{number}{SUFFIX}")
    }

    /// What the last process with the journal of this number left, if anything. Files that
    /// are no ring of ours are removed.
    pub(crate) fn left(&self, number: u32, log: fn(&str)) -> Option<Left> {
        let name = self.name(number);
        let why = match file::open(&self.memory, &name, false) {
            Ok(Opened::File(file, metadata)) if metadata.len() <= BYTES as u64 + MAX_PATH => {
                let mut bytes = Vec::new();
                (&file).take(metadata.len()).read_to_end(&mut bytes).ok()?;
                // Else the process ended while it made the file.
                let whole = bytes.get(BYTES..) == Some(self.state.as_os_str().as_bytes());
                bytes.truncate(if whole { BYTES } else { 0 });
                return Some(Left {
                    ids: super::read(&bytes, &self.identity),
                    name,
                    _lock: file,
                });
            }
            Ok(Opened::File(..)) => "it is larger than any of ours",
            Err(Fault::SetAside(why)) => why,
            // Held by a process that lives on without its state folder, or it cannot be read.
            Ok(_) | Err(Fault::System(_)) => return None,
        };
        log(&format!(
            "[ContextPilot] {:?} is not what keeps the request ids of the last moments before \
             a crash ({why}): removed; if there was a crash, some may stay in the index until \
             it is reset",
            self.memory.path().join(&name)
        ));
        let _ = rustix::fs::unlinkat(&self.memory, &name, AtFlags::empty());
        None
    }

    /// Its ids are in the journal.
    pub(crate) fn remove(&self, left: &Left) {
        // If it stays, they are told once more.
        let _ = rustix::fs::unlinkat(&self.memory, &left.name, AtFlags::empty());
    }

    /// A ring for this process, if there is room for one.
    pub(crate) fn create(self, number: u32) -> Option<Ring> {
        let name = self.name(number);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(rustix::fs::openat(&self.memory, &name, flags, mode).ok()?);
        let Some(recent) = self.prepare(&file) else {
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

    fn prepare(&self, file: &File) -> Option<Recent> {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).ok()?;
        // Now, and not when it is stored into: then there would be nobody to tell of an error.
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, BYTES as u64).ok()?;
        let path = self.state.as_os_str().as_bytes();
        file.write_all_at(path, BYTES as u64).ok()?;
        Recent::new((self.map)(file, BYTES).ok()?, &self.identity)
    }

    /// Removes what belongs to state folders that are no more, and is held by nobody.
    pub(crate) fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.memory.path()) else {
            return;
        };
        for entry in entries.take(MOST).flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // Without the lock: a start that wants to read it must not find it taken.
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

    /// `None`: it cannot be read.
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
    /// The clean end: all of it is in the journal.
    pub(crate) fn remove(&self) {
        let _ = rustix::fs::unlinkat(&self.memory, &self.name, AtFlags::empty());
    }

    /// Whether the next start can find it: somebody may have cleaned up, as some systems do
    /// when a user has left.
    pub(crate) fn has_name(&self) -> bool {
        self.file
            .metadata()
            .is_ok_and(|metadata| metadata.nlink() > 0)
    }
}
