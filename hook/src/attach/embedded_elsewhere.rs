//! Replaces attaching to an engine inside another program where executables are not ELF files.

use std::convert::Infallible;
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;

use super::attached::Attached;
use super::replacement::Replacement;

/// A function of ours that the program may ask for.
#[allow(dead_code, reason = "nobody asks")]
pub(crate) struct OwnFunction {
    pub(crate) name: &'static CStr,
    pub(crate) function: extern "C-unwind" fn(*mut c_void, i32, *const c_char) -> i32,
}

/// Never exists.
pub(crate) struct Embedded {
    never: Infallible,
    pub(crate) file: PathBuf,
}

/// Always false: no program other than a llama-server is attached to here.
pub(crate) fn is_program() -> bool {
    false
}

/// Always false, as [`is_program`].
pub(crate) fn serves_inside() -> bool {
    false
}

/// None.
pub(crate) fn unstorable() -> Option<&'static str> {
    None
}

/// Says that this is not possible here.
///
/// # Safety
/// Always safe here; it is unsafe on Linux.
pub(crate) unsafe fn watch(
    _: &'static [Replacement],
    _: &'static [OwnFunction],
    found: fn(Result<Embedded, String>),
    _: Option<fn(String)>,
) {
    found(Err(
        "CONTEXTPILOT_ENGINE works on Linux only; prompts are evaluated as ever".to_owned(),
    ));
}

impl Embedded {
    /// # Errors
    /// None.
    ///
    /// # Safety
    /// Always safe here; it is unsafe on Linux.
    pub(crate) unsafe fn attach(self) -> Result<Attached, String> {
        match self.never {}
    }
}
