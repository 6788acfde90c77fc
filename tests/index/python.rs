//! The Python that runs the real index server, where there is one.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// What `scripts/index-server` exits with when there is no Python to be had.
const NO_PYTHON: i32 = 77;

/// Where nothing may be skipped.
fn under_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// The Python, or `None` after saying that the test is skipped and why.
///
/// # Panics
/// Under CI when there is none; and when there is a Python but the index server could not be installed: on a
/// machine that has Python, the test is meant to run.
pub(crate) fn python(test: &str) -> Option<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, (Option<i32>, String)>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/index-server");
        let output = Command::new(&script)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| (None, format!("{}: {error}", script.display())))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(PathBuf::from(text(&output.stdout))),
            false => Err((output.status.code(), text(&output.stderr))),
        }
    });
    match found {
        Ok(python) => Some(python.clone()),
        Err((Some(NO_PYTHON), why)) if !under_ci() => {
            // Not eprintln!, which the harness keeps to itself where a test passes.
            // Where nobody reads stderr there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "\nskipped: {test}: {why}");
            None
        }
        Err((_, why)) => panic!("scripts/index-server: {why}"),
    }
}
