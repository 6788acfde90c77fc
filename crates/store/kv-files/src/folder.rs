//! The folder: where files are, how they are read, how a new one gets its name, and what goes wrong with them.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use contextpilot_kv_store::{Name, Numbers};
use contextpilot_private_folder::{self as private_folder, PrivateFolder};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::format::{Fault, Head, LONGEST_HEAD};

/// What this version of the program writes into. Another version has another folder.
const VERSION: &str = "v1";
/// Files that are being written.
pub(crate) const NEW: &str = "new";
/// The end of a file's name.
pub(crate) const SUFFIX: &str = ".kv";

/// Read and summed up at once, bytes: it stays in the processor's cache in between.
pub(crate) const STEP: usize = 256 << 10;
/// How many names are tried for a new file. Others may have the same process id, in another container.
const ATTEMPTS: u32 = 1000;
/// So many bytes are written to see whether the disk takes them.
const MOST_TRIED: u64 = 4 << 20;

/// The store's folder. Copies are the same folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// Changes only if the folder had to be made again.
    private: Arc<RwLock<Arc<PrivateFolder>>>,
}

impl Folder {
    /// Opens the store in the folder `path`, and makes it if it is missing.
    ///
    /// # Errors
    /// The folder cannot be made, or others could change it.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let path = std::path::absolute(path).map_err(|error| FolderError {
            what: error.to_string(),
        })?;
        let private = open(&path)?;
        Ok(Self {
            path,
            private: Arc::new(RwLock::new(Arc::new(private))),
        })
    }

    /// Whether this process can write here, said before there is anything to write.
    ///
    /// # Errors
    /// It cannot.
    pub fn try_writing(&self) -> Result<(), FolderError> {
        let tried = self.try_file(&mut 0, 1);
        tried.map_err(|error| FolderError {
            what: Problem::new(self.path.clone(), &error).to_string(),
        })
    }

    /// As [`open`](Self::open), without making anything. `None`: it is not there, and can be made.
    ///
    /// # Errors
    /// As there.
    pub fn look(path: &Path) -> Result<Option<()>, FolderError> {
        let looked = PrivateFolder::look(path, VERSION);
        let there = looked.map_err(|error| FolderError {
            what: error.to_string(),
        })?;
        Ok(there.map(drop))
    }

    /// Opens the store in the folder `path`, if there is one.
    ///
    /// # Errors
    /// Others could change it.
    pub fn existing(path: &Path) -> Result<Option<Self>, FolderError> {
        if path.join(VERSION).is_dir() {
            Self::open(path).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The path that was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder in it that this version uses.
    pub(crate) fn inside(&self) -> PathBuf {
        self.path.join(VERSION)
    }

    /// Bytes that are free on its disk for this user, and all bytes of the disk.
    ///
    /// # Errors
    /// The system does not say.
    pub fn space(&self) -> io::Result<(u64, u64)> {
        let disk = rustix::fs::fstatvfs(&*self.private())?;
        Ok((
            disk.f_bavail.saturating_mul(disk.f_frsize),
            disk.f_blocks.saturating_mul(disk.f_frsize),
        ))
    }

    /// The rows of a chunk, which must have `bytes` of them: verified, in `out`, whose memory is used
    /// again.
    ///
    /// # Errors
    /// The file is gone or damaged, or the system cannot read it. `out` is empty then.
    pub fn read(&self, name: &Name, bytes: u64, out: &mut Vec<u8>) -> Result<(), ReadError> {
        self.read_finite(name, bytes, Numbers::ANY, out)
    }

    /// As [`read`](Self::read), of rows that consist of these numbers, all of which must be finite.
    ///
    /// # Errors
    /// As there, or the numbers are not finite.
    pub fn read_finite(
        &self,
        name: &Name,
        bytes: u64,
        numbers: &Numbers,
        out: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let read = self.read_again(name, bytes, numbers, out);
        if read.is_err() {
            out.clear();
        }
        read
    }

    fn read_again(
        &self,
        name: &Name,
        bytes: u64,
        numbers: &Numbers,
        out: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let rows = self.rows(name, bytes)?;
        let wanted = usize::try_from(bytes).map_err(|_| ReadError::Damaged("it is too large"))?;
        // What is there already is overwritten, not cleared before.
        out.try_reserve(wanted.saturating_sub(out.len()))
            .map_err(|_| ReadError::System(io::ErrorKind::OutOfMemory.into()))?;
        out.resize(wanted, 0);
        rows.read_to(numbers, out)
    }

    /// Opens the file of a chunk, which must have so many bytes of rows.
    fn rows(&self, name: &Name, bytes: u64) -> Result<RowsOfFile, ReadError> {
        let mut file = self.file(name)?;
        let mut buffer = [0; LONGEST_HEAD];
        let count = read_at_most(&mut file, &mut buffer)?;
        let head = Head::read(&buffer[..count])?;
        if head.chunk.name != *name || head.chunk.bytes != bytes {
            return Err(ReadError::Damaged("it is the file of another chunk"));
        }
        let begin = Head::size(&head.chunk).min(count);
        Ok(RowsOfFile {
            file,
            head,
            buffer,
            first: begin..count,
        })
    }

    /// The file of a chunk, which must have so many bytes of rows and is good but for these, and its head.
    pub(crate) fn whole_file(&self, name: &Name, bytes: u64) -> Result<(File, Head), ReadError> {
        let RowsOfFile { file, head, .. } = self.rows(name, bytes)?;
        check_end(&file, &head)?;
        Ok((file, head))
    }

    /// Whether the file of a chunk is gone for certain. Whatever else is wrong with it shows when it is read.
    #[must_use]
    pub fn lacks(&self, name: &Name) -> bool {
        let found =
            rustix::fs::statat(&*self.private(), file_name(name), AtFlags::SYMLINK_NOFOLLOW);
        matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
    }

    /// Opens a chunk's file.
    pub(crate) fn file(&self, name: &Name) -> Result<File, ReadError> {
        let private = self.closed()?;
        match open_to_read(&*private, &file_name(name)) {
            Ok(file) => Ok(file),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(ReadError::Gone),
            Err(Errno::LOOP | Errno::MLINK | Errno::NXIO) => {
                Err(ReadError::Damaged("it is not a file"))
            }
            Err(error) => Err(ReadError::System(error.into())),
        }
    }

    /// What all names are relative to.
    pub(crate) fn private(&self) -> Arc<PrivateFolder> {
        Arc::clone(&self.private.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, as long as no other user can write to it. What others write must not be taken for ours.
    ///
    /// # Errors
    /// It was opened to others.
    pub(crate) fn closed(&self) -> io::Result<Arc<PrivateFolder>> {
        let private = self.private();
        private.check().map_err(refused)?;
        Ok(private)
    }

    /// Opens what is at the folder's path now, and makes it if nothing is.
    ///
    /// # Errors
    /// The system's own, or what is not private.
    pub(crate) fn open_again(&self) -> io::Result<()> {
        let opened = PrivateFolder::inside(&self.path, VERSION);
        let private = Arc::new(opened.map_err(refused)?);
        *self.private.write().unwrap_or_else(PoisonError::into_inner) = private;
        Ok(())
    }

    /// Opens what is at the folder's path now, if that is another folder than the open one: the folder was removed, and
    /// another process has made it again.
    ///
    /// # Errors
    /// Nothing is there, or others could change it. The writer makes it again.
    pub(crate) fn follow(&self) -> io::Result<()> {
        let there = match rustix::fs::lstat(self.inside()) {
            Ok(there) => there,
            Err(error @ (Errno::NOENT | Errno::NOTDIR)) => return Err(error.into()),
            // The open one may be of use.
            Err(_) => return Ok(()),
        };
        let open = rustix::fs::fstat(&*self.private())?;
        if (there.st_dev, there.st_ino) != (open.st_dev, open.st_ino) {
            return self.open_again();
        }
        self.closed().map(drop)
    }

    /// Opens a folder in it, which is made if it is missing.
    pub(crate) fn inner(&self, name: &str) -> io::Result<OwnedFd> {
        let private = self.private();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::mkdirat(&*private, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(rustix::fs::openat(&*private, name, flags, Mode::empty())?)
    }

    /// The names that files in an inner folder have, of those that have one.
    pub(crate) fn names_in(&self, inner: &str) -> impl Iterator<Item = Name> + use<> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&*self.private(), inner, flags, Mode::empty());
        let listing = folder.and_then(Dir::read_from).into_iter();
        let entries = listing.flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok())
    }

    /// The chunk was last used at this time.
    pub(crate) fn set_used(&self, name: &Name, time: Timespec) {
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: time,
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        // It may have been removed.
        let _ = rustix::fs::utimensat(&*self.private(), file_name(name), &times, flags);
    }

    /// Removes a chunk's file, if it is there. A server that uses the store finds that out when it wants the
    /// chunk, and evaluates.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove(&self, name: &Name) -> io::Result<()> {
        match rustix::fs::unlinkat(&*self.private(), file_name(name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn open(path: &Path) -> Result<PrivateFolder, FolderError> {
    PrivateFolder::inside(path, VERSION).map_err(|error| FolderError {
        what: error.to_string(),
    })
}

fn refused(error: private_folder::Error) -> io::Error {
    match error {
        private_folder::Error::System { source, .. } => source,
        error => io::Error::other(error),
    }
}

/// An open file whose header is good.
struct RowsOfFile {
    file: File,
    head: Head,
    /// What was read together with the header, and where the rows are in it.
    buffer: [u8; LONGEST_HEAD],
    first: Range<usize>,
}

impl RowsOfFile {
    /// Reads and verifies the rows. The place is as large as they.
    fn read_to(mut self, numbers: &Numbers, place: &mut [u8]) -> Result<(), ReadError> {
        let mut check = numbers.check(self.head.chunk.tokens.len());
        let first = &self.buffer[self.first];
        let there = first.len().min(place.len());
        place[..there].copy_from_slice(&first[..there]);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&place[..there]);
        check.update(&place[..there]);
        for step in place[there..].chunks_mut(STEP) {
            self.file.read_exact(step).map_err(cut)?;
            crc.update(step);
            check.update(step);
        }
        if crc.finalize() != self.head.rows_crc {
            return Err(ReadError::WRONG_SUM);
        }
        if !check.is_finite() {
            return Err(ReadError::NOT_FINITE);
        }
        check_end(&self.file, &self.head)
    }
}

/// What it means that rows cannot be read to their end.
pub(crate) fn cut(error: io::Error) -> ReadError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ReadError::Damaged("it is cut off"),
        _ => error.into(),
    }
}

fn check_end(file: &File, head: &Head) -> Result<(), ReadError> {
    if file.metadata()?.len() == Head::file_size(&head.chunk) {
        Ok(())
    } else {
        Err(ReadError::Damaged("it has another size than it says"))
    }
}

/// Where a chunk's file is.
pub(crate) fn file_name(name: &Name) -> String {
    let name = name.to_string();
    format!("{}/{name}{SUFFIX}", &name[..2])
}

/// The inner folder of a file's name.
pub(crate) fn inner_of(file_name: &str) -> &str {
    file_name
        .split_once('/')
        .map_or(file_name, |(inner, _)| inner)
}

/// Opens a file. Follows no link, and does not wait.
pub(crate) fn open_to_read(folder: impl AsFd, path: &str) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(folder, path, flags, Mode::empty()).map(File::from)
}

