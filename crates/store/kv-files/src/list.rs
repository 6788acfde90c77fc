//! What is in the folder, file by file, and what has changed there since it was looked at last: other processes may write
//! and remove, too.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use contextpilot_kv_store::{Chunk, Name};
use contextpilot_private_folder::PrivateFolder;
use rustix::fs::{AtFlags, Dir, Timespec};
use rustix::io::Errno;

use crate::folder::{Folder, SUFFIX, file_name, inner_of, open_to_read, read_at_most};
use crate::format::{Fault, Head, LONGEST_HEAD};

impl Folder {
    /// The header of a chunk's file. `None`: it is not there, or not good.
    pub fn header(&self, name: &Name) -> Option<Header> {
        let file_name = file_name(name);
        let (inner, last) = file_name.split_once('/')?;
        match look(&self.inner(inner).ok()?, last) {
            Look::Good(header) => Some(header),
            _ => None,
        }
    }

    /// All chunks in the folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn headers(&self) -> io::Result<Headers> {
        Headers::new(self.clone())
    }

    /// Chunks that were last used in the future, for the clock was set back since: they were all used before `now`, and
    /// get the last times before it, in their order. So do their files, for else each start would find that they were
    /// used a moment ago.
    pub fn bring_back(&self, headers: &mut [Header], now: u64) {
        headers.sort_by_key(|header| (header.last_used, header.chunk.name));
        let first = now.saturating_sub(headers.len() as u64);
        for (header, time) in headers.iter_mut().zip(first..) {
            header.last_used = time;
            let time = Timespec {
                tv_sec: i64::try_from(time / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (time % 1_000_000_000) as _,
            };
            self.set_used(&header.chunk.name, time);
        }
    }
}

/// A file with a good header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it holds.
    pub chunk: Chunk,
    /// When the chunk was last used: nanoseconds since 1970, by the clock of that time.
    pub last_used: u64,
}

/// All chunks in a folder, in no order. Files that are cut off or have damaged headers are removed
/// on the way; rows are not read.
#[derive(Debug)]
pub struct Headers {
    folder: Folder,
    /// Folders that are still to be read.
    folders: Vec<String>,
    current: Option<(OwnedFd, Dir)>,
    /// Damaged files that were removed.
    pub damaged: usize,
    /// Files that are not ours, or another version's. They stay.
    pub foreign: usize,
    /// Files and folders that the system did not let us read.
    pub unreadable: usize,
}

impl Headers {
    pub(crate) fn new(folder: Folder) -> io::Result<Self> {
        Ok(Self {
            folders: folders(&folder)?,
            folder,
            current: None,
            damaged: 0,
            foreign: 0,
            unreadable: 0,
        })
    }

    /// The next name in any of the folders.
    fn next_name(&mut self) -> Option<String> {
        loop {
            if let Some((_, dir)) = &mut self.current {
                match dir.next() {
                    Some(Ok(entry)) => {
                        let name = entry.file_name().to_string_lossy();
                        if name != "." && name != ".." {
                            return Some(name.into_owned());
                        }
                        continue;
                    }
                    Some(Err(_)) => self.unreadable += 1,
                    None => {}
                }
            }
            self.current = None;
            let name = self.folders.pop()?;
            let opened = self.folder.inner(&name);
            let both = opened.and_then(|folder| Ok((Dir::read_from(&folder)?, folder)));
            match both {
                Ok((dir, folder)) => self.current = Some((folder, dir)),
                Err(_) => self.unreadable += 1,
            }
        }
    }

    fn look(&mut self, file_name: &str) -> Option<Header> {
        let (folder, _) = self.current.as_ref()?;
        match look(folder, file_name) {
            Look::Good(header) => return Some(header),
            Look::Foreign => self.foreign += 1,
            Look::Damaged => self.damaged += 1,
            Look::Unreadable => self.unreadable += 1,
            Look::Gone => {}
        }
        None
    }
}

/// The inner folders, which have the files.
pub(crate) fn folders(folder: &Folder) -> io::Result<Vec<String>> {
    let mut folders = Vec::new();
    for entry in Dir::read_from(&*folder.private())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            folders.push(name.into_owned());
        }
    }
    Ok(folders)
}

/// What a file turned out to be.
pub(crate) enum Look {
    Good(Header),
    /// It is not ours, or another version's. It stays.
    Foreign,
    /// It was damaged, and was removed.
    Damaged,
    /// The system does not let us read or remove it.
    Unreadable,
    /// Another process has removed it.
    Gone,
}

/// Reads the header of a file in this inner folder.
pub(crate) fn look(folder: &OwnedFd, file_name: &str) -> Look {
    let name = file_name.strip_suffix(SUFFIX);
    let Some(name) = name.and_then(|name| name.parse::<Name>().ok()) else {
        return Look::Foreign;
    };
    match header(folder, file_name, name) {
        Ok(header) => Look::Good(header),
        Err(Trouble::Fault(Fault::Foreign)) => Look::Foreign,
        Err(Trouble::Fault(Fault::Damaged(_))) => {
            match rustix::fs::unlinkat(folder, file_name, AtFlags::empty()) {
                Ok(()) => Look::Damaged,
                Err(_) => Look::Unreadable,
            }
        }
        Err(Trouble::System(error)) if error.kind() == io::ErrorKind::NotFound => Look::Gone,
        Err(Trouble::System(_)) => Look::Unreadable,
    }
}

impl Iterator for Headers {
    type Item = Header;

    fn next(&mut self) -> Option<Header> {
        loop {
            let name = self.next_name()?;
            if let Some(header) = self.look(&name) {
                return Some(header);
            }
        }
    }
}

