//! What the dynamic linker finds by name, where executables are ELF files.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The function of this name that the dynamic linker finds; null if there is none.
pub(super) fn behind(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; dlsym may be called at any time, constructors included.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The function of this name in a library that is loaded, or in one that it was linked with.
pub(super) fn linked_with(library: &Path, name: &str) -> Option<*mut c_void> {
    let path = CString::new(library.as_os_str().as_bytes()).ok()?;
    let name = CString::new(name).ok()?;
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: a path, of a library whose constructors have run or run now. Nothing is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a handle and a name.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: the handle is given back; whoever has loaded the library has another one.
    unsafe { libc::dlclose(handle) };
    (!found.is_null()).then_some(found)
}
