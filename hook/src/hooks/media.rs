//! Hooks for evaluating the rows of an image or a sound.

use std::ffi::CStr;

use crate::attach::original::original;
use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::guard::guarded;
use crate::base::mode;
use crate::capture::shadow::Named;
use crate::store;

/// Fills batches with the rows of one chunk and evaluates them, on this thread. Older versions
/// have no `callback` and no `data`, and ignore what we pass in their place.
#[allow(clippy::too_many_arguments)]
pub(crate) unsafe fn mtmd_helper_decode_image_chunk(
    projector: Pointer,
    context: Pointer,
    chunk: Pointer,
    rows: Pointer,
    position: i32,
    sequence: i32,
    most: i32,
    end: Pointer,
    callback: Pointer,
    data: Pointer,
) -> i32 {
    // SAFETY: the caller hands over a living chunk.
    let name = mode::is_active().then(|| unsafe { name(chunk) }).flatten();
    let mut named = None;
    guarded(|| named = name.map(Named::begin));
    let decode = || {
        original!(mtmd_helper_decode_image_chunk(
            projector, context, chunk, rows, position, sequence, most, end, callback, data
        ))
    };
    // SAFETY: the caller hands over what is evaluated now.
    unsafe { store::media::during(context, chunk, rows, (sequence, position), decode) }
}

/// The name by which the server identifies a chunk: the hash of the file that it came from. Do not call this
/// within the guard.
///
/// # Safety
/// The chunk is alive.
pub(crate) unsafe fn name<'a>(chunk: Pointer) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    let name = unsafe { plain::media_name(chunk) }.filter(|name| !name.is_null())?;
    // SAFETY: a C string that belongs to the chunk.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    (!name.is_empty()).then_some(name)
}
