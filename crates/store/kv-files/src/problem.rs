//! What the system refused, in words.

use std::fmt;
use std::io::{Error, ErrorKind};
use std::path::PathBuf;

/// The folder could not be written to. `Display` says what happened and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The store's folder.
    pub folder: PathBuf,
    /// What kind of error it was.
    pub kind: ErrorKind,
    /// The system's own words.
    pub text: String,
}

impl Problem {
    pub(crate) fn new(folder: PathBuf, error: &Error) -> Self {
        Self {
            folder,
            kind: error.kind(),
            text: error.to_string(),
        }
    }

    fn advice(&self) -> &'static str {
        match self.kind {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "make room there, or lower CONTEXTPILOT_STORE_GB"
            }
            ErrorKind::ReadOnlyFilesystem => "name a folder that can be written to",
            ErrorKind::PermissionDenied => "let this user write to it",
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                "it was removed; it will be made again if its parent is there"
            }
            _ => "look at the folder and its disk",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, text, .. } = self;
        write!(
            f,
            "the prefix store cannot write to {folder:?} ({text}): {}",
            self.advice()
        )
    }
}

impl std::error::Error for Problem {}
