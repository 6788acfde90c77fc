//! How calls by name come to us, where the files are ELF: the dynamic linker takes the first
//! library that exports a name, and a preloaded one comes before all others.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::*;
use crate::abi::{Batch, ContextParams, Embeddings, Pointer};
use crate::original::Row;

macro_rules! exports {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: called in place of the function of this name, with its contract.
                unsafe { $module::$name($($argument),*) }
            }
        )*
    };
}
for_each_interposed!(exports);

/// What the host would have called by this name; null: nothing. Never linked: a direct call would
/// come back to our own export.
///
/// May allocate with `malloc`, but never through `operator delete`, so that the latter may be
/// looked for in its own first call.
pub(crate) fn behind(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; dlsym may be called at any time, constructors included.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Whether calls of what is behind a row come to us. Here they all do, unless the host was linked
/// with `-Bsymbolic`.
pub(crate) fn hears(_: &Row) -> bool {
    true
}
