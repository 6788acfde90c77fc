use contextpilot_private_folder::{Base, Error, PrivateFolder};

use crate::error::HookError;
use crate::variables::Lookup;

/// The folder that the library is laid down in, which nobody else can change:
/// who can, chooses what is loaded into the server.
pub(super) fn private_cache(lookup: impl Lookup) -> Result<PrivateFolder, HookError> {
    PrivateFolder::open(Base::Cache, lookup).map_err(|error| match error {
        Error::NoHome => HookError::NoCache,
        Error::System { path, source } => HookError::Folder { path, source },
        Error::Unsafe { .. } => HookError::Unsafe(error),
    })
}
