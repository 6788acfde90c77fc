//! The engine's version, in its own words. The engine is asked once.

use std::fmt;
use std::sync::OnceLock;

use super::plain;

/// Version texts of the engine, which it never frees.
#[derive(Clone, Copy, Default)]
pub(crate) struct Version {
    pub(super) version: Option<&'static str>,
    pub(super) build: Option<&'static str>,
}

static VERSION: OnceLock<Version> = OnceLock::new();

/// Asks the engine for its version, the first time. Do not call this within the
/// [guard](crate::base::guard).
pub(crate) fn ask_version() {
    if VERSION.get().is_some() {
        return;
    }
    // SAFETY: no preconditions; a static text.
    let version = plain::text(unsafe { plain::version() });
    // SAFETY: as above.
    let build = plain::text(unsafe { plain::build() });
    let _ = VERSION.set(Version { version, build });
}

/// The engine's version. Empty before the engine was asked.
pub(crate) fn version() -> Version {
    VERSION.get().copied().unwrap_or_default()
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
