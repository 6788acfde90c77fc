//! What a child of a llama-server in router mode leaves for the next child of its model: the last requests.
//!
//! Without it, a prompt that comes back after the router has made room for another model (`--models-max`) would look as if it
//! had never been sent. The file stands in the user's runtime folder, which is memory where there is one. It has no text,
//! but the key of the recording. The next child removes it, and also the files of children whose routers have
//! ended.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use contextpilot_private_folder::{Missing, PrivateFolder};
use contextpilot_server_flags::ServerFlags;
use contextpilot_traffic::Key;
use rustix::process::{Pid, getppid, test_kill_process};

use super::own_file;
use crate::library::Library;

const BEGINNING: &str = "router-";
/// A file that is written at each start of a model, so its age is that of the last start.
const STARTED: &str = ".started";
const LAST: &str = ".last";

/// Where a child finds the file of the last child, and leaves its own.
#[derive(Debug)]
pub(crate) struct HandoverFolder {
    folder: PathBuf,
    /// Begins the names of all files of this router's children.
    router: String,
    /// Begins the names of all files of this model's children.
    model: String,
}

/// What the last child of this model left.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) bytes: Vec<u8>,
    /// How many models the router has started so far, if it has started another one since that child ended. 0: it has not.
    pub(crate) models: u32,
}

impl HandoverFolder {
    /// `None`: this is no child of a router, or there is no folder for it.
    pub(crate) fn of(library: &dyn Library, flags: &ServerFlags) -> Option<Self> {
        let port = flags.router_port()?;
        let router = getppid()?;
        let mut folders = PrivateFolder::runtime(|name| library.variable(name), Missing::Make);
        let folder = folders.next()?.path().to_path_buf();
        let model = flags.model().map(|model| model.name).unwrap_or_default();
        Some(Self::at(folder, router, port, &model))
    }

    fn at(folder: PathBuf, router: Pid, port: &OsStr, model: &OsStr) -> Self {
        // Only to make short names of these: nothing secret is hashed.
        let digest = |text: &OsStr| Key::new([0; 16]).hash(text.as_bytes());
        let router = format!(
            "{BEGINNING}{}-{:016x}-",
            router.as_raw_nonzero(),
            digest(port)
        );
        let model = format!("{router}{:016x}", digest(model));
        Self {
            folder,
            router,
            model,
        }
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("{}{ending}", self.model))
    }

    /// This model is started: takes what its last child left, and removes the file. `None`: it left nothing.
    pub(crate) fn take(&self) -> Option<Left> {
        self.sweep();
        let path = self.file(LAST);
        let left = fs::read(&path).ok();
        let ended = fs::metadata(&path).and_then(|found| found.modified());
        let _ = fs::remove_file(&path);
        let mut started = 1;
        let mut is_swapped = false;
        for other in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = other.file_name();
            let name = name.to_str().unwrap_or_default();
            let is_other = name.starts_with(&self.router) && !name.starts_with(&self.model);
            if !is_other || !name.ends_with(STARTED) {
                continue;
            }
            started += 1;
            let at = other.metadata().and_then(|found| found.modified());
            is_swapped |= ended
                .as_ref()
                .is_ok_and(|ended| at.is_ok_and(|at| at >= *ended));
        }
        let _ = self.write(STARTED, &[]);
        Some(Left {
            bytes: left?,
            models: if is_swapped { started } else { 0 },
        })
    }

    /// Leaves the requests for the next child.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn leave(&self, bytes: &[u8]) -> io::Result<()> {
        self.write(LAST, bytes)
    }

    fn write(&self, ending: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.file(".new");
        let _ = fs::remove_file(&new);
        let mut file = own_file::open(&new, OpenOptions::new().write(true).create_new(true))?;
        file.write_all(bytes)?;
        fs::rename(&new, self.file(ending))
    }

    /// Removes the files of children whose routers have ended.
    fn sweep(&self) {
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = file.file_name();
            let router = name
                .to_str()
                .and_then(|name| name.strip_prefix(BEGINNING))
                .and_then(|name| name.split('-').next())
                .and_then(|pid| Pid::from_raw(pid.parse().ok()?));
            let is_dead = |router| test_kill_process(router) == Err(rustix::io::Errno::SRCH);
            if router.is_some_and(is_dead) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    fn place(folder: &tempfile::TempDir, router: Pid, model: &str) -> HandoverFolder {
        let folder = folder.path().to_path_buf();
        HandoverFolder::at(folder, router, OsStr::new("8080"), OsStr::new(model))
    }

    #[test]
    fn what_a_child_left_is_taken_once_and_says_whether_another_model_took_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let router = rustix::process::getpid();
        let [one, two] = ["one", "two"].map(|model| place(&folder, router, model));
        assert!(one.take().is_none(), "it is the first");
        one.leave(b"unloaded").unwrap();
        let left = one.take().expect("it was left");
        assert_eq!((&left.bytes[..], left.models), (&b"unloaded"[..], 0));
        assert!(one.take().is_none(), "it was taken");

        one.leave(b"swapped").unwrap();
        // Files have times of a few milliseconds.
        sleep(Duration::from_millis(20));
        assert!(two.take().is_none());
        let left = one.take().expect("it was left");
        assert_eq!((&left.bytes[..], left.models), (&b"swapped"[..], 2));
    }

    #[test]
    fn what_the_children_of_a_dead_router_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        let router = Pid::from_child(&dead);
        dead.wait().unwrap();
        place(&folder, router, "one").leave(b"old").unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "kept").unwrap();
        place(&folder, rustix::process::getpid(), "one").take();
        let names = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = names.map(|one| one.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(names[0], "other");
        assert!(names[1].to_str().unwrap().ends_with(STARTED));
    }
}
