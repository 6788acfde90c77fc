//! Which programs this machine has.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Any machine that runs these tests for others has them.
const COMMON: [&str; 5] = ["python3", "perl", "git", "curl", "strace"];

/// The path of a program, or `None` after saying that a part of the test is left out.
///
/// # Panics
/// When a common one is missing on a machine that tests for others.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = which::which(name).ok();
    if found.is_none() {
        let essential = COMMON.contains(&name);
        left_out(essential, &format!("bystanders: no {name} here"));
    }
    found
}

/// The Python itself: `python3` may be a script that looks for one.
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

/// Says on stderr what is not tested, and why.
///
/// # Panics
/// If it is `essential` and this machine tests for others.
pub(crate) fn left_out(essential: bool, why: &str) {
    let tests_for_others = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!(essential && tests_for_others), "{why}");
    // Not eprintln!, which the harness keeps to itself where a test passes. Where nobody reads
    // stderr there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "\nleft out: {why}");
}

/// A file of `fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/bystanders/fixtures")
        .join(name)
}

/// Runs a compiler. False, after saying so, if it fails and need not succeed.
pub(crate) fn compiles(command: &mut Command, what: &str) -> bool {
    let output = command.output().expect("the compiler starts");
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().last().unwrap_or_default();
        left_out(false, &format!("bystanders: {what} cannot be built: {why}"));
    }
    output.status.success()
}

/// The C compiler that builds need anyway.
pub(crate) fn cc(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new("cc");
    command.args(arguments);
    command
}
