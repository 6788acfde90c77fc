//! What calls by name reach, where the files are ELF.

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

/// Whether whoever calls the row's function can be made to call us: calls from file to file can
/// be. Within one file the dynamic linker may be done without (`-Bsymbolic`), and then there is no
/// word to patch. Of functions that every server calls, that is noticed by the words' absence; of
/// all others, absence means that nobody calls them. A process with two engines is none that can be
/// followed.
pub(super) fn hears(row: &Row) -> bool {
    let is_anchor =
        |generations: Generations| generations.iter().any(|(_, name)| *name == row.name);
    let is_called_by_all = row.is_servers() || is_anchor(MEMORY) || is_anchor(EVALUATION);
    let is_one = row.places.strays() == 0 || !row.is_engines();
    is_one && (row.places.found() > 0 || !is_called_by_all)
}
