//! What a child of a llama-server in router mode leaves for the next child of its model: the last requests, and what it takes
//! to go on with its recording.
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

use contextpilot_observer::{Recorder, Stamp};
use contextpilot_private_folder::{Missing, PrivateFolder};
use contextpilot_server_flags::ServerFlags;
use contextpilot_traffic::{Key, Progress};
use rustix::process::{Pid, getppid, test_kill_process};

use super::own_file;
use crate::library::Library;

const BEGINNING: &str = "router-";
/// A file that is written at each start of a model, so its age is that of the last start.
const STARTED: &str = ".started";

/// What is left, by the endings of the files.
pub(crate) const LAST_REQUESTS: &str = ".last";
pub(crate) const RECORDING: &str = ".recording";

/// Where a child finds the files of the last child, and leaves its own.
#[derive(Clone, Debug)]
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
    pub(crate) fn new(library: &dyn Library, flags: &ServerFlags) -> Option<Self> {
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
    pub(crate) fn take(&self, what: &str) -> Option<Left> {
        self.sweep();
        let path = self.file(what);
        let left = fs::read(&path).ok();
        let ended = fs::metadata(&path).and_then(|found| found.modified());
        let _ = fs::remove_file(&path);
        let mut started = 1;
        let mut is_swapped = false;
        for other in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let file_name = other.file_name();
            let name = file_name.to_str().unwrap_or_default();
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
        let _ = self.leave(STARTED, &[]);
        Some(Left {
            bytes: left?,
            models: if is_swapped { started } else { 0 },
        })
    }

    /// Leaves something for the next child.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn leave(&self, what: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.file(".new");
        let _ = fs::remove_file(&new);
        let mut file = own_file::open(&new, OpenOptions::new().write(true).create_new(true))?;
        file.write_all(bytes)?;
        fs::rename(&new, self.file(what))
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

/// When a recording began: with this process, or with an earlier one of its model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    /// Milliseconds since 1970.
    began_ms: u64,
    /// How long after that this process began to count, nanoseconds.
    before: u64,
}

impl Beginning {
    /// With this process.
    pub(crate) fn here(library: &dyn Library) -> Self {
        let now = library.now();
        Self {
            began_ms: now.unix_ms.saturating_sub(now.stamp.0 / 1_000_000),
            before: 0,
        }
    }

    /// With an earlier process.
    pub(crate) fn earlier(library: &dyn Library, progress: &Progress) -> Self {
        let here_ms = Self::here(library).began_ms;
        let passed = here_ms.saturating_sub(progress.began_ms) * 1_000_000;
        Self {
            began_ms: progress.began_ms,
            // Whatever became of the clock meanwhile: it is later than all that happened then.
            before: passed.max(progress.ended * 1000),
        }
    }

    /// A time since then.
    pub(crate) fn since(&self, at: Stamp) -> Stamp {
        match at.0 {
            0 => at,
            here => Stamp(here.saturating_add(self.before)),
        }
    }

    /// How far the recording is that ends now. `written`: bytes of its file.
    pub(crate) fn progress(
        &self,
        library: &dyn Library,
        recorder: &Recorder,
        written: u64,
    ) -> Progress {
        Progress {
            launches: recorder.launches(),
            ended: self.since(library.now().stamp).0 / 1000,
            began_ms: self.began_ms,
            written,
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
        assert!(one.take(LAST_REQUESTS).is_none(), "it is the first");
        one.leave(LAST_REQUESTS, b"unloaded").unwrap();
        let left = one.take(LAST_REQUESTS).expect("it was left");
        assert_eq!((&left.bytes[..], left.models), (&b"unloaded"[..], 0));
        assert!(one.take(LAST_REQUESTS).is_none(), "it was taken");

        one.leave(LAST_REQUESTS, b"swapped").unwrap();
        // Files have times of a few milliseconds.
        sleep(Duration::from_millis(20));
        assert!(two.take(LAST_REQUESTS).is_none());
        let left = one.take(LAST_REQUESTS).expect("it was left");
        assert_eq!((&left.bytes[..], left.models), (&b"swapped"[..], 2));
    }

    #[test]
    fn what_the_children_of_a_dead_router_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        let router = Pid::from_child(&dead);
        dead.wait().unwrap();
        place(&folder, router, "one")
            .leave(LAST_REQUESTS, b"old")
            .unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "kept").unwrap();
        place(&folder, rustix::process::getpid(), "one").take(LAST_REQUESTS);
        let names = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(names[0], "other");
        assert!(names[1].to_str().unwrap().ends_with(STARTED));
    }
}
