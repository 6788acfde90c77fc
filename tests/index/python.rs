//! The Python that runs the real index server, where there is one.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use contextpilot_testbed::skip;

/// The exit code of `scripts/index-server` if there is no Python.
const NO_PYTHON: i32 = 77;

/// The Python with the index server. `None`, after a line that says why, if the test is skipped.
///
/// # Panics
/// In CI, if there is no Python. Everywhere, if there is a Python but the index server could not be
/// installed.
pub(crate) fn python() -> Option<PathBuf> {
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
        Err((Some(NO_PYTHON), why)) => {
            skip(why);
            None
        }
        Err((_, why)) => panic!("scripts/index-server: {why}"),
    }
}
