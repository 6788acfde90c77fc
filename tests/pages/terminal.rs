//! A shell in which the commands of a page are run, as a reader would type them.

use contextpilot_testbed::or_return;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Far above what any command of a page takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a program may take to end at Ctrl-C.
const ENDING: Duration = Duration::from_secs(10);

/// Programs that run until they are stopped, and what they print when they are ready.
const STAYING: &[(&str, &str)] = &[
    ("contextpilot-llama-server ", "listening on "),
    ("/llama-server\" ", "listening on "),
    ("contextpilot-llama listen", "Listening on "),
    ("contextpilot-llama gateway", "Gateway to "),
    ("contextpilot-llama index", "Index at "),
    ("contextpilot-llama up", "listening on "),
    ("contextpilot-llama events", ""),
];

/// Where commands are run.
pub(crate) struct Machine {
    pub(crate) home: PathBuf,
    /// `XDG_RUNTIME_DIR`: only this user can enter it.
    pub(crate) runtime: PathBuf,
    /// The folders of `PATH`.
    pub(crate) path: String,
}

/// A shell. Ends its programs when it is dropped.
pub(crate) struct Terminal {
    shell: Child,
    /// `None`: nothing more will be typed.
    stdin: Option<ChildStdin>,
    folder: tempfile::TempDir,
    steps: usize,
    /// The program that still runs in it.
    pub(crate) busy: Option<Step>,
}

/// Some lines that were typed, and what is on the screen since.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) text: String,
    screen: PathBuf,
}

impl Step {
    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        let bytes = fs::read(&self.screen).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Terminal {
    /// A new one, in the home folder.
    pub(crate) fn open(machine: &Machine) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut shell = Command::new("bash")
            .args(["--norc", "--noprofile"])
            .env_clear()
            .env("PATH", &machine.path)
            .env("HOME", &machine.home)
            .env("XDG_RUNTIME_DIR", &machine.runtime)
            .env("USER", "me")
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm")
            .current_dir(&machine.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| format!("no bash: {e}"))?;
        let stdin = shell.stdin.take();
        Ok(Self {
            shell,
            stdin,
            folder,
            steps: 0,
            busy: None,
        })
    }

    /// Types these lines. Waits until they have ended, or until a program that stays is ready; then the
    /// terminal is busy. `exit`: the code with which the last command must end; all others must succeed.
    ///
    /// # Errors
    /// A command failed, or does not end. With the screen.
    pub(crate) fn run(&mut self, text: &str, exit: i32) -> Result<Step, String> {
        self.steps += 1;
        let file = |what: &str| self.folder.path().join(format!("{}.{what}", self.steps));
        let (lines, screen, failed, ended) =
            (file("sh"), file("out"), file("failed"), file("ended"));
        let write = |path: &Path, text: &str| fs::write(path, text).map_err(|e| e.to_string());
        write(&lines, text)?;
        File::create(&screen).map_err(|e| e.to_string())?;
        // The commands must be those of this shell, for what they export.
        let typed = format!(
            "trap 'echo \"$?\" >>{failed}' ERR\n\
             . {lines} </dev/null >{screen} 2>&1\n\
             echo $? >{ended}.part; mv {ended}.part {ended}\n",
            failed = failed.display(),
            lines = lines.display(),
            screen = screen.display(),
            ended = ended.display(),
        );
        let stdin = self.stdin.as_mut().ok_or("no standard input")?;
        stdin
            .write_all(typed.as_bytes())
            .map_err(|e| format!("the shell has ended ({e})"))?;
        let step = Step {
            text: text.to_owned(),
            screen,
        };
        let ready = stays(text)?;
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok(code) = fs::read_to_string(&ended) {
                let failed = fs::read_to_string(&failed).unwrap_or_default();
                let as_said = match exit {
                    0 => failed.is_empty() && code.trim() == "0",
                    _ => code.trim() == exit.to_string(),
                };
                return if as_said && ready.is_none() {
                    Ok(step)
                } else {
                    Err(format!(
                        "exit codes {} {}, expected {exit}:\n{}",
                        failed.trim().replace('\n', " "),
                        code.trim(),
                        step.screen()
                    ))
                };
            }
            if ready.is_some_and(|ready| step.screen().contains(ready)) {
                self.busy = Some(step.clone());
                return Ok(step);
            }
            if Instant::now() >= end {
                return Err(format!("it does not end:\n{}", step.screen()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What the program of the last line prints when it is ready, if it stays. A line with `&` at its end does
/// not stay in front.
fn stays(text: &str) -> Result<Option<&'static str>, String> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(str::trim);
    let lines: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let program = |line: &str| {
        let line = format!("{line} ");
        let mut staying = STAYING.iter();
        let found = staying.find(|(name, _)| line.contains(name));
        let is_help = ["--help", "--version", "|", ">"]
            .iter()
            .any(|part| line.contains(part));
        found.filter(|_| !line.trim_end().ends_with('&') && !is_help)
    };
    let Some((last, before)) = lines.split_last() else {
        return Ok(None);
    };
    if let Some(line) = before.iter().find(|line| program(line).is_some()) {
        return Err(format!("nothing can be typed after `{line}`, which stays"));
    }
    Ok(program(last).map(|(_, ready)| *ready))
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let Ok(group) = i32::try_from(self.shell.id()) else {
            return;
        };
        let group = or_return!(Pid::from_raw(group));
        // As Ctrl-C does. The shell itself ends when it has nothing more to read.
        self.stdin = None;
        let _ = kill_process_group(group, Signal::INT);
        let end = Instant::now() + ENDING;
        while matches!(self.shell.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.shell.wait();
    }
}
