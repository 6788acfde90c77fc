//! The hook library as a file, for the dynamic loader to load.
//!
//! ```text
//!  CONTEXTPILOT_HOOK_LIB ──► the package's, if it is the same ──► the cache folder ──► memory
//!   set: that one or none     (beside this program)                 (laid down there)    (no folder will do)
//! ```
//!
//! The library is embedded in this executable (`build.rs`). If a package has installed it beside the
//! executable, it is loaded from there. Otherwise it is written to the user's cache folder, under a name
//! with its hash. A file that is there already is not trusted: it is compared with the embedded bytes
//! before it is used, unless it was since the machine was started, and has not been changed since ([`checked`]). It is
//! replaced if it differs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use contextpilot_settings::env;

use crate::error::HookError;
use crate::preload;
use crate::variables::Lookup;

mod cache;
mod checked;
mod folder;
mod in_memory;
mod installed;
mod mount;
mod outdated;
#[cfg(test)]
mod tests;

/// The library, as `build.rs` built or found it.
static EMBEDDED: &[u8] = include_bytes!(env!("CONTEXTPILOT_EMBEDDED_HOOK"));
/// `libcontextpilot_llama_hook-<hash>.<so|dylib>`
const FILE_NAME: &str = env!("CONTEXTPILOT_EMBEDDED_HOOK_NAME");

/// A library that this process can preload, and where it was taken from.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) path: PathBuf,
    /// If it is in memory: why no file could be used.
    no_file: Option<HookError>,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.no_file {
            None => self.path.display().fmt(f),
            Some(why) => write!(f, "in memory, as {why}"),
        }
    }
}

/// The library for the server that this process is about to become.
///
/// # Errors
/// `CONTEXTPILOT_HOOK_LIB` cannot be used; or neither a file nor memory can.
pub(crate) fn load(lookup: impl Lookup) -> Result<Library, HookError> {
    let path = locate(&lookup);
    checked(lookup, path)
}

/// As [`load`], but no file is written: where the library is, or would be.
///
/// # Errors
/// As there.
pub(crate) fn look(lookup: impl Lookup) -> Result<Library, HookError> {
    let path = locate_or(&lookup, |lookup| {
        let folder = folder::would_be(lookup)?;
        let there = folder.ancestors().find(|folder| folder.exists());
        mount::executes(there.unwrap_or(&folder))?;
        Ok(folder.join(FILE_NAME))
    });
    checked(lookup, path)
}

fn checked(lookup: impl Lookup, path: Result<PathBuf, HookError>) -> Result<Library, HookError> {
    let found = path.and_then(|path| preload::check(&path).map(|()| path));
    match found {
        Ok(path) => Ok(Library {
            path,
            no_file: None,
        }),
        Err(why) if lookup.non_empty(env::HOOK_LIB).is_some() => Err(why),
        Err(why) => match in_memory::hold(FILE_NAME, EMBEDDED) {
            Ok(path) => Ok(Library {
                path,
                no_file: Some(why),
            }),
            Err(_) if cfg!(not(target_os = "linux")) => Err(why),
            Err(source) => Err(HookError::Memory {
                no_file: Box::new(why),
                source,
            }),
        },
    }
}

/// The path of a file that is the library: `CONTEXTPILOT_HOOK_LIB`; else the one that a package
/// has put beside this program; else the embedded one, which is put into the cache folder if it
/// is not there.
pub(crate) fn locate(lookup: impl Lookup) -> Result<PathBuf, HookError> {
    locate_or(lookup, cached)
}

fn locate_or<L: Lookup>(
    lookup: L,
    cached: impl FnOnce(L) -> Result<PathBuf, HookError>,
) -> Result<PathBuf, HookError> {
    if let Some(path) = lookup.non_empty(env::HOOK_LIB) {
        return given(Path::new(&path));
    }
    match of_package() {
        Some(path) => Ok(path),
        None => cached(lookup),
    }
}

/// The library of the package that this program came with.
fn of_package() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let path = installed::beside(&program, FILE_NAME, EMBEDDED)?;
    preload::check(&path).is_ok().then_some(path)
}

/// The embedded library in the cache folder. If it was not there, this is the first start of a
/// new version, and libraries of older versions are removed.
fn cached(lookup: impl Lookup) -> Result<PathBuf, HookError> {
    let folder = folder::private_cache(lookup)?;
    mount::executes(folder.path())?;
    let laid_down = cache::ensure(&folder, FILE_NAME, EMBEDDED)?;
    if laid_down.new {
        outdated::remove(&folder, FILE_NAME, SystemTime::now());
    }
    Ok(laid_down.path)
}

/// The library that a packager or developer chose. They must protect it; this only
/// checks that the loader will find it.
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
