//! Which programs this machine has.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use contextpilot_testbed::{skip, skip_optional};

/// Programs that must exist on a CI machine.
const COMMON: [&str; 5] = ["python3", "perl", "git", "curl", "strace"];

/// The path of a program. `None`, after a line on stderr, if this machine lacks it.
///
/// # Panics
/// If a common program is missing in CI.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = which::which(name).ok();
    if found.is_none() {
        let why = format!("no {name} here");
        if COMMON.contains(&name) {
            skip(why)
        } else {
            skip_optional(why)
        }
    }
    found
}

/// The path of the Python interpreter. `python3` itself may be a script.
pub(crate) fn python() -> Option<PathBuf> {
    let script = program("python3")?;
    let mut command = Command::new(script);
    let output = command
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .expect("Python starts");
    assert!(output.status.success(), "{output:?}");
    let path = String::from_utf8(output.stdout).expect("a path");
    Some(PathBuf::from(path.trim_end()))
}

/// A file of `fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/bystanders/fixtures")
        .join(name)
}

/// Runs a compiler. False, after a line on stderr, if it fails where it may fail.
pub(crate) fn compiles(command: &mut Command, what: &str) -> bool {
    let output = command.output().expect("the compiler starts");
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().last().unwrap_or_default();
        skip_optional(format!("{what} cannot be built: {why}"));
    }
    output.status.success()
}

/// The C compiler, which building the project needs as well.
pub(crate) fn cc(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new("cc");
    command.args(arguments);
    command
}