/// Fills the buffer, unless the file ends before.
pub(crate) fn read_at_most(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(read) => count += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
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

/// Locks a new file. False if a process that sweeps ([`Writer`](crate::Writer)) came between, and has taken it for one of a dead
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

/// Why a folder cannot be used. `Display` says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderError {
    what: String,
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)
    }
}

impl std::error::Error for FolderError {}

/// Why a chunk's rows cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no such file.
    Gone,
    /// The file is not what was written. It should be removed.
    Damaged(&'static str),
    /// The system's refusal.
    System(io::Error),
}

impl ReadError {
    /// The rows have another size than the state's layout says.
    pub const DOES_NOT_FIT: Self = Self::Damaged("its rows do not fit the state");
    /// Some values of the rows are no numbers, or infinite. They would spread to whatever is computed beside them.
    pub const NOT_FINITE: Self = Self::Damaged("its rows have values that are no numbers");
    /// Its rows were computed from rows with such values.
    pub const CONTINUES_NOT_FINITE: Self =
        Self::Damaged("it continues rows with values that are no numbers");
    pub(crate) const WRONG_SUM: Self = Self::Damaged("the checksum of its rows is wrong");
}

impl ReadError {
    /// Whether rows had values that are no numbers, or continue such.
    pub fn is_not_finite(&self) -> bool {
        let of = |known: &Self| match (self, known) {
            (Self::Damaged(why), Self::Damaged(known)) => why == known,
            _ => false,
        };
        of(&Self::NOT_FINITE) || of(&Self::CONTINUES_NOT_FINITE)
    }

