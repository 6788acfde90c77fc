//! The folders that this project keeps files in: `contextpilot-llama` in the
//! user's cache folder (the hook library) and in the user's state folder (the
//! journal of live request ids), one in the system's memory (what the journal
//! does not have yet), one in the folder of the prefix store, which the user names, and one in
//! the user's runtime folder (sockets).
//!
//! A user who can write to the first folder, or can put another folder in its place,
//! chooses what is loaded into the server. A user who can write to the second
//! chooses what is reported to the index. So each must belong to this user and be closed
//! to all other users. Every folder above it must belong to this user or root, and
//! no other user or group may write there. The exception are folders of
//! root with the sticky bit, such as `/tmp`: files in them can be renamed by
//! their owner and by root only. Symbolic links on the way must belong to this user or
//! root, and the folders that they lead through must follow the same rules.
//!
//! Each folder is opened relative to the one above, from the root on, and checked after it was
//! opened, so nothing can change between the check and the use.
//!
//! In a user namespace without root's id, root's folders belong to the overflow user (65534), as
//! those of all strangers do: there `/` itself is refused.
//!
//! # Why not `fs-mistrust`
//! That crate has the same rules, and was tried in this one's place (0.11.0, the last for Rust
//! 1.85; 0.16.0 needs 1.92). It brings 28 more crates into the lock file, among them `syn` 1 and
//! two families of derive macros; it makes the launcher 56 KB larger and this walk 5 KB, and the
//! hook library too, which has 3 MB in all. It looks at paths by name, and gives back no
//! descriptor of the folder that it has checked. Neither can be felt at the launcher's start: a
//! folder six levels deep takes 50 µs with it, 46 µs with this walk, and took 38 µs before
//! parents were looked at, of a start of 6 ms (1,500 starts of each, shuffled).

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags};

mod fault;
#[cfg(test)]
mod tests;
mod walk;

pub use fault::Fault;

use fault::Facts;
use walk::{Stop, View};

const NAME: &str = "contextpilot-llama";

/// Which of the user's folders, after the XDG base directory specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// `$XDG_CACHE_HOME`, else `~/.cache`: files that can be created again.
    Cache,
    /// `$XDG_STATE_HOME`, else `~/.local/state`: files that outlive a process.
    State,
}

impl Base {
    /// The variable that names this folder.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Cache => "XDG_CACHE_HOME",
            Self::State => "XDG_STATE_HOME",
        }
    }

    /// The folder. `None`: no variable says where it is.
    fn of(self, lookup: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let absolute = |name: &str| {
            let path = lookup(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        absolute(self.variable())
            .or_else(|| absolute("HOME").map(|home| home.join(self.below_home())))
    }

    fn below_home(self) -> &'static str {
        match self {
            Self::Cache => ".cache",
            Self::State => ".local/state",
        }
    }
}

/// What becomes of a folder that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The folder is made.
    Make,
    /// The folder stays missing.
    Leave,
}

/// A folder that was found private, and is kept open. If its path is replaced
/// afterwards, the descriptor still leads to the folder that was
/// checked.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    descriptor: File,
}

impl PrivateFolder {
    /// `contextpilot-llama` in `base`: there, owned by this user, and closed to
    /// all other users. It is made if it is missing, and closed (0700) if others
    /// could merely read it; if others could write to it, what is in it may
    /// already be theirs.
    ///
    /// `lookup` is asked for `HOME` and [`Base::variable`]; relative paths
    /// there are ignored, as the specification says.
    ///
    /// # Errors
    /// No such variable, the system's refusal, or what is not private.
    pub fn open(base: Base, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let base = base.of(lookup).ok_or(Error::NoHome)?;
        Self::inside(&base, NAME)
    }

