//! How the companion command finds the servers of this user.
//!
//! A server with `CONTEXTPILOT_LISTEN=auto` listens at a Unix socket in a private folder
//! ([`PrivateFolder::runtime`]), under a [`place`] that no other process uses. The companion command looks
//! into these folders ([`sockets`]). So nothing is written to a file, and there is no list that could be
//! out of date: a socket at which nothing listens was left by a process that was killed, and is removed
//! by the process that notices it.
//!
//! The name of a socket has the process id, for people, and a random number. So a name is never used
//! again, and a socket that is dead stays dead: it can be removed without a race.

#![forbid(unsafe_code)]

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, DirEntry};
use std::hash::BuildHasher;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use contextpilot_private_folder::{Missing, PrivateFolder};
use contextpilot_settings::LONGEST_PATH;

#[cfg(test)]
mod tests;

const BEGINNING: &str = "control-";
const END: &str = ".sock";

/// A socket of a server of this user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Socket {
    /// The server's process id, in its own namespace of processes.
    pub process: u32,
    /// Where the socket is.
    pub path: PathBuf,
}

impl Socket {
    /// The address, in the form of `CONTEXTPILOT_LISTEN`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix:{}", self.path.display())
    }
}

/// There is no private folder in which the path of a socket would be short enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPlace;

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no folder of this user is private, neither in XDG_RUNTIME_DIR nor in the machine's \
             memory nor in HOME, or their paths are too long",
        )
    }
}

impl std::error::Error for NoPlace {}

/// The path for the socket of this process. Removes what killed processes left in the same folder.
///
/// # Errors
/// There is no folder for it.
pub fn place(lookup: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, NoPlace> {
    let process = std::process::id();
    let random = RandomState::new().hash_one(process) as u32;
    let name = format!("{BEGINNING}{process}-{random:08x}{END}");
    let mut folders = PrivateFolder::runtime(lookup, Missing::Make);
    let fits = |path: &PathBuf| path.as_os_str().len() <= LONGEST_PATH;
    let place = folders
        .find_map(|folder| Some(folder.path().join(&name)).filter(fits))
        .ok_or(NoPlace)?;
    place
        .parent()
        .into_iter()
        .for_each(|folder| drop(living(folder)));
    Ok(place)
}

/// The sockets at which servers of this user listen, by process id. Removes those at which nothing listens.
#[must_use]
pub fn sockets(lookup: impl Fn(&str) -> Option<OsString>) -> Vec<Socket> {
    let folders = PrivateFolder::runtime(lookup, Missing::Leave);
    let mut sockets: Vec<Socket> = folders.flat_map(|folder| living(folder.path())).collect();
    sockets.sort_unstable();
    sockets
}

fn living(folder: &Path) -> Vec<Socket> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sockets = entries.filter_map(|entry| socket(&entry));
    sockets.filter(|socket| is_alive(&socket.path)).collect()
}

fn socket(entry: &DirEntry) -> Option<Socket> {
    let process = process(&entry.file_name())?;
    let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
    let path = entry.path();
    is_socket.then_some(Socket { process, path })
}

/// The process id in the name of a socket.
fn process(name: &OsStr) -> Option<u32> {
    let name = name.to_str()?.strip_prefix(BEGINNING)?;
    let (process, random) = name.strip_suffix(END)?.split_once('-')?;
    let is_random = random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    process.parse().ok().filter(|_| is_random)
}

/// Whether something listens there. A socket gets its name when its server already listens, so one at
/// which nothing listens is dead, and is removed.
fn is_alive(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            // Another process may have removed it.
            let _ = fs::remove_file(path);
            false
        }
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}
