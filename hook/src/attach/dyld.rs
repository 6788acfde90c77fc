//! How functions are hooked on macOS. dyld reads pairs (replacement, original) from the section
//! `__DATA,__interpose` of an inserted library, and binds every other file that imports the original
//! to the replacement. Within this library the original stays the original (or is the replacement of
//! another inserted library), so the second half of a pair is the function to call. `dlsym` would
//! return our replacement, so it is asked only for functions that have no pair.
//!
//! The originals are weak references. If no file has the function, the reference is null and dyld skips
//! the pair: this library is loaded into everything that the server starts, and engines differ.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;

use super::original::{ROWS, Row};

macro_rules! count {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        const COUNT: usize = [$(stringify!($name)),*].len();
    };
}
for_each_interposed!(count);

unsafe extern "C" {
    /// Pairs (replacement, original), in the table's order: see `hooks/pairs.rs`.
    #[link_name = "contextpilot_pairs"]
    static PAIRS: [[*mut c_void; 2]; COUNT];
}

/// The function that the host would have called by this name; null if there is none.
pub(super) fn behind(name: &CStr) -> *mut c_void {
    let row = ROWS
        .iter()
        .position(|row| row.name.as_bytes() == name.to_bytes());
    match row.filter(|row| *row < COUNT) {
        // SAFETY: dyld has filled the pairs before any of this library's code runs, and leaves
        // them alone from then on.
        Some(row) => unsafe { PAIRS[row][1] },
        // Not RTLD_NEXT: for a library with a two-level namespace, as this one is, that looks in what
        // the library was linked with and no further (dlsym(3)), which is libSystem. This looks
        // through all that was loaded with the process; of this library's nothing is exported.
        // SAFETY: the name is a C string; dlsym may be called at any time.
        None => unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) },
    }
}

/// Whether dyld binds callers of the row's function to our replacement.
pub(super) fn is_paired(row: &Row) -> bool {
    let place = ROWS.iter().position(|other| other.name == row.name);
    place.is_some_and(|place| place < COUNT) && row.slot.get().is_some() && hears(row)
}

/// Whether the process has a row's function, though its calls may not come to us.
pub(super) fn is_there(row: &Row) -> bool {
    row.slot.get().is_some()
}

/// Whether our replacement sees the calls of a row's function. It does not see calls within one file:
/// those of an engine inside the executable, and those of the server's own functions, which its
/// library calls itself.
pub(super) fn hears(row: &Row) -> bool {
    !row.is_servers()
        && row
            .slot
            .get()
            .is_some_and(|theirs| !is_in_executable(theirs))
}

fn is_in_executable(address: *const c_void) -> bool {
    /// `MH_EXECUTE` of `mach-o/loader.h`: the program, not a library.
    const PROGRAM: u32 = 2;
    let mut file = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about, and there is room for the answer.
    if unsafe { libc::dladdr(address, file.as_mut_ptr()) } == 0 {
        return false;
    }
    // SAFETY: filled in by the call.
    let file = unsafe { file.assume_init() };
    // The magic number, two words for the machine, and the kind of file.
    let header: *const [u32; 4] = file.dli_fbase.cast();
    // SAFETY: the file is loaded, and begins with its header.
    !header.is_null() && unsafe { *header }[3] == PROGRAM
}
