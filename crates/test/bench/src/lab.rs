//! What is measured, and where.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use contextpilot_testbed::{Builder, Error, Result, Server, llama_server, private_folder};
use tempfile::TempDir;

/// The commands that were built, the real server, and a place for what comes up.
pub(crate) struct Lab {
    /// Only see that everything runs.
    pub(crate) quick: bool,
    pub(crate) launcher: PathBuf,
    pub(crate) companion: PathBuf,
    /// The hook library, as the launcher lays it down.
    pub(crate) hook: PathBuf,
    pub(crate) server: PathBuf,
    /// A real model, if there is one.
    pub(crate) model: Option<PathBuf>,
    scratch: TempDir,
}

impl Lab {
    /// # Errors
    /// When a command is not there, or the hook cannot be laid down.
    pub(crate) fn new(launcher: &Path, model: Option<PathBuf>, quick: bool) -> Result<Self> {
        // The hook's cache is in it.
        let scratch = private_folder();
        let launcher = launcher.canonicalize()?;
        let companion = launcher.with_file_name("contextpilot-llama");
        let output = Command::new(&companion)
            .arg("hook-path")
            .env("XDG_CACHE_HOME", cache(&scratch))
            .env_remove("CONTEXTPILOT_HOOK_LIB")
            .stderr(Stdio::inherit())
            .output()?;
        let hook = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        if !hook.is_file() {
            return Err(failed("contextpilot-llama hook-path names no file"));
        }
        Ok(Self {
            quick,
            launcher,
            companion,
            hook,
            server: llama_server(),
            model,
            scratch,
        })
    }

    /// How often to do something: `full` times, or `quick` times only to see that it works.
    pub(crate) fn rounds(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// A file or folder for a short time.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// The library that is made of the fixture of this name, a C file.
    ///
    /// # Errors
    /// When there is no C compiler.
    pub(crate) fn library(&self, name: &str) -> Result<PathBuf> {
        let library = self.scratch(&format!("{name}.so"));
        let mut arguments: Vec<OsString> = ["-shared", "-fPIC", "-pthread", "-o"]
            .map(OsString::from)
            .into();
        arguments.extend([
            library.clone().into(),
            fixture(&format!("{name}.c")).into(),
            "-ldl".into(),
        ]);
        compile("cc", &arguments)?;
        Ok(library)
    }

    /// The cache folder that has the hook library in it already.
    pub(crate) fn cache(&self) -> PathBuf {
        cache(&self.scratch)
    }

    /// The server under the launcher.
    pub(crate) fn launched(&self, plain: &Builder) -> Builder {
        let builder = plain.clone().launcher(&self.launcher);
        builder.env("XDG_CACHE_HOME", self.cache())
    }

    /// The server under the launcher, with an index.
    pub(crate) fn hooked(&self, plain: &Builder, index: &str) -> Builder {
        self.launched(plain).index_url(index)
    }

    /// A command that runs in a known environment.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CONTEXTPILOT_") {
                command.env_remove(name);
            }
        }
        command
            .env("LLAMA_SERVER_BIN", &self.server)
            .env("XDG_CACHE_HOME", self.cache())
            .env("TMPDIR", self.scratch.path())
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

fn cache(scratch: &TempDir) -> PathBuf {
    scratch.path().join("cache")
}

/// The repository's root.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// A source file of this crate.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// Why something could not be measured.
pub(crate) fn failed(what: impl Into<String>) -> Error {
    Error::from(std::io::Error::other(what.into()))
}

/// Runs a command to its end, and hands over what it says.
///
/// # Errors
/// When it cannot be run or fails, with the end of what it said.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| failed(format!("{:?}: {error}", command.get_program())))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let last: Vec<&str> = said.lines().rev().take(8).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        return Err(failed(format!(
            "{command:?}: {}\n{}",
            output.status,
            last.join("\n")
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether there is such a command on this machine.
pub(crate) fn has(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

/// A library that is made of one C or C++ file, or a program of several.
///
/// # Errors
/// When there is no compiler, or it refuses.
pub(crate) fn compile(compiler: &str, arguments: &[OsString]) -> Result<()> {
    run(Command::new(compiler).arg("-O2").args(arguments)).map(drop)
}

/// The physical memory that a server uses now, in MiB.
pub(crate) fn resident(server: &Server) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0)
        .ok_or_else(|| failed("no VmRSS in /proc"))
}

/// The processor time that a server has used, in ms: its own threads, and ours in it.
pub(crate) fn processor_time(server: &Server) -> Result<[f64; 2]> {
    let process = format!("/proc/{}", server.pid());
    // Threads that have ended count here, unlike below.
    let all = std::fs::read_to_string(format!("{process}/stat"))?;
    let after_name = all.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    let all = ticks * 1e3 / rustix::param::clock_ticks_per_second() as f64;
    let threads = thread_times(server)?.into_iter();
    let ours = threads.filter(|(name, _)| name.starts_with("contextpilot"));
    let ours = ours.map(|(_, time)| time).sum();
    Ok([all - ours, ours])
}

/// The names of a server's threads, and the processor time that each has used, in ms and to the microsecond. Those that have
/// ended are missing.
pub(crate) fn thread_times(server: &Server) -> Result<Vec<(String, f64)>> {
    let entries = std::fs::read_dir(format!("/proc/{}/task", server.pid()))?;
    let threads = entries.map(|entry| {
        let task = entry?.path();
        let read = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        let time = read("schedstat");
        let nanoseconds = time.split(' ').next().map(str::parse::<f64>);
        let nanoseconds = nanoseconds.and_then(|time| time.ok()).unwrap_or(0.0);
        Ok((read("comm"), nanoseconds / 1e6))
    });
    threads.collect()
}

/// What this machine is, in a sentence.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("a processor that does not say what it is", |line| {
            line.trim_start_matches([' ', '\t', ':'])
        });
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "The machine: {cores} cores of {model}, Linux {}; its load when it began: {load}.",
        kernel.trim()
    )
}
