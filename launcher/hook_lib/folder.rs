use std::path::PathBuf;

use contextpilot_private_folder::{Base, Error, PrivateFolder};

use crate::error::HookError;
use crate::variables::Lookup;

/// The folder for the library. Only this user may be able to change it:
/// a user who can change it chooses what is loaded into the server.
pub(super) fn private_cache(lookup: impl Lookup) -> Result<PrivateFolder, HookError> {
    PrivateFolder::open(Base::Cache, lookup).map_err(in_words)
}

/// Where that folder is, or would be. Nothing is made.
pub(super) fn would_be(lookup: impl Lookup) -> Result<PathBuf, HookError> {
    PrivateFolder::look_for(Base::Cache, lookup).map_err(in_words)
}

fn in_words(error: Error) -> HookError {
    match error {
        Error::NoHome => HookError::NoCache,
        Error::System { path, source } => HookError::Folder { path, source },
        Error::Unsafe { .. } => HookError::Unsafe(error),
    }
}
