//! Replaces attaching to an engine inside another program where executables are not ELF files.

use std::convert::Infallible;
use std::path::PathBuf;

use super::attached::Attached;
use super::replacement::Replacement;

/// Never exists.
pub(crate) struct Embedded {
    never: Infallible,
    pub(crate) file: PathBuf,
}

/// Never.
pub(crate) fn is_embedded() -> bool {
    false
}

/// Says that this is not possible here.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn watch(_: &'static [Replacement], found: fn(Result<Embedded, String>)) {
    found(Err(
        "CONTEXTPILOT_ENGINE works on Linux only; prompts are evaluated as ever".to_owned(),
    ));
}

impl Embedded {
    /// # Errors
    /// None.
    ///
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn attach(self) -> Result<Attached, String> {
        match self.never {}
    }
}
