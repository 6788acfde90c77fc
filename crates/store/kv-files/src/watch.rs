//! What has changed in the folder since it was looked at last. Other processes may write and remove, too.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use contextpilot_kv_store::Name;
use contextpilot_private_folder::PrivateFolder;
use rustix::fs::Dir;

use crate::folder::{Folder, SUFFIX, file_name, inner_of};
use crate::list::{Header, Look, folders, look};

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
