//! How calls by name come to us on macOS: dyld reads pairs of (ours, theirs) from the section
//! `__DATA,__interpose` of an inserted library, and binds whoever asks for theirs to ours. In this
//! library itself theirs stays theirs (or is that of another inserted library), so that a pair's
//! second half is the function behind ours. `dlsym` would answer with our own, so it is asked only for
//! functions that have no pair.
//!
//! A weak reference is null, and its pair without effect, where nobody has the function: this
//! library is loaded into everything that the server starts, and engines differ.

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
    /// (ours, theirs), in the table's order: see `hooks/pairs.rs`.
    #[link_name = "contextpilot_pairs"]
    static PAIRS: [[*mut c_void; 2]; COUNT];
}

/// What the host would have called by this name; null: nothing.
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

/// Whether dyld leads callers of the row's function to us.
pub(super) fn is_paired(row: &Row) -> bool {
    let place = ROWS.iter().position(|other| other.name == row.name);
    place.is_some_and(|place| place < COUNT) && row.slot.get().is_some() && hears(row)
}

/// Whether the process has a row's function, though calls of it may not come to us.
pub(super) fn is_there(row: &Row) -> bool {
    row.slot.get().is_some()
}

/// Whether calls of what is behind a row come to us. Calls within one file do not: not those of
/// an engine inside the executable, nor those of the server's own functions, which its library
/// calls itself.
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
    // Magic number, two of the machine, kind of file.
    let header: *const [u32; 4] = file.dli_fbase.cast();
    // SAFETY: the file is loaded, and begins with its header.
    !header.is_null() && unsafe { *header }[3] == PROGRAM
}
