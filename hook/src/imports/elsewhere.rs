//! Where executables are no 64-bit ELF files, imports stay as they are.

/// There are none that could be.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn redirect() -> bool {
    false
}
