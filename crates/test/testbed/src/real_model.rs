//! A small real model, where one can be had.

use std::path::PathBuf;

use crate::{Arch, Error, Model, NoScript, Result, script, skip_case};

/// SmolLM2-135M-Instruct, by `scripts/model`. `None`, after a line that says why, if the case `what` has to
/// be skipped: there is no Python to fetch the model with.
///
/// # Errors
/// If the script fails.
///
/// # Panics
/// As [`skip_case`], under CI.
pub fn real_model(what: &str) -> Result<Option<Model>> {
    match script("model", &[]) {
        Ok(path) => Ok(Some(Model::file(PathBuf::from(path), Arch::Llama))),
        Err(NoScript::NotHere(why)) => {
            skip_case(what, why);
            Ok(None)
        }
        Err(NoScript::Failed(why)) => Err(Error::new(why)),
    }
}
