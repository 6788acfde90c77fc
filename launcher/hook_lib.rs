//! The hook library as a file, for the dynamic loader to load.
//!
//! It is inside this executable (`build.rs`), and laid down in the user's cache
//! folder under a name that holds its hash. What is found there is not trusted:
//! it is compared with the embedded bytes before each use, and replaced if it
//! differs.

use std::path::{Path, PathBuf};

use contextpilot_settings::env;

use crate::error::HookError;
use crate::variables::Lookup;

mod cache;
mod folder;
mod mount;
#[cfg(test)]
mod tests;

/// The library, as `build.rs` built or found it.
static EMBEDDED: &[u8] = include_bytes!(env!("CONTEXTPILOT_EMBEDDED_HOOK"));
/// `libcontextpilot_llama_hook-<hash>.<so|dylib>`
const FILE_NAME: &str = env!("CONTEXTPILOT_EMBEDDED_HOOK_NAME");

/// The path of a library that can be preloaded: `CONTEXTPILOT_HOOK_LIB`, or
/// else the embedded one, which is put into the cache folder if it is not there.
pub(crate) fn locate(lookup: impl Lookup) -> Result<PathBuf, HookError> {
    match lookup.non_empty(env::HOOK_LIB) {
        Some(path) => given(Path::new(&path)),
        None => {
            let folder = folder::private_cache(lookup)?;
            mount::executes(folder.path())?;
            cache::ensure(&folder, FILE_NAME, EMBEDDED)
        }
    }
}

/// The library that a packager or developer chose. It is theirs to protect; all
/// that is checked is that the loader will find it.
fn given(path: &Path) -> Result<PathBuf, HookError> {
    let error = |source| HookError::Library {
        path: path.to_owned(),
        source,
    };
    // The server may change its working directory before it starts children.
    let absolute = std::path::absolute(path).map_err(error)?;
    let file = std::fs::File::open(&absolute).map_err(error)?;
    if !file.metadata().map_err(error)?.is_file() {
        return Err(error(std::io::Error::other("not a file")));
    }
    mount::executes(&absolute)?;
    Ok(absolute)
}
