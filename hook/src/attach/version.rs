//! The engine's version, in its own words. Each engine is asked once.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::engines::{self, ENGINES};
use super::plain;
use crate::base::environment;

/// Version texts of the engine, which it never frees.
#[derive(Clone, Copy, Default)]
pub(crate) struct Version {
    pub(super) version: Option<&'static str>,
    pub(super) build: Option<&'static str>,
}

static VERSIONS: [OnceLock<Version>; ENGINES] = [const { OnceLock::new() }; ENGINES];

/// The version of the engine that the thread is in.
fn here() -> &'static OnceLock<Version> {
    &VERSIONS[engines::current() % ENGINES]
}

/// Asks the engine for its version, the first time. Do not call this within the
/// [guard](crate::base::guard).
pub(crate) fn ask_version() {
    if here().get().is_some() {
        return;
    }
    // SAFETY: no preconditions; a static text.
    let version = plain::text(unsafe { plain::version() });
    // SAFETY: as above.
    let build = plain::text(unsafe { plain::build() });
    let _ = here().set(Version { version, build });
}

/// Whether the engine was asked.
pub(super) fn is_known() -> bool {
    here().get().is_some()
}

/// The engine's version. Empty before the engine was asked.
pub(crate) fn version() -> Version {
    here().get().copied().unwrap_or_default()
}

impl Version {
    /// Whether no other engine says the same: it names its commit. Sources without their history are built with one text
    /// for all commits, and distributions put their own name there (`b11669-Debian`), whatever they have changed.
    pub(crate) fn is_of_one_build(&self) -> bool {
        let build = self.build.unwrap_or_default();
        let commit = build.rsplit_once('-').map_or("", |(_, commit)| commit);
        commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// The file that the engine of a server is in: a library, or the program. `None`: not known.
pub(crate) fn file_of_engine() -> Option<PathBuf> {
    let address = plain::address("llama_get_model")?;
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about, and there is room for the answer.
    if unsafe { libc::dladdr(address.cast_const().cast(), found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: filled in by the call.
    let name = unsafe { found.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string that lives as long as the file is loaded, and engines of a server stay.
    let name = unsafe { CStr::from_ptr(name) };
    let name = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    // A program is named as it was called.
    if name.is_absolute() && name.exists() {
        Some(name)
    } else {
        Some(environment::program())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.version, self.build) {
            (Some(version), Some(build)) => write!(f, "{version} (build {build})"),
            (Some(version), None) => f.write_str(version),
            (None, Some(build)) => write!(f, "build {build}"),
            (None, None) => f.write_str("(version unknown)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_known_by_its_commit() {
        let of = |build| Version {
            version: Some("0.6.0"),
            build,
        };
        for build in ["b1-0c1e570", "b11669-0c1e570ab"] {
            assert!(of(Some(build)).is_of_one_build(), "{build}");
        }
        for build in [
            None,
            Some(""),
            Some("unknown"),
            Some("b0-unknown"),
            Some("b11669-Debian"),
            Some("0c1e570"),
        ] {
            assert!(!of(build).is_of_one_build(), "{build:?}");
        }
    }
}
