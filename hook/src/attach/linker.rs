//! What the dynamic linker finds by name, where executables are ELF files.

use std::ffi::{CStr, c_void};

use super::original::Row;
use super::table::{EVALUATION, Generations, MEMORY};

/// The function of this name that the dynamic linker finds; null if there is none.
pub(super) fn behind(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; dlsym may be called at any time, constructors included.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Whether the process has a row's function. One that nobody calls may be another engine's.
pub(super) fn is_there(row: &Row) -> bool {
    row.found()
}

/// Whether calls of the row's function can be redirected to us. Calls between files can be. Calls within
/// one file may bypass the dynamic linker (`-Bsymbolic`), and then there is no word to patch. If a
/// function that every server calls has no word, that is the reason. If any other function has no word,
/// nobody calls it. A process with two engines cannot be followed.
pub(super) fn hears(row: &Row) -> bool {
    let is_anchor =
        |generations: Generations| generations.iter().any(|(_, name)| *name == row.name);
    let is_called_by_all = row.is_servers() || is_anchor(MEMORY) || is_anchor(EVALUATION);
    let is_one = row.places.strays() == 0 || !row.is_engines();
    is_one && (row.places.found() > 0 || !is_called_by_all)
}
