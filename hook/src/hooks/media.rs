//! Hooks for encoding images and sounds, and for evaluating the rows that come of it.

use std::time::Instant;

use crate::attach::original::original;
use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::guard::guarded;
use crate::base::mode;
use crate::capture::shadow::Named;
use crate::store;
use crate::store::encodings;

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
    let name = mode::is_active()
        .then(|| unsafe { plain::name_of_chunk(chunk) })
        .flatten();
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

/// Copies a part of a prompt.
pub(crate) unsafe fn mtmd_input_chunk_copy(chunk: Pointer) -> Pointer {
    let copy = original!(mtmd_input_chunk_copy(chunk));
    encodings::copied(chunk, copy);
    copy
}

pub(crate) unsafe fn mtmd_input_chunk_free(chunk: Pointer) {
    encodings::freed(chunk);
    original!(mtmd_input_chunk_free(chunk));
}

/// Frees a list of parts, and all of these.
pub(crate) unsafe fn mtmd_input_chunks_free(chunks: Pointer) {
    if !chunks.is_null() && encodings::are_any_known() {
        // SAFETY: the caller has the list still.
        for chunk in unsafe { plain::chunks(chunks) } {
            encodings::freed(chunk);
        }
    }
    original!(mtmd_input_chunks_free(chunks));
}

/// Makes a batch of images that are encoded together.
pub(crate) unsafe fn mtmd_batch_init(projector: Pointer) -> Pointer {
    let batch = original!(mtmd_batch_init(projector));
    encodings::begin(batch, projector);
    batch
}

/// Adds an image to a batch. 0: it was added.
pub(crate) unsafe fn mtmd_batch_add_chunk(batch: Pointer, chunk: Pointer) -> i32 {
    // SAFETY: the caller hands over a living chunk.
    if let Some(result) = unsafe { encodings::add(batch, chunk) } {
        return result;
    }
    let result = original!(mtmd_batch_add_chunk(batch, chunk));
    if result != 0 {
        encodings::refused(batch);
    }
    result
}

/// Encodes what is in a batch. 0: it was encoded.
pub(crate) unsafe fn mtmd_batch_encode(batch: Pointer) -> i32 {
    if encodings::is_given(batch) {
        return 0;
    }
    let start = Instant::now();
    let result = original!(mtmd_batch_encode(batch));
    if result == 0 {
        // SAFETY: the caller has the batch with its chunks.
        unsafe { encodings::encoded(batch, start.elapsed()) };
    }
    result
}

/// The rows of an image in a batch that was encoded. Null: it is not in the batch.
pub(crate) unsafe fn mtmd_batch_get_output_embd(batch: Pointer, chunk: Pointer) -> Pointer {
    encodings::rows(batch, chunk)
        .unwrap_or_else(|| original!(mtmd_batch_get_output_embd(batch, chunk)))
}

pub(crate) unsafe fn mtmd_batch_free(batch: Pointer) {
    encodings::forget(batch);
    original!(mtmd_batch_free(batch));
}
