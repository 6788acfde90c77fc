//! The hook for rows that the engine hands on to the memory of its cache.

use crate::attach::original::original;
use crate::base::abi::Pointer;
use crate::store::flow;

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
