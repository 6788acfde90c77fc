//! Scripts of the repository that fetch what a test needs.

use std::process::{Command, Stdio};

use crate::engine::repository;

/// The exit code of a script that cannot do its work on this machine.
const NOT_HERE: i32 = 77;

/// Why a script has printed nothing, in its own words.
#[derive(Clone, Debug)]
pub enum NoScript {
    /// It cannot do its work on this machine. What needs it is skipped.
    NotHere(String),
    /// It has failed.
    Failed(String),
}

impl NoScript {
    /// Why what needs the script is skipped.
    ///
    /// # Panics
    /// If it is not: the script has failed.
    #[track_caller]
    pub fn why_skipped(&self) -> &str {
        match self {
            Self::NotHere(why) => why,
            Self::Failed(why) => panic!("{why}"),
        }
    }
}

/// What `scripts/NAME` prints, without blanks at its ends.
///
/// # Errors
/// It has not done its work.
pub fn script(name: &str, arguments: &[&str]) -> Result<String, NoScript> {
    let failed = |why: &str| NoScript::Failed(format!("scripts/{name}: {why}"));
    let output = Command::new(repository().join("scripts").join(name))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(&error.to_string()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(text(&output.stdout)),
        Some(NOT_HERE) => Err(NoScript::NotHere(text(&output.stderr))),
        _ => Err(failed(&text(&output.stderr))),
    }
}
