//! What the writer's thread does to files.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use contextpilot_kv_store::{Chunk, Fingerprint, Name};
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::folder::{Folder, NEW, file_name};
use crate::format::Head;
use crate::models;

/// So many bytes are written at a time.
const PIECE: usize = 256 << 10;
/// How many names are tried for a new file. Others may have the same process id, in another container.
const ATTEMPTS: u32 = 1000;

pub(super) struct Disk {
    folder: Folder,
    /// The folder of files that are being written, once it is open.
    new: Option<OwnedFd>,
    written: u64,
}

impl Disk {
    pub(super) fn new(folder: Folder) -> Self {
        Self {
            folder,
            new: None,
            written: 0,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Calls `rest` now and then.
    pub(super) fn write(
        &mut self,
        chunk: &Chunk,
        rows: &[u8],
        rest: impl FnMut(),
    ) -> io::Result<()> {
        let head = Head::write(chunk, rows);
        // Else the system would end the process, the server, with a signal.
        let most = getrlimit(Resource::Fsize).current;
        if most.is_some_and(|most| most < (head.len() + rows.len()) as u64) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let new = match self.new.take() {
            Some(new) => new,
            None => self.folder.inner(NEW)?,
        };
        let to = file_name(&chunk.name);
        self.put(&new, &[&head, rows], &to, rest)?;
        // Kept open only as long as all is well.
        self.new = Some(new);
        Ok(())
    }

    /// Says how people call the model with this fingerprint.
    pub(super) fn name_model(&mut self, fingerprint: &Fingerprint, model: &str) -> io::Result<()> {
        let new = self.folder.inner(NEW)?;
        let to = models::file_name(fingerprint);
        self.put(&new, &[model.as_bytes()], &to, || ())
    }

    /// Writes a file whole, and then gives it its name: a folder, and a name in it.
    fn put(
        &mut self,
        new: &OwnedFd,
        parts: &[&[u8]],
        to: &str,
        mut rest: impl FnMut(),
    ) -> io::Result<()> {
        let (mut file, name) = self.create(new)?;
        let written = parts
            .iter()
            .flat_map(|part| part.chunks(PIECE))
            .try_for_each(|piece| {
                file.write_all(piece)?;
                rest();
                Ok(())
            })
            .and_then(|()| self.rename(new, &name, to));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(new, &*name, AtFlags::empty());
        }
        written
    }

    /// A new file, locked so that nobody takes it for one of a dead process.
    fn create(&mut self, new: &OwnedFd) -> io::Result<(File, String)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        for _ in 0..ATTEMPTS {
            self.written += 1;
            let name = format!("{}-{}", std::process::id(), self.written);
            match rustix::fs::openat(new, &*name, flags | OFlags::CLOEXEC, mode) {
                Ok(file) => {
                    // Where there are no locks, nobody removes others' files either.
                    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
                    return Ok((file.into(), name));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    fn rename(&self, new: &OwnedFd, from: &str, to: &str) -> io::Result<()> {
        let private = self.folder.private();
        match rustix::fs::renameat(new, from, &*private, to) {
            // The first file of this folder.
            Err(Errno::NOENT) => {
                let folder = to.split_once('/').map_or(to, |(folder, _)| folder);
                self.folder.inner(folder)?;
                Ok(rustix::fs::renameat(new, from, &*private, to)?)
            }
            other => Ok(other?),
        }
    }

    pub(super) fn remove(&self, name: &Name) -> io::Result<()> {
        self.folder.remove(name)
    }

    /// The chunk was used now.
    pub(super) fn touch(&self, name: &Name) {
        let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times = Timestamps {
            last_access: time(UTIME_OMIT),
            last_modification: time(UTIME_NOW),
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        // It may have been removed.
        let _ = rustix::fs::utimensat(&*self.folder.private(), file_name(name), &times, flags);
    }

    pub(super) fn open_again(&mut self) -> io::Result<()> {
        self.new = None;
        let opened = self.folder.open_again();
        opened.map_err(|error| io::Error::new(io::ErrorKind::NotFound, error.to_string()))
    }

    /// Removes what dead processes were writing: files in `new` that nobody has locked.
    pub(super) fn sweep(&self) {
        let Ok(new) = self.folder.inner(NEW) else {
            return;
        };
        let entries = Dir::read_from(&new).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&new, name, flags, Mode::empty());
            let free = file.is_ok_and(|file| {
                rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).is_ok()
            });
            if free {
                let _ = rustix::fs::unlinkat(&new, name, AtFlags::empty());
            }
        }
    }
}
