//! The surroundings of a launch, and assertions about its output.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
pub(crate) const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
pub(crate) const URL: &str = "http://127.0.0.1:9";

/// A home folder, and a folder for `PATH` with a server in it.
pub(crate) struct Machine {
    pub(crate) root: tempfile::TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let machine = Self::without_server();
        symlink("/bin/cat", machine.server()).unwrap();
        machine
    }

    pub(crate) fn without_server() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["", "home", "bin"] {
            let path = root.path().join(folder);
            fs::create_dir_all(&path).unwrap();
            // Not writable by others, whatever the umask of this process is.
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        Self { root }
    }

    pub(crate) fn with_script(script: &str) -> Self {
        let machine = Self::without_server();
        write_executable(&machine.server(), script.as_bytes());
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn server(&self) -> PathBuf {
        self.path("bin/llama-server")
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.path("home/.cache/contextpilot-llama")
    }

    pub(crate) fn make_cache(&self) {
        fs::create_dir_all(self.cache()).unwrap();
        let above = self.path("home/.cache");
        fs::set_permissions(above, Permissions::from_mode(0o755)).unwrap();
    }

    /// `program`, in an environment with this machine's folders and none of our settings.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", self.path("bin"));
        command
    }

    pub(crate) fn launcher(&self) -> Command {
        self.command(LAUNCHER)
    }

    /// The launcher, with a setting that asks for the hook.
    pub(crate) fn hooked(&self) -> Command {
        let mut command = self.launcher();
        command.env("CONTEXTPILOT_INDEX_URL", URL);
        command
    }

    /// The path of the library that the launcher preloads.
    pub(crate) fn library(&self) -> PathBuf {
        let output = self.hooked().arg("/proc/self/environ").output().unwrap();
        preloaded(&output).map(PathBuf::from).unwrap()
    }
}

pub(crate) fn write_executable(path: &Path, content: &[u8]) {
    let data = path.with_extension("data");
    fs::write(&data, content).unwrap();
    copy_executable(&data, path);
    fs::remove_file(data).unwrap();
}

/// Copies in another process. If this process wrote the file, a child that another
/// test starts at that moment could still have it open, and then it could not be
/// executed.
pub(crate) fn copy_executable(from: &Path, to: &Path) {
    let script = "cp \"$0\" \"$1\" && chmod 755 \"$1\"";
    let copied = Command::new("/bin/sh")
        .args(["-c", script])
        .args([from, to])
        .status();
    assert!(copied.unwrap().success());
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `LD_PRELOAD` in an output that is an environment.
pub(crate) fn preloaded(output: &Output) -> Option<OsString> {
    output
        .stdout
        .split(|b| *b == 0)
        .find_map(|entry| entry.strip_prefix(b"LD_PRELOAD="))
        .map(|value| OsString::from_vec(value.to_vec()))
}

/// The launcher must have ended with this code, after one line that says `what`.
#[track_caller]
pub(crate) fn assert_refused(output: &Output, code: i32, what: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("[ContextPilot] "), "{message}");
    for what in what {
        assert!(message.contains(what), "{what:?} is not in: {message}");
    }
    assert!(output.stdout.is_empty(), "the server ran: {message}");
}

/// The server must run without the hook, after one line that says `why`. With
/// `CONTEXTPILOT_STRICT=1` it must not run.
#[track_caller]
pub(crate) fn assert_plain(command: &mut Command, why: &str) {
    let output = command.arg("/proc/self/environ").output().unwrap();
    let message = stderr(&output);
    assert!(output.status.success(), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("[ContextPilot] "), "{message}");
    assert!(message.contains("without the hook"), "{message}");
    assert!(message.contains(why), "{why:?} is not in: {message}");
    assert_eq!(preloaded(&output), None, "{message}");

    let output = command.env("CONTEXTPILOT_STRICT", "1").output().unwrap();
    assert_refused(&output, 3, &[why, "CONTEXTPILOT_STRICT"]);
}
