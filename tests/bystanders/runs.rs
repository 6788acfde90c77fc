//! Runs a program with and without the library, and compares its behaviour.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::tools::program;

/// The library that the launcher preloads.
pub(crate) const HOOK: &str = env!("CONTEXTPILOT_EMBEDDED_HOOK");

/// A program that is not a llama-server.
#[derive(Debug, Clone)]
pub(crate) struct Bystander {
    program: PathBuf,
    arguments: Vec<OsString>,
    preload: Option<OsString>,
    exit: i32,
    /// It starts the same number of threads each time.
    steady: bool,
    /// The library may read the program's own file.
    may_look_at_itself: bool,
}

/// How it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Preloaded,
    /// Preloaded, with all settings of the hook.
    Told,
}

/// The observed behaviour, which is compared.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    exit: Option<i32>,
    stdout: String,
    stderr: String,
    /// The files in its folder afterwards.
    files: Vec<String>,
}

/// The number of its system calls, by name and object. `None` without strace.
type Calls = Option<BTreeMap<String, usize>>;

/// The name of the call that starts a thread.
const THREAD: &str = "thread";

/// The first letters of system calls whose text arguments are not paths.
const NO_PATHS: [&str; 4] = ["get", "recv", "send", "accept"];

impl Bystander {
    pub(crate) fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            preload: None,
            exit: 0,
            steady: true,
            may_look_at_itself: false,
        }
    }

    pub(crate) fn arg(self, argument: impl AsRef<OsStr>) -> Self {
        self.args([argument])
    }

    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let arguments = arguments.into_iter().map(|one| one.as_ref().to_owned());
        self.arguments.extend(arguments);
        self
    }

    /// Preloads another library after the hook.
    pub(crate) fn preloading(mut self, library: &Path) -> Self {
        self.preload = Some(library.into());
        self
    }

    /// Sets the expected exit code.
    pub(crate) fn exits(mut self, code: i32) -> Self {
        self.exit = code;
        self
    }

    /// The number of its threads depends on the machine, so it is not compared.
    pub(crate) fn with_threads(mut self) -> Self {
        self.steady = false;
        self
    }

    /// The program has the name of a llama-server, or has llama.cpp loaded from the start. So the library
    /// must read the program's file to find out whether it is a llama-server.
    pub(crate) fn may_look_at_itself(mut self) -> Self {
        self.may_look_at_itself = true;
        self
    }

    /// # Panics
    /// If the program behaves differently with the library.
    pub(crate) fn must_not_notice(&self) {
        let (plain, plain_calls) = self.run(Way::Plain);
        assert_eq!(plain.exit, Some(self.exit), "{self:?} by itself: {plain:?}");
        assert!(
            !(plain.stdout.is_empty() && plain.stderr.is_empty()),
            "{self:?} shows nothing"
        );
        for way in [Way::Preloaded, Way::Told] {
            let (seen, calls) = self.run(way);
            let arguments = (&self.program, &self.arguments);
            assert_same(&plain.stdout, &seen.stdout, way, "stdout", &arguments);
            assert_same(&plain.stderr, &seen.stderr, way, "stderr", &arguments);
            assert_eq!(seen, plain, "{way:?} {arguments:?}");
            if let (Some(plain), Some(calls)) = (&plain_calls, calls) {
                let new: Vec<_> = calls
                    .keys()
                    .filter(|call| !plain.contains_key(*call) && !is_loaders(call))
                    .filter(|call| !(self.may_look_at_itself && is_look_at_itself(call)))
                    .collect();
                assert!(new.is_empty(), "{way:?} {arguments:?}: {new:#?}");
                if self.steady {
                    let threads = (plain.get(THREAD), calls.get(THREAD));
                    assert_eq!(threads.0, threads.1, "{way:?} {arguments:?}");
                }
            }
        }
    }

    fn run(&self, way: Way) -> (Seen, Calls) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let trace = tempfile::NamedTempFile::new().expect("a temporary file");
        // Any connection to this port is noticed.
        let index = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let strace = program("strace");
        let mut command = match &strace {
            Some(strace) => {
                let mut command = Command::new(strace);
                command
                    .args(["-f", "-qq", "-e", "signal=none", "-e"])
                    .arg("trace=%file,%network,clone,clone3")
                    .arg("-o")
                    .arg(trace.path());
                for (name, value) in self.environment(way, folder.path(), &index) {
                    let mut setting = OsString::from(format!("{name}="));
                    setting.push(value);
                    command.arg("-E").arg(setting);
                }
                command.arg(&self.program);
                command
            }
            None => {
                let mut command = Command::new(&self.program);
                command.envs(self.environment(way, folder.path(), &index));
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CONTEXTPILOT_") || text.starts_with("LD_") {
                command.env_remove(&name);
            }
        }
        let output = command
            .args(&self.arguments)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        index.set_nonblocking(true).expect("a socket");
        let connected = index.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(
            connected,
            Err(ErrorKind::WouldBlock),
            "{way:?} {:?} went to the index",
            self.program
        );
        let calls = fs::read_to_string(trace.path()).expect("a trace");
        let calls = strace.map(|_| counted(&calls, folder.path()));
        (Seen::of(&output, folder.path()), calls)
    }

    fn environment(
        &self,
        way: Way,
        folder: &Path,
        index: &TcpListener,
    ) -> Vec<(&'static str, OsString)> {
        let mut all: Vec<(&str, OsString)> = vec![
            ("HOME", folder.into()),
            ("TMPDIR", folder.into()),
            ("XDG_STATE_HOME", folder.join("state").into()),
            ("XDG_CACHE_HOME", folder.join("cache").into()),
            ("LC_ALL", "C.UTF-8".into()),
        ];
        let others = self.preload.clone();
        if way == Way::Plain {
            all.extend(others.map(|others| ("LD_PRELOAD", others)));
            return all;
        }
        let mut preload = OsString::from(HOOK);
        if let Some(others) = others {
            preload.push(":");
            preload.push(others);
        }
        all.push(("LD_PRELOAD", preload));
        if way == Way::Told {
            let address = index.local_addr().expect("it is bound");
            let url = format!("http://{address}");
            all.push(("CONTEXTPILOT_INDEX_URL", url.into()));
            all.push(("CONTEXTPILOT_LISTEN", "127.0.0.1:0".into()));
            all.push(("CONTEXTPILOT_LOG_FILE", folder.join("log").into()));
        }
        all
    }
}

