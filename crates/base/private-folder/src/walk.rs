//! From the root down to a folder, one name at a time, each looked at after it was opened.
//!
//! The descriptor of a folder that was found good is what the next name is looked up in. Only
//! this user and root can rename or replace anything in such a folder, so what was checked
//! is what is used, now and whenever the same path is opened again.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::Missing;
use crate::fault::{Facts, Fault};

/// Links on the way, at most: Linux' own limit for one path.
const MOST_LINKS: u32 = 40;

/// Opened for nothing but to look up names in it: no right to read it is needed.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOOK_UP: OFlags = OFlags::PATH;
/// Systems without such a flag want the right to read.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const LOOK_UP: OFlags = OFlags::RDONLY;

/// Why the walk ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The system's refusal.
    System(io::Error),
    /// Others could change what lies below `at`.
    Unsafe {
        /// The folder or link at fault.
        at: PathBuf,
        /// What is wrong with it.
        why: Fault,
    },
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The user whose folder is looked for, and where.
pub(crate) struct View<'a> {
    /// What absolute paths, links' too, begin at.
    pub(crate) root: &'a Path,
    /// The user id that has to own the folder.
    pub(crate) user: u32,
    /// The owner of what lies at a path, given the one that the system states. The identity but
    /// in tests, which may not give files away.
    pub(crate) owner: &'a dyn Fn(&Path, u32) -> u32,
    /// What becomes of folders that are missing.
    pub(crate) missing: Missing,
}

impl View<'_> {
    /// Opens the folder at `path`, which is absolute. What is missing on the way may be made, with
    /// mode 0700.
    ///
    /// `..` and symbolic links are followed as the system does it. All folders on the way, the
    /// root and the last one included, and all links have to be the user's or root's, and closed
    /// to all other users ([`Facts::fault_above`]).
    pub(crate) fn walk(&self, path: &Path) -> Result<File, Stop> {
        let (mut folder, mut at) = self.start()?;
        // The next name is the last.
        let mut names: Vec<OsString> = names(path).collect();
        let mut links = 0;
        while let Some(name) = names.pop() {
            if let Some(target) = self.link(&folder, &name, &at)? {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                if target.is_absolute() {
                    (folder, at) = self.start()?;
                }
                names.extend(self::names(&target));
                continue;
            }
            let flags = LOOK_UP | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = File::from(rustix::fs::openat(&folder, &*name, flags, Mode::empty())?);
            if name == ".." {
                at.pop();
            } else {
                at.push(&name)
            }
            self.check(&folder, &at)?;
        }
        Ok(folder)
    }

    fn start(&self) -> Result<(File, PathBuf), Stop> {
        let flags = LOOK_UP | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = File::from(rustix::fs::open(self.root, flags, Mode::empty())?);
        let at = PathBuf::from("/");
        self.check(&folder, &at)?;
        Ok((folder, at))
    }

    fn check(&self, folder: &File, at: &Path) -> Result<(), Stop> {
        match self.facts(folder, at)?.fault_above(self.user) {
            None => Ok(()),
            Some(why) => Err(Stop::Unsafe {
                at: at.to_owned(),
                why,
            }),
        }
    }

    /// What is known of the open folder that lies at `at`.
    pub(crate) fn facts(&self, folder: &File, at: &Path) -> io::Result<Facts> {
        let metadata = folder.metadata()?;
        Ok(Facts {
            owner: (self.owner)(at, metadata.uid()),
            mode: metadata.mode(),
        })
    }

    /// Where `name` in the folder `at` leads if it is a symbolic link. If there is nothing, a
    /// folder may be made.
    fn link(&self, folder: &File, name: &OsStr, at: &Path) -> Result<Option<PathBuf>, Stop> {
        if name == ".." {
            return Ok(None);
        }
        let found = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) if self.missing == Missing::Make => {
                make(folder, name)?;
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            return Ok(None);
        }
        let at = at.join(name);
        // In a sticky folder, the owner of a link can put another one in its place.
        let owner = (self.owner)(&at, found.st_uid);
        if let Some(why) = Facts::fault_of_link(owner, self.user) {
            return Err(Stop::Unsafe { at, why });
        }
        let target = rustix::fs::readlinkat(folder, name, Vec::new())?;
        Ok(Some(OsString::from_vec(target.into_bytes()).into()))
    }
}

/// The names in a path, the last one first. The root is not among them.
fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().rev().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}

/// Makes a private folder, unless there is something by now.
pub(crate) fn make(folder: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::mkdirat(folder, name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        result => result,
    }
}
