//! A small real model, where one can be had.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::engine::repository;
use crate::{Arch, Error, Model, Result, skip_case};

/// The exit code of `scripts/model` if there is no Python with pip.
const NO_PYTHON: i32 = 77;

/// SmolLM2-135M-Instruct, by `scripts/model`. `None`, after a line that says why, if the case `what` has to
/// be skipped: there is no Python to fetch the model with.
///
/// # Errors
/// If the script fails.
///
/// # Panics
/// As [`skip_case`], under CI.
pub fn real_model(what: &str) -> Result<Option<Model>> {
    let output = Command::new(repository().join("scripts/model"))
        .stdin(Stdio::null())
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let why = text(&output.stderr);
    match output.status.code() {
        Some(0) => {
            let path = PathBuf::from(text(&output.stdout));
            Ok(Some(Model::file(path, Arch::Llama)))
        }
        Some(NO_PYTHON) => {
            skip_case(what, why);
            Ok(None)
        }
        _ => Err(Error::new(format!("scripts/model: {why}"))),
    }
}