    /// The process or the system has no more open files: nothing is wrong with this one.
    pub fn is_shortage(&self) -> bool {
        let errno = match self {
            Self::System(error) => Errno::from_io_error(error),
            Self::Gone | Self::Damaged(_) => None,
        };
        matches!(errno, Some(Errno::MFILE | Errno::NFILE))
    }

    /// The folder is open to others: nothing of it is used until it is closed again.
    pub fn is_open_to_others(&self) -> bool {
        match self {
            Self::System(error) => error
                .get_ref()
                .is_some_and(|inner| inner.is::<private_folder::Error>()),
            Self::Gone | Self::Damaged(_) => false,
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Fault> for ReadError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Foreign => Self::Damaged("another version has written it"),
            Fault::Damaged(why) => Self::Damaged(why),
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the file is gone"),
            Self::Damaged(why) => write!(f, "the file is damaged: {why}"),
            Self::System(error) => write!(f, "the file cannot be read ({error})"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            Self::Gone | Self::Damaged(_) => None,
        }
    }
}

/// The folder could not be written to. `Display` says what happened and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The store's folder.
    pub folder: PathBuf,
    /// What kind of error it was.
    pub kind: ErrorKind,
    /// The system's own words.
    pub text: String,
}

impl Problem {
    pub(crate) fn new(folder: PathBuf, error: &io::Error) -> Self {
        Self {
            folder,
            kind: error.kind(),
            text: error.to_string(),
        }
    }

    fn advice(&self) -> &'static str {
        match self.kind {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "make room there, or lower CONTEXTPILOT_STORE_GB"
            }
            ErrorKind::ReadOnlyFilesystem => "name a folder that can be written to",
            ErrorKind::PermissionDenied => "let this user write to it",
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                "it was removed; it will be made again if its parent is there"
            }
            _ => "look at the folder and its disk",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, text, .. } = self;
        write!(
            f,
            "the prefix store cannot write to {folder:?} ({text}): {}",
            self.advice()
        )
    }
}

impl std::error::Error for Problem {}