    /// Folders for what is of use as long as its process lives, such as sockets. The first is
    /// the place for it: in `$XDG_RUNTIME_DIR`, else where logins have that folder, else in the
    /// memory of the machine, else in the state folder. A process looks into all of them for
    /// what others have put there, since not all processes of a user have the same variables.
    /// Folders that are not there, or not private, are left out.
    pub fn runtime(
        lookup: impl Fn(&str) -> Option<OsString>,
        missing: Missing,
    ) -> impl Iterator<Item = Self> {
        let given = lookup("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let usual = PathBuf::from(format!("/run/user/{}", effective_user()));
        let other = (given.as_ref() != Some(&usual)).then_some(usual);
        // These folders are the system's to make.
        let bases = given.into_iter().chain(other).filter(|base| base.is_dir());
        bases
            .filter_map(move |base| Self::within(&base, NAME, missing).ok())
            .chain(std::iter::once_with(move || Self::memory(missing)).flatten())
            .chain(std::iter::once_with(move || Self::state(lookup, missing)).flatten())
    }

    fn state(lookup: impl Fn(&str) -> Option<OsString>, missing: Missing) -> Option<Self> {
        let base = Base::State.of(lookup)?;
        Self::within(&base, NAME, missing).ok()
    }

    /// The user's folder in the memory that all processes of the machine share: what
    /// outlives a process, but not the machine. Checked in the same way. `None`: there
    /// is no such memory, or the folder there is not private.
    pub fn in_memory() -> Option<Self> {
        Self::memory(Missing::Make)
    }

    #[cfg(target_os = "linux")]
    fn memory(missing: Missing) -> Option<Self> {
        const TMPFS: i64 = 0x0102_1994;
        let name = format!("{NAME}-{}", effective_user());
        let memory = Path::new("/dev/shm");
        // Not made, if it is missing: that would not be memory.
        let there = memory
            .is_dir()
            .then(|| Self::within(memory, &name, missing).ok());
        there.flatten().filter(|folder| {
            let system = rustix::fs::fstatfs(folder);
            // The type of this field differs between machines.
            #[allow(clippy::unnecessary_cast)]
            system.is_ok_and(|system| system.f_type as i64 == TMPFS)
        })
    }

    /// Where the system has no such memory.
    #[cfg(not(target_os = "linux"))]
    fn memory(_: Missing) -> Option<Self> {
        None
    }

    /// `name` in `base`, an absolute path: there, owned by this user, and closed to all other users,
    /// as [`open`](Self::open) says. `base` may be readable by others; it is made if it is missing.
    ///
    /// # Errors
    /// The system's refusal, or what is not private.
    pub fn inside(base: &Path, name: &str) -> Result<Self, Error> {
        Self::within(base, name, Missing::Make)
    }

    /// As [`inside`](Self::inside), but nothing is made. `None`: the folder is not there, and can be made.
    ///
    /// # Errors
    /// As there; or it is not there, and cannot be made.
    pub fn look(base: &Path, name: &str) -> Result<Option<Self>, Error> {
        let error = match Self::within(base, name, Missing::Leave) {
            Ok(folder) => return Ok(Some(folder)),
            Err(error) => error,
        };
        let is_missing = matches!(&error, Error::System { source, .. } if source.kind() == io::ErrorKind::NotFound);
        let above = base.ancestors().find(|folder| folder.exists());
        match above.filter(|_| is_missing) {
            Some(above) => {
                let access = Access::WRITE_OK | Access::EXEC_OK;
                let may = rustix::fs::accessat(CWD, above, access, AtFlags::EACCESS);
                may.map(|()| None).map_err(|source| Error::System {
                    path: base.join(name),
                    source: source.into(),
                })
            }
            None => Err(error),
        }
    }

    /// As [`open`](Self::open), but nothing is made: see [`look`](Self::look). Where it is, or would be.
    ///
    /// # Errors
    /// As there.
    pub fn look_for(
        base: Base,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<PathBuf, Error> {
        let base = base.of(lookup).ok_or(Error::NoHome)?;
        Self::look(&base, NAME)?;
        Ok(base.join(NAME))
    }

    fn within(base: &Path, name: &str, missing: Missing) -> Result<Self, Error> {
        let view = View {
            root: Path::new("/"),
            user: effective_user(),
            owner: &|_, owner| owner,
            missing,
        };
        Self::seen(&view, base, name)
    }

    /// `name` in `base`, an absolute path.
    fn seen(view: &View<'_>, base: &Path, name: &str) -> Result<Self, Error> {
        let path = base.join(name);
        let opened = view
            .walk(base)
            .and_then(|base| private(view, &base, name, &path));
        match opened {
            Ok(descriptor) => Ok(Self { path, descriptor }),
            Err(Stop::System(source)) => Err(Error::System { path, source }),
            Err(Stop::Unsafe { at, why }) => Err(Error::Unsafe { path, at, why }),
        }
    }

    /// Whether it is still closed to all other users. Its owner may have opened it since.
    ///
    /// # Errors
    /// The system's refusal, or that others can write to it.
    pub fn check(&self) -> Result<(), Error> {
        let path = || self.path.clone();
        let metadata = (self.descriptor.metadata()).map_err(|source| Error::System {
            path: path(),
            source,
        })?;
        let facts = Facts {
            owner: metadata.uid(),
            mode: metadata.mode(),
        };
        match facts.fault_of_private(effective_user()) {
            None => Ok(()),
            Some(why) => Err(Error::Unsafe {
                path: path(),
                at: path(),
                why,
            }),
        }
    }

    /// Where it is; for messages, and for those that need a path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for PrivateFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The folder `name` in `base`, closed if others could read it. `path` is
/// where it is.
fn private(view: &View<'_>, base: &File, name: &str, path: &Path) -> Result<File, Stop> {
    let faulty = |why| Stop::Unsafe {
        at: path.to_owned(),
        why,
    };
    if view.missing == Missing::Make {
        walk::make(base, OsStr::new(name))?;
    }
    // By name first, as opening a link or a file would fail with a code that differs between
    // systems; then again what was opened.
    let found = rustix::fs::statat(base, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(faulty(Fault::NotAFolder));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = File::from(rustix::fs::openat(base, name, flags, Mode::empty())?);
    let facts = view.facts(&folder, path)?;
    if let Some(why) = facts.fault_of_private(view.user) {
        return Err(faulty(why));
    }
    if facts.mode & 0o077 != 0 {
        folder.set_permissions(Permissions::from_mode(0o700))?;
    }
    Ok(folder)
}

/// The user whose rights this process has.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Why there is no private folder. `Display` says what is wrong; what to do
/// about it depends on what the folder was for.
#[derive(Debug)]
pub enum Error {
    /// Neither the base's variable nor `HOME` is an absolute path.
    NoHome,
    /// The folder cannot be made or read.
    System {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could change the folder or replace it.
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// What is at fault: the folder, or a folder or link above it, with the links before
        /// it followed.
        at: PathBuf,
        /// What is wrong with that.
        why: Fault,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHome => f.write_str("HOME is not set"),
            Self::System { path, source } => write!(f, "{path:?} cannot be used ({source})"),
            Self::Unsafe { path, at, why } if at == path => {
                write!(f, "{path:?} is not private ({why})")
            }
            Self::Unsafe { path, at, why } => {
                write!(f, "{path:?} is not private, because of {at:?} ({why})")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System { source, .. } => Some(source),
            Self::NoHome | Self::Unsafe { .. } => None,
        }
    }
}
