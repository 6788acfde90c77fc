//! The journal's file: how it is found, locked, read, appended to and compacted.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use contextpilot_private_folder::{PrivateFolder, effective_user};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::Identity;
use crate::record::{self, Content, End, Kind};

/// How many servers with the same identity can have a journal at the same time.
pub(crate) const MAX_NUMBER: u32 = 16;
/// How many damaged files of one name are kept.
const MAX_BAD: u32 = 3;
/// How often opening is tried while other starts replace or remove the file.
const ATTEMPTS: u32 = 8;

/// A journal of ours, locked for as long as this lives.
///
/// The lock is that of `flock`. It belongs to the open file, and ends with the process
/// however that ends. A lock of `fcntl` would be lost as soon as any other code of the
/// process opened and closed the same file.
#[derive(Debug)]
pub(crate) struct JournalFile {
    pub(crate) file: File,
    name: String,
    identity: Identity,
    /// The length of the file, bytes.
    length: u64,
}

pub(crate) enum Found {
    Ours(JournalFile, Vec<Arc<str>>),
    /// Another process holds it, or it belongs to another instance or user.
    Taken,
    /// There is no such file, and `create` was not asked for.
    Absent,
}

/// Why a file cannot be opened as a journal.
pub(crate) enum Fault {
    /// It is no journal, and should be renamed. The reason.
    SetAside(&'static str),
    System(io::Error),
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

pub(crate) enum Opened {
    File(File, Metadata),
    Taken,
    Absent,
    /// It was replaced or removed between opening and locking it.
    Changed,
}

pub(crate) fn name_of(identity: &Identity, number: u32) -> String {
    format!("{identity}-{number}.journal")
}

/// Opens and locks the journal of this number, and reads its live ids. A file that is no journal, or
/// is damaged, is renamed and replaced by a new one.
pub(crate) fn lock(
    folder: &PrivateFolder,
    identity: Identity,
    number: u32,
    create: bool,
    log: fn(&str),
) -> io::Result<Found> {
    let name = name_of(&identity, number);
    let told = |why, readable: usize, bad: &str| {
        log(&format!(
            "[ContextPilot] the journal {:?} cannot be used ({why}): set aside as {bad:?}, \
             readable ids in it: {readable}; if a crash left others in the index, \
             they stay there until it is reset",
            folder.path().join(&name),
        ));
    };
    for _ in 0..ATTEMPTS {
        let (file, metadata) = match open(folder, &name, create) {
            Ok(Opened::Taken) => return Ok(Found::Taken),
            Ok(Opened::Absent) => return Ok(Found::Absent),
            Ok(Opened::Changed) => continue,
            Ok(Opened::File(file, metadata)) => (file, metadata),
            Err(Fault::SetAside(why)) => {
                let bad = name_for_bad(folder, &name)?;
                match rustix::fs::renameat(folder, &name, folder, &bad) {
                    Ok(()) => told(why, 0, &bad),
                    // Another start was faster.
                    Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
                continue;
            }
            Err(Fault::System(error)) => return Err(error),
        };
        let Content { live, good, end } = record::read(&file, metadata.len(), &identity)?;
        let mut journal = JournalFile {
            file,
            name: name.clone(),
            identity,
            length: metadata.len(),
        };
        match end {
            End::Foreign => return Ok(Found::Taken),
            End::Whole | End::Torn => journal.cut(good)?,
            End::Damaged(why) => {
                // Give the damaged file a second name, then rename a new file over the
                // first. So no other start finds the name free in between.
                let bad = name_for_bad(folder, &name)?;
                rustix::fs::linkat(folder, &name, folder, &bad, AtFlags::empty())?;
                told(why, live.len(), &bad);
                journal.compact(folder, &live)?;
            }
        }
        return Ok(Found::Ours(journal, live));
    }
    Ok(Found::Taken)
}

/// Opens and locks a file of this user that no process holds. Follows no link, and never waits.
pub(crate) fn open(folder: &PrivateFolder, name: &str, create: bool) -> Result<Opened, Fault> {
    let mut flags = OFlags::RDWR
        | OFlags::APPEND
        | OFlags::NOFOLLOW
        // Else opening a FIFO could wait.
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    if create {
        flags |= OFlags::CREATE;
    }
    let file = match rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(Opened::Absent),
        Err(Errno::LOOP | Errno::MLINK) => return Err(Fault::SetAside("it is a link")),
        Err(Errno::ISDIR) => return Err(Fault::SetAside("it is a folder")),
        Err(Errno::NXIO) => return Err(Fault::SetAside("it is not a file")),
        // Another user's, for example of a server that root ran. It may be in use.
        Err(Errno::ACCESS | Errno::PERM) => return Ok(Opened::Taken),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Fault::SetAside("it is not a file"));
    }
    if metadata.uid() != effective_user() {
        return Ok(Opened::Taken);
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(Opened::Taken),
        Err(error) => return Err(error.into()),
    }
    // Between opening and locking, the process that held it may have compacted or removed it.
    if !is_at(folder, name, &metadata)? {
        return Ok(Opened::Changed);
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(Fault::SetAside("others may write to it"));
    }
    if metadata.mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    // The process that held it may have written until the lock was ours: get its length again.
    let metadata = file.metadata()?;
    Ok(Opened::File(file, metadata))
}

fn is_at(folder: &PrivateFolder, name: &str, metadata: &Metadata) -> io::Result<bool> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        // The types of these fields differ between systems.
        #[allow(clippy::unnecessary_cast)]
        Ok(found) => {
            Ok(found.st_dev as u64 == metadata.dev() && found.st_ino as u64 == metadata.ino())
        }
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A free name for a damaged file. If all [`MAX_BAD`] names are taken, the oldest file is removed.
fn name_for_bad(folder: &PrivateFolder, name: &str) -> io::Result<String> {
    let mut oldest = None;
    for n in 1..=MAX_BAD {
        let bad = format!("{name}.bad-{n}");
        match rustix::fs::statat(folder, &bad, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(bad),
            Err(error) => return Err(error.into()),
            Ok(found) => {
                // The inode's change time: when the file got this name.
                let since = (found.st_ctime, found.st_ctime_nsec);
                if oldest.as_ref().is_none_or(|(time, _)| since < *time) {
                    oldest = Some((since, bad));
                }
            }
        }
    }
    let (_, bad) = oldest.ok_or(io::ErrorKind::NotFound)?;
    match rustix::fs::unlinkat(folder, &bad, AtFlags::empty()) {
        // It is a folder. An empty one is removed, any other is an error.
        Err(Errno::ISDIR | Errno::PERM) => {
            rustix::fs::unlinkat(folder, &bad, AtFlags::REMOVEDIR)?;
        }
        other => other?,
    }
    Ok(bad)
}

/// Creates a file of this name, locks it, and writes a header.
fn create_new(folder: &PrivateFolder, name: &str, identity: Identity) -> io::Result<JournalFile> {
    let flags = OFlags::RDWR
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::EXCL
        | OFlags::NOFOLLOW
        | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = File::from(rustix::fs::openat(folder, name, flags, mode)?);
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let mut journal = JournalFile {
        file,
        name: name.to_owned(),
        identity,
        length: 0,
    };
    journal.append(&record::opening(&identity))?;
    Ok(journal)
}

fn records<'a>(identity: &Identity, ids: impl IntoIterator<Item = &'a Arc<str>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for id in ids {
        record::write(&mut bytes, identity, Kind::Live, id);
    }
    bytes
}

