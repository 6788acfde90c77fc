//! The Python that runs the real index server, where there is one.

use std::{path::PathBuf, sync::OnceLock};

use contextpilot_testbed::{NoScript, script, skip};

/// The Python with the index server. `None`, after a line that says why, if the test is skipped.
///
/// # Panics
/// In CI, if there is no Python. Everywhere, if there is a Python but the index server could not be
/// installed.
pub(crate) fn python() -> Option<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, NoScript>> = OnceLock::new();
    let found = FOUND.get_or_init(|| script("index-server", &[]).map(PathBuf::from));
    found
        .as_ref()
        .inspect_err(|why| skip(why.why_skipped()))
        .ok()
        .cloned()
}
