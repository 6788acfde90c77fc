//! The other command of this package.

use std::path::PathBuf;

/// The command that is everything else.
pub(crate) const COMPANION: &str = "contextpilot-llama";

/// The program of this name beside this one, else that on `PATH`.
///
/// # Errors
/// There is neither. The text says what to do.
pub(crate) fn find(name: &str) -> Result<PathBuf, String> {
    let beside = std::env::current_exe()
        .ok()
        .map(|this| this.with_file_name(name))
        .filter(|beside| beside.is_file());
    match beside {
        Some(beside) => Ok(beside),
        None => which::which(name).map_err(|_| {
            format!("{name} is neither beside this program nor on PATH: install it there")
        }),
    }
}
