//! What is in the folder, file by file.

use std::io;
use std::os::fd::OwnedFd;
use std::time::UNIX_EPOCH;

use contextpilot_kv_store::{Chunk, Name};
use rustix::fs::{AtFlags, Dir, Timespec};
use rustix::io::Errno;

use crate::folder::{Folder, SUFFIX, file_name, open_to_read, read_at_most};
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
