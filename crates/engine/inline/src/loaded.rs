//! The objects that are loaded into this process.

use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;

/// Calls `work` with the executable, and then with each library, until it returns that it has seen
/// enough. It must not panic.
pub fn visit_loaded<F: FnMut(&libc::dl_phdr_info) -> ControlFlow<()>>(mut work: F) {
    unsafe extern "C" fn show<F: FnMut(&libc::dl_phdr_info) -> ControlFlow<()>>(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `dl_iterate_phdr` hands out a valid description for the time of the call.
        let info = unsafe { &*info };
        // SAFETY: what is handed over below, which no other code refers to meanwhile.
        let work = unsafe { &mut *data.cast::<F>() };
        work(info).is_break().into()
    }
    let data: *mut F = &mut work;
    // SAFETY: the callback has the signature that is asked for and gets `data`, which outlives
    // the call.
    unsafe { libc::dl_iterate_phdr(Some(show::<F>), data.cast()) };
}
