//! Hooks for rows that the engine hands on to the memory of its cache, or fetches from there.

use crate::attach::original::original;
use crate::base::abi::Pointer;
use crate::store::{flow, only_new};

#[inline]
pub(crate) unsafe fn ggml_backend_tensor_set(
    tensor: Pointer,
    source: *const u8,
    offset: usize,
    size: usize,
) {
    // SAFETY: our caller's promise to the engine.
    if !unsafe { flow::hand_on(tensor, source, offset, size) } {
        original!(ggml_backend_tensor_set(tensor, source, offset, size));
    }
}

#[inline]
pub(crate) unsafe fn ggml_backend_tensor_get(
    tensor: Pointer,
    target: *mut u8,
    offset: usize,
    size: usize,
) {
    // SAFETY: our caller's promise to the engine.
    if !unsafe { only_new::fetch(tensor, target, offset, size) } {
        original!(ggml_backend_tensor_get(tensor, target, offset, size));
    }
}