impl Seen {
    fn of(output: &Output, folder: &Path) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut files = Vec::new();
        list(folder, folder, &mut files);
        files.sort();
        Self {
            exit: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
            files,
        }
    }
}

/// Panics with the lines that differ.
fn assert_same(plain: &str, seen: &str, way: Way, what: &str, who: &impl std::fmt::Debug) {
    if plain == seen {
        return;
    }
    let lines = plain.lines().zip(seen.lines());
    let differ: Vec<_> = lines.filter(|(a, b)| a != b).take(5).collect();
    let counts = (plain.lines().count(), seen.lines().count());
    panic!("{way:?} {who:?}: {what} differs, {counts:?} lines: {differ:#?}");
}

fn list(folder: &Path, root: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("its folder") {
        let path = entry.expect("its folder").path();
        let name = path.strip_prefix(root).expect("below it");
        files.push(general(&name.to_string_lossy()));
        if path.is_dir() && !path.is_symlink() {
            list(&path, root, files);
        }
    }
}

/// Counts the calls of a trace by name and object, without details that differ from run to run.
fn counted(trace: &str, folder: &Path) -> BTreeMap<String, usize> {
    let folder = folder.to_string_lossy();
    let mut counts = BTreeMap::new();
    for line in trace.lines() {
        let Some((_process, call)) = line.split_once(' ') else {
            continue;
        };
        let Some((name, arguments)) = call.trim_start().split_once('(') else {
            continue; // The end of a process.
        };
        if name.starts_with('<') {
            continue; // The second half of a call.
        }
        if name.starts_with('?') {
            continue; // "???": the thread was ended at the entry, and strace could not read which call it was.
        }
        let word = |start: &str| {
            let mut words = arguments.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.find(|word| word.starts_with(start)).unwrap_or("")
        };
        let what = match name {
            "clone" | "clone3" if word("CLONE_THREAD").is_empty() => "process".to_owned(),
            "clone" | "clone3" => THREAD.to_owned(),
            // The address family of the socket.
            "socket" | "socketpair" | "connect" | "bind" => format!("{name} {}", word("AF_")),
            _ => match arguments.split('"').nth(1) {
                Some(path) if !NO_PATHS.iter().any(|start| name.starts_with(start)) => {
                    format!("{name} {}", general(&path.replace(&*folder, ".")))
                }
                // Without addresses and data.
                _ => name.to_owned(),
            },
        };
        *counts.entry(what).or_default() += 1;
    }
    counts
}

/// A path without its numbers, and without file names in `.git`, which git makes up.
fn general(path: &str) -> String {
    let path = match path.split_once(".git/") {
        Some((before, _)) => before.to_owned() + ".git/",
        None => path.to_owned(),
    };
    let mut general = String::new();
    for c in path.chars() {
        if !c.is_ascii_digit() {
            general.push(c);
        } else if !general.ends_with('#') {
            general.push('#');
        }
    }
    general
}

/// Whether the dynamic loader makes this call because of the preload: for the library itself, or for
/// the libraries that it needs.
fn is_loaders(call: &str) -> bool {
    let its = ["/ld.so.cache", "/libgcc_s.so.#", "/libm.so.#", "/libc.so.#"];
    let is_its = its.iter().any(|file| call.ends_with(file));
    is_its || call.contains("/glibc-hwcaps") || call.ends_with(&general(HOOK))
}

/// Whether this call reads the process's own file or its list of mappings.
fn is_look_at_itself(call: &str) -> bool {
    let looks = [
        "openat /proc/self/exe",
        "openat /proc/self/maps",
        "readlink /proc/self/exe",
        "statx ",
    ];
    looks.contains(&call)
}
