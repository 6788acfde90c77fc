//! The Python that runs the real index server, where there is one.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The exit code of `scripts/index-server` if there is no Python.
const NO_PYTHON: i32 = 77;

/// In CI no test may be skipped.
fn under_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// The Python with the index server. `None`, after a line that says why, if the test is skipped.
///
/// # Panics
/// In CI, if there is no Python. Everywhere, if there is a Python but the index server could not be
/// installed.
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
            // Not eprintln!, whose output the test harness hides if the test passes. Errors of
            // writing do not matter.
            let _ = writeln!(std::io::stderr(), "\nskipped: {test}: {why}");
            None
        }
        Err((_, why)) => panic!("scripts/index-server: {why}"),
    }
}
