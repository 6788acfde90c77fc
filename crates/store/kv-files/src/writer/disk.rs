//! What the writer's thread does to files.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use contextpilot_kv_store::{Check, Chunk, Fingerprint, Name, Origin};
use contextpilot_private_folder::PrivateFolder;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, Timespec, UTIME_NOW};
use rustix::process::{Resource, getrlimit};

use super::rows::Rows;
use crate::beside::{model_path, origin_path};
use crate::folder::{Folder, NEW, file_name, put};
use crate::format::Head;

/// So many bytes are written at a time.
const PIECE: usize = 256 << 10;

pub(super) struct Disk {
    folder: Folder,
    /// The folder of files that are being written, once it is open, and the one that it is in.
    new: Option<(Arc<PrivateFolder>, OwnedFd)>,
    /// How many files were made.
    written: u64,
    /// What is written next. Its memory is used again.
    piece: Vec<u8>,
}

impl Disk {
    pub(super) fn new(folder: Folder) -> Self {
        Self {
            folder,
            new: None,
            written: 0,
            piece: Vec::with_capacity(PIECE),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Writes the file of a chunk. Calls `rest` after each piece.
    ///
    /// # Errors
    /// Those of the system; `InvalidData`: the rows are in a state that lacks them, or they are [`NotFinite`].
    pub(super) fn write(
        &mut self,
        chunk: &Chunk,
        rows: &Rows,
        rest: impl FnMut(),
    ) -> io::Result<()> {
        let size = rows.size(chunk);
        let head = Head::size(chunk) as u64;
        may_have(head.saturating_add(size))?;
        let private = self.folder.closed()?;
        let new = match self.new.take() {
            Some((of, new)) if Arc::ptr_eq(&of, &private) => new,
            _ => self.folder.inner(NEW)?,
        };
        let piece = &mut self.piece;
        // After a failure it may hold something.
        piece.clear();
        let numbers = rows.numbers();
        let content = |file: &mut File| {
            // Its checksum is known when all rows were seen.
            file.seek(SeekFrom::Start(head))?;
            let mut pieces = Pieces {
                file,
                piece,
                crc: crc32fast::Hasher::new(),
                check: numbers.check(chunk.tokens.len()),
                written: 0,
                rest,
            };
            let lacks =
                || io::Error::new(io::ErrorKind::InvalidData, "the state lacks these tokens");
            rows.each(|slice| pieces.add(slice)).ok_or_else(lacks)??;
            let (written, crc) = pieces.finish()?;
            file.rewind()?;
            file.write_all(&Head::write(chunk, written, crc))
        };
        put(
            &self.folder,
            &mut self.written,
            &new,
            content,
            &file_name(&chunk.name),
        )?;
        // Kept open only as long as all is well.
        self.new = Some((private, new));
        Ok(())
    }

    /// Says how people call the model with this fingerprint.
    pub(super) fn name_model(&mut self, fingerprint: &Fingerprint, model: &str) -> io::Result<()> {
        let new = self.folder.inner(NEW)?;
        let to = model_path(fingerprint);
        let content = |file: &mut File| file.write_all(model.as_bytes());
        put(&self.folder, &mut self.written, &new, content, &to)
    }

    /// Says of what a fingerprint is made.
    pub(super) fn note_origin(&mut self, origin: &Origin) -> io::Result<()> {
        let new = self.folder.inner(NEW)?;
        let to = origin_path(&origin.fingerprint);
        let content = |file: &mut File| file.write_all(&origin.encode());
        put(&self.folder, &mut self.written, &new, content, &to)
    }

    /// An older version wrote the server's flags down as they were, with secrets. That is written again without them,
    /// and removed where that cannot be done.
    pub(super) fn renew_origins(&mut self) {
        let folder = self.folder.clone();
        for (of, origin, written) in folder.origins_with_secrets() {
            let to = origin_path(&of);
            let renewed = origin.is_some_and(|origin| {
                let content = |file: &mut File| {
                    file.write_all(&origin.encode())?;
                    // It says when a server last used the folder for this.
                    file.set_modified(written)
                };
                let new = self.folder.inner(NEW);
                new.and_then(|new| put(&self.folder, &mut self.written, &new, content, &to))
                    .is_ok()
            });
            if !renewed {
                let _ = rustix::fs::unlinkat(&*folder.private(), &*to, AtFlags::empty());
            }
        }
    }

    pub(super) fn remove(&self, name: &Name) -> io::Result<()> {
        self.folder.remove(name)
    }

    /// The chunk was used now.
    pub(super) fn touch(&self, name: &Name) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        self.folder.set_used(name, now);
    }

    /// Whether a file of so many bytes could be written now, into the folder that is there now.
    pub(super) fn try_again(&mut self, bytes: u64) -> io::Result<()> {
        may_have(bytes)?;
        self.new = None;
        self.folder.open_again()?;
        self.folder.try_file(&mut self.written, bytes)
    }

    /// Removes what dead processes were writing: files in `new` that no process has locked.
    pub(super) fn sweep(&self) {
        let Ok(new) = self.folder.inner(NEW) else {
            return;
        };
        let entries = Dir::read_from(&new).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let Ok(file) = rustix::fs::openat(&new, name, flags, Mode::empty()) else {
                continue;
            };
            // Locked until it is removed, so that a process that has just made it sees that it lost it.
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = rustix::fs::unlinkat(&new, name, AtFlags::empty());
            }
        }
    }
}

/// Values of rows are no numbers, or infinite.
#[derive(Debug)]
struct NotFinite;

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("values of the rows are no numbers")
    }
}

impl std::error::Error for NotFinite {}

/// Whether that is why a chunk was not written.
pub(super) fn is_not_finite(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<NotFinite>())
}

/// Whether this process may write files of so many bytes. Else the system would end it, the server, with a signal.
fn may_have(bytes: u64) -> io::Result<()> {
    let most = getrlimit(Resource::Fsize).current;
    if most.is_some_and(|most| most < bytes) {
        Err(io::ErrorKind::FileTooLarge.into())
    } else {
        Ok(())
    }
}

/// Rows on their way into a file. They are gathered, summed up and written while they are in the processor's
/// cache.
struct Pieces<'a, R> {
    file: &'a mut File,
    piece: &'a mut Vec<u8>,
    crc: crc32fast::Hasher,
    check: Check<'a>,
    written: u64,
    rest: R,
}

impl<R: FnMut()> Pieces<'_, R> {
    fn add(&mut self, mut slice: &[u8]) -> io::Result<()> {
        while !slice.is_empty() {
            let (taken, left) = slice.split_at(slice.len().min(PIECE - self.piece.len()));
            self.piece.extend_from_slice(taken);
            slice = left;
            if self.piece.len() == PIECE {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        self.crc.update(self.piece);
        self.check.update(self.piece);
        if !self.check.is_finite() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, NotFinite));
        }
        self.file.write_all(self.piece)?;
        self.written += self.piece.len() as u64;
        self.piece.clear();
        (self.rest)();
        Ok(())
    }

    /// How many bytes there were, and their checksum.
    fn finish(mut self) -> io::Result<(u64, u32)> {
        self.write()?;
        Ok((self.written, self.crc.finalize()))
    }
}
