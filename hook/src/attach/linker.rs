//! What the dynamic linker finds by name, where executables are ELF files.

use std::ffi::{CStr, c_void};

/// The function of this name that the dynamic linker finds; null if there is none.
pub(super) fn behind(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; dlsym may be called at any time, constructors included.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}
