//! Hooks for releasing memory. They note the release *before* the call: afterwards the address may belong
//! to something else.
//!
//! These functions are called most often of all, even long before our constructor and after everything
//! else has ended. For a buffer of no interest, a hook takes a load or two, and comparisons.

use contextpilot_residency::{BufferId, Event};

use crate::attach::original;
use crate::base::abi::Pointer;
use crate::base::guard::guarded;
use crate::capture::host_buffers;
use crate::channel::push;

#[cold]
fn note(memory: Pointer) {
    guarded(|| {
        if host_buffers::release(memory.addr()) {
            push(Event::Freed {
                buffer: BufferId(memory.addr()),
            });
        }
    });
}

/// Used if there is no original: without a C++ runtime, `operator delete` is `free`.
fn release(memory: Pointer) {
    // SAFETY: our caller releases memory that it owns.
    unsafe { libc::free(memory) }
}

#[inline]
pub(crate) unsafe fn _ZdlPv(memory: Pointer) {
    let matters = host_buffers::may_be(memory.addr());
    match original::known::_ZdlPv() {
        // SAFETY: what our caller asked for.
        Some(original) if !matters => unsafe { original(memory) },
        // SAFETY: the same.
        _ => unsafe { delete(memory) },
    }
}

/// The same of a buffer that may be of interest, or before the original is known.
#[cold]
#[inline(never)]
unsafe fn delete(memory: Pointer) {
    if host_buffers::may_be(memory.addr()) {
        note(memory);
    }
    match original::_ZdlPv() {
        // SAFETY: what our caller asked for.
        Some(original) => unsafe { original(memory) },
        None => release(memory),
    }
}

#[inline]
pub(crate) unsafe fn _ZdlPvm(memory: Pointer, size: usize) {
    let matters = host_buffers::may_matter(size) && host_buffers::may_be(memory.addr());
    match original::known::_ZdlPvm() {
        // SAFETY: what our caller asked for.
        Some(original) if !matters => unsafe { original(memory, size) },
        // SAFETY: the same.
        _ => unsafe { delete_sized(memory, size) },
    }
}

/// As [`delete`].
#[cold]
#[inline(never)]
unsafe fn delete_sized(memory: Pointer, size: usize) {
    if host_buffers::may_matter(size) && host_buffers::may_be(memory.addr()) {
        note(memory);
    }
    match original::_ZdlPvm() {
        // SAFETY: what our caller asked for.
        Some(original) => unsafe { original(memory, size) },
        None => release(memory),
    }
}

pub(crate) unsafe fn _ZdaPv(memory: Pointer) {
    if host_buffers::may_be(memory.addr()) {
        note(memory);
    }
    match original::_ZdaPv() {
        // SAFETY: what our caller asked for.
        Some(original) => unsafe { original(memory) },
        None => release(memory),
    }
}

pub(crate) unsafe fn _ZdaPvm(memory: Pointer, size: usize) {
    if host_buffers::may_matter(size) && host_buffers::may_be(memory.addr()) {
        note(memory);
    }
    match original::_ZdaPvm() {
        // SAFETY: what our caller asked for.
        Some(original) => unsafe { original(memory, size) },
        None => release(memory),
    }
}