impl JournalFile {
    /// Cuts off a torn end. If nothing is left, writes a header.
    fn cut(&mut self, good: u64) -> io::Result<()> {
        if good < self.length {
            self.file.set_len(good)?;
            self.length = good;
        }
        if self.length == 0 {
            self.append(&record::opening(&self.identity))?;
        }
        Ok(())
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The length of the file, bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn path(&self, folder: &PrivateFolder) -> PathBuf {
        folder.path().join(&self.name)
    }

    /// Appends bytes. After an error the file may end within a record.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Replaces the file by a new one that holds these ids as live, and nothing else.
    ///
    /// At every moment the name leads to a whole journal that this process has
    /// locked. The new file is synchronised before the name changes: else a
    /// power cut could leave an empty file in place of a good one.
    pub(crate) fn compact<'a>(
        &mut self,
        folder: &PrivateFolder,
        ids: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> io::Result<()> {
        let temporary = format!("{}.new", self.name);
        // Only the process that holds the journal's lock uses this name.
        match rustix::fs::unlinkat(folder, &temporary, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let mut new = create_new(folder, &temporary, self.identity)?;
        let done = new
            .append(&records(&self.identity, ids))
            .and_then(|()| new.file.sync_data())
            .and_then(|()| {
                let renamed = rustix::fs::renameat(folder, &temporary, folder, &self.name);
                renamed.map_err(io::Error::from)
            });
        if done.is_err() {
            // The first error is the one to report.
            let _ = rustix::fs::unlinkat(folder, &temporary, AtFlags::empty());
        }
        done?;
        self.file = new.file;
        self.length = new.length;
        Ok(())
    }

    /// Removes the file. It stays locked until it has no name any more.
    pub(crate) fn remove(self, folder: &PrivateFolder) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(folder, &self.name, AtFlags::empty())?)
    }
}
