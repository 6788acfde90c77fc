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
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::rows::Rows;
use crate::folder::{Folder, NEW, file_name, inner_of};
use crate::format::Head;
use crate::models;

/// So many bytes are written at a time.
const PIECE: usize = 256 << 10;
/// How many names are tried for a new file. Others may have the same process id, in another container.
const ATTEMPTS: u32 = 1000;

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
        let to = models::file_name(fingerprint);
        let content = |file: &mut File| file.write_all(model.as_bytes());
        put(&self.folder, &mut self.written, &new, content, &to)
    }

    /// Says of what a fingerprint is made.
    pub(super) fn note_origin(&mut self, origin: &Origin) -> io::Result<()> {
        let new = self.folder.inner(NEW)?;
        let to = models::origin_name(&origin.fingerprint);
        let content = |file: &mut File| file.write_all(&origin.encode());
        put(&self.folder, &mut self.written, &new, content, &to)
    }

    /// An older version wrote the server's flags down as they were, with secrets. That is written again without them,
    /// and removed where that cannot be done.
    pub(super) fn renew_origins(&mut self) {
        let folder = self.folder.clone();
        for (of, origin, written) in folder.origins_with_secrets() {
            let to = models::origin_name(&of);
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

/// Writes a file whole, and then gives it its name: a folder, and a name in it.
pub(crate) fn put(
    folder: &Folder,
    count: &mut u64,
    new: &OwnedFd,
    content: impl FnOnce(&mut File) -> io::Result<()>,
    to: &str,
) -> io::Result<()> {
    let (mut file, name) = create(count, new)?;
    let written = content(&mut file).and_then(|()| rename(folder, new, &name, to));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(new, &*name, AtFlags::empty());
    }
    written
}

impl Folder {
    /// Whether a file of so many bytes can be written here. Nothing of it stays.
    pub(crate) fn try_file(&self, count: &mut u64, bytes: u64) -> io::Result<()> {
        let new = self.inner(NEW)?;
        let (mut file, name) = create(count, &new)?;
        let zeros = [0; 1 << 12];
        let mut left = bytes.clamp(1, MOST_TRIED);
        let mut written = Ok(());
        while left > 0 && written.is_ok() {
            let some = left.min(zeros.len() as u64);
            written = file.write_all(&zeros[..some as usize]);
            left -= some;
        }
        let _ = rustix::fs::unlinkat(&new, &*name, AtFlags::empty());
        written
    }
}

/// So many bytes are written to see whether the disk takes them.
const MOST_TRIED: u64 = 4 << 20;

/// A new file, locked so that no process takes it for one of a dead process.
fn create(count: &mut u64, new: &OwnedFd) -> io::Result<(File, String)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    for _ in 0..ATTEMPTS {
        *count += 1;
        let name = format!("{}-{count}", std::process::id());
        match rustix::fs::openat(new, &*name, flags | OFlags::CLOEXEC, mode) {
            Ok(file) if is_mine(&file)? => return Ok((file.into(), name)),
            // It stays until a process sweeps, if it is still there.
            Ok(_) => {}
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// Locks a new file. False if a process that [sweeps](Disk::sweep) came between, and has taken it for one of a dead
/// process.
fn is_mine(file: &OwnedFd) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(rustix::fs::fstat(file)?.st_nlink > 0),
        Err(Errno::WOULDBLOCK) => Ok(false),
        // Where there are no locks, no process removes others' files either.
        Err(_) => Ok(true),
    }
}

fn rename(folder: &Folder, new: &OwnedFd, from: &str, to: &str) -> io::Result<()> {
    let private = folder.private();
    match rustix::fs::renameat(new, from, &*private, to) {
        // The first file of this folder.
        Err(Errno::NOENT) => {
            folder.inner(inner_of(to))?;
            Ok(rustix::fs::renameat(new, from, &*private, to)?)
        }
        other => Ok(other?),
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
