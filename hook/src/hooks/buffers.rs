//! Memory is released. Noted *before* it is: afterwards the address may be somebody else's.
//!
//! The busiest functions of all, called long before our constructor and long after everything
//! else: for a buffer of no interest this is a load or two, and comparisons.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use contextpilot_residency::{BufferId, Event};

use crate::abi::Pointer;
use crate::channel::push;
use crate::guard::observe;
use crate::{original, saved};

#[cold]
fn note(memory: Pointer) {
    observe(|| {
        if saved::remove(memory.addr()) {
            push(Event::Freed {
                buffer: BufferId(memory.addr()),
            });
        }
    });
}

/// Where there is no C++ runtime, whoever calls `operator delete` means `free`.
fn release(memory: Pointer) {
    // SAFETY: our caller releases memory that it owns.
    unsafe { libc::free(memory) }
}

/// Whether releases that know a size may go on to those that do not.
static SHORT: AtomicBool = AtomicBool::new(false);

/// Takes a shorter way where that is sure to end at the same place. In the C++ runtimes the sized
/// form does nothing but call the other, by name, which is us a second time: that was most of what
/// this library did on the server's threads. An allocator that brings forms of its own is called
/// as it is.
pub(crate) fn shorten() {
    let (Some(sized), Some(other)) = (original::_ZdlPvm(), original::_ZdlPv()) else {
        return;
    };
    // SAFETY: the name is a C string; dlsym may be called at any time.
    let runtimes = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_throw".as_ptr()) };
    let runtime = file_of(runtimes);
    let are_runtimes = [sized as *const c_void, other as *const c_void]
        .iter()
        .all(|&function| file_of(function) == runtime);
    SHORT.store(runtime.is_some() && are_runtimes, Ordering::Relaxed);
}

/// What was loaded from the file that has this address: where it begins.
fn file_of(address: *const c_void) -> Option<usize> {
    let mut file = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; what is found is written to `file`.
    let found = unsafe { libc::dladdr(address, file.as_mut_ptr()) };
    // SAFETY: zeros are a value of this structure of pointers.
    let file = unsafe { file.assume_init() };
    (found != 0).then(|| file.dli_fbase.addr())
}

#[inline]
pub(super) unsafe fn _ZdlPv(memory: Pointer) {
    if saved::may_be(memory.addr()) {
        note(memory);
    }
    match original::_ZdlPv() {
        // SAFETY: what our caller asked for.
        Some(original) => unsafe { original(memory) },
        None => release(memory),
    }
}

#[inline]
pub(super) unsafe fn _ZdlPvm(memory: Pointer, size: usize) {
    if saved::may_matter(size) && saved::may_be(memory.addr()) {
        note(memory);
    }
    if SHORT.load(Ordering::Relaxed) {
        if let Some(original) = original::_ZdlPv() {
            // SAFETY: what the sized form of the same library does itself.
            return unsafe { original(memory) };
        }
    }
    match original::_ZdlPvm() {
        // SAFETY: what our caller asked for.
        Some(original) => unsafe { original(memory, size) },
        None => release(memory),
    }
}

pub(super) unsafe fn _ZdaPv(memory: Pointer) {
    if saved::may_be(memory.addr()) {
        note(memory);
    }
    match original::_ZdaPv() {
        // SAFETY: what our caller asked for.
        Some(original) => unsafe { original(memory) },
        None => release(memory),
    }
}

pub(super) unsafe fn _ZdaPvm(memory: Pointer, size: usize) {
    if saved::may_matter(size) && saved::may_be(memory.addr()) {
        note(memory);
    }
    match original::_ZdaPvm() {
        // SAFETY: what our caller asked for.
        Some(original) => unsafe { original(memory, size) },
        None => release(memory),
    }
}
