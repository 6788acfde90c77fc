//! The engine's version, in its own words. Each engine is asked once.

use std::fmt;
use std::sync::OnceLock;

use super::engines::{self, ENGINES};
use super::plain;

/// Version texts of the engine, which it never frees.
#[derive(Clone, Copy, Default)]
pub(crate) struct Version {
    pub(super) version: Option<&'static str>,
    pub(super) build: Option<&'static str>,
}

static VERSIONS: [OnceLock<Version>; ENGINES] = [const { OnceLock::new() }; ENGINES];

/// Of the engine that the thread is in.
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

/// The engine's version. Empty before the engine was asked.
pub(crate) fn version() -> Version {
    here().get().copied().unwrap_or_default()
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
