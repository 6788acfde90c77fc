//! Memory is released. Noted *before* it is: afterwards the address may be somebody else's.
//!
//! The busiest functions of all, called long before our constructor and long after everything
//! else: for a buffer of no interest this is one load and one comparison.

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

pub(super) unsafe fn _ZdlPvm(memory: Pointer, size: usize) {
    if saved::may_matter(size) && saved::may_be(memory.addr()) {
        note(memory);
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