enum Trouble {
    Fault(Fault),
    System(io::Error),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

fn header(folder: &OwnedFd, file_name: &str, name: Name) -> Result<Header, Trouble> {
    let mut file = match open_to_read(folder, file_name) {
        Ok(file) => file,
        Err(Errno::LOOP | Errno::MLINK | Errno::NXIO) => return Err(Fault::Foreign.into()),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Fault::Foreign.into());
    }
    let mut buffer = [0; LONGEST_HEAD];
    let count = read_at_most(&mut file, &mut buffer)?;
    let head = Head::read(&buffer[..count])?;
    if head.chunk.name != name {
        return Err(Fault::Damaged("it is the file of another chunk").into());
    }
    if Head::file_size(&head.chunk) != metadata.len() {
        return Err(Fault::Damaged("it has another size than it says").into());
    }
    let modified = metadata.modified().ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(Header {
        chunk: head.chunk,
        last_used: since.map_or(0, |since| since.as_nanos().try_into().unwrap_or(u64::MAX)),
    })
}

/// Looks at the folder again and again. A look costs one question to the system for each inner folder (at
/// most 256), and only those that have changed are read.
#[derive(Debug)]
pub struct Watch {
    folder: Folder,
    /// The folder that was looked at last. While it is open, no other one gets its number.
    seen: Option<Arc<PrivateFolder>>,
    /// The last look found another one in its place.
    is_another: bool,
    folders: BTreeMap<String, Seen>,
}

/// An inner folder as it was seen last.
#[derive(Debug, Default)]
struct Seen {
    /// Its modification time.
    modified: Option<SystemTime>,
    /// It is read once more although this time is the same: what is written within one tick of the clock
    /// does not change it.
    again: bool,
    /// The chunks with good headers, in order.
    names: Vec<Name>,
}

/// What is in an inner folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The first byte of all names in it.
    pub first: u8,
    /// The chunks with good headers, in order.
    pub names: Vec<Name>,
}

impl Watch {
    /// To the first look everything is new.
    pub fn new(folder: Folder) -> Self {
        Self {
            folder,
            seen: None,
            is_another: false,
            folders: BTreeMap::new(),
        }
    }

    /// Whether the last look found another folder in the place of the one before: that was removed, and made again. What
    /// else was written into it is gone, too.
    pub fn is_another(&self) -> bool {
        self.is_another
    }

    /// Finds out which folder there is. In another one everything is new, and what is not there is gone.
    fn follow(&mut self) -> io::Result<()> {
        self.is_another = false;
        self.folder.follow()?;
        let now = self.folder.private();
        if let Some(seen) = &self.seen {
            let (seen, now) = (rustix::fs::fstat(seen)?, rustix::fs::fstat(&*now)?);
            self.is_another = (seen.st_dev, seen.st_ino) != (now.st_dev, now.st_ino);
        }
        if self.is_another {
            let folders = self.folders.values_mut();
            folders.for_each(|seen| *seen = Seen::default());
        }
        self.seen = Some(now);
        Ok(())
    }

    /// Passes each new chunk to `found`, and returns what is in the inner folders that may have changed.
    /// Damaged files are removed, as by [`Folder::headers`].
    ///
    /// # Errors
    /// The folder cannot be read, or is gone. It is made again when something is written.
    pub fn look(&mut self, mut found: impl FnMut(Header)) -> io::Result<Vec<Listing>> {
        self.follow()?;
        for first in folders(&self.folder)? {
            self.folders.entry(first).or_default();
        }
        let folder = &self.folder;
        let read = self.folders.iter_mut().filter_map(|(first, seen)| {
            // A folder that cannot be read is looked at again the next time.
            let changed = look_into(folder, first, seen, &mut found).unwrap_or(false);
            changed.then(|| Listing {
                first: u8::from_str_radix(first, 16).unwrap_or(0),
                names: seen.names.clone(),
            })
        });
        Ok(read.collect())
    }

    /// These chunks are new to the next look, if they are there: the caller has forgotten them, because it removed
    /// their files, and another process has written them again since the last look.
    pub fn again(&mut self, names: &[Name]) {
        for name in names {
            let seen = self.folders.get_mut(inner_of(&file_name(name)));
            let at = seen.and_then(|seen| Some((seen.names.binary_search(name).ok()?, seen)));
            if let Some((at, seen)) = at {
                seen.names.remove(at);
                seen.again = true;
            }
        }
    }
}

/// Whether the folder may have changed.
fn look_into(
    folder: &Folder,
    name: &str,
    seen: &mut Seen,
    found: &mut impl FnMut(Header),
) -> io::Result<bool> {
    let inner = File::from(folder.inner(name)?);
    let modified = Some(inner.metadata()?.modified()?);
    if modified == seen.modified && !seen.again {
        return Ok(false);
    }
    let names = read(&inner.into(), &seen.names, found)?;
    *seen = Seen {
        again: modified != seen.modified,
        modified,
        names,
    };
    Ok(true)
}

/// The chunks in an inner folder, in order. Those that are not `known` are passed to `found`.
fn read(inner: &OwnedFd, known: &[Name], found: &mut impl FnMut(Header)) -> io::Result<Vec<Name>> {
    let mut names = Vec::with_capacity(known.len());
    for entry in Dir::read_from(inner)? {
        let entry = entry?;
        let file_name = entry.file_name().to_string_lossy();
        let name = file_name
            .strip_suffix(SUFFIX)
            .and_then(|name| name.parse().ok());
        let Some(name) = name else {
            continue;
        };
        if known.binary_search(&name).is_ok() {
            names.push(name);
        } else if let Look::Good(header) = look(inner, &file_name) {
            names.push(name);
            found(header);
        }
    }
    names.sort_unstable();
    Ok(names)
}
