//! How calls by name come to us, where the files are ELF: the dynamic linker takes the first
//! library that exports a name, and a preloaded one comes before all others.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::*;
use crate::abi::{Batch, ContextParams, Embeddings, Pointer};
use crate::imports;
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

/// Whether calls of what is behind a row come to us: those from file to file do. The server's own
/// functions are called within one file, which may do without the dynamic linker.
pub(crate) fn hears(row: &Row) -> bool {
    let is_servers = row.generation.starts_with("server");
    let called = |theirs: *mut c_void| imports::is_called_by_name(row.slot.c_name(), theirs.addr());
    !is_servers || row.slot.get().is_some_and(called)
}
