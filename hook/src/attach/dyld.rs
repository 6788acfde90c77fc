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

macro_rules! names {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        /// The functions that have a pair, in the table's order.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}
for_each_interposed!(names);

unsafe extern "C" {
    /// Pairs (replacement, original), in the table's order: see `hooks/pairs.rs`.
    #[link_name = "contextpilot_pairs"]
    static PAIRS: [[*mut c_void; 2]; NAMES.len()];
}

/// The function that the host would have called by this name; null if there is none.
pub(super) fn behind(name: &CStr) -> *mut c_void {
    let pair = NAMES
        .iter()
        .position(|paired| paired.as_bytes() == name.to_bytes());
    match pair {
        // SAFETY: dyld has filled the pairs before any of this library's code runs, and leaves
        // them alone from then on.
        Some(pair) => unsafe { PAIRS[pair][1] },
        // Not RTLD_NEXT: for a library with a two-level namespace, as this one is, that looks in what
        // the library was linked with and no further (dlsym(3)), which is libSystem. This looks
        // through all that was loaded with the process; of this library's nothing is exported.
        // SAFETY: the name is a C string; dlsym may be called at any time.
        None => unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) },
    }
}

/// Whether the function of this name has a pair.
pub(super) fn has_pair(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Whether the address is in the program, and not in a library.
pub(super) fn is_in_executable(address: *const c_void) -> bool {
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
