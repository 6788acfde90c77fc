//! What is in a `llama_batch`, the structure that engines before 0.5 take by value.

use std::ptr;

use contextpilot_residency::Entry;

use crate::abi::{Batch, Pointer};
use crate::attach::original::plain;
use crate::contexts;
use crate::shadow;

/// The entries of a batch; `None` if they cannot be told. What null pointers mean is written in
/// the engine's header.
///
/// # Safety
/// The batch is one that the engine may read.
pub(crate) unsafe fn entries(context: Pointer, batch: &Batch) -> Option<Vec<Entry>> {
    let len = usize::try_from(batch.len).ok()?;
    let row_size = match batch.token.is_null() {
        // SAFETY: the engine is about to use the context.
        true => unsafe { row_size(context) }?,
        false => 0,
    };
    let mut next = Vec::new();
    let mut entries = Vec::with_capacity(len);
    for index in 0..len {
        // SAFETY: each array that is there has `len` elements.
        let token = match unsafe { element(batch.token, index) } {
            Some(token) => token,
            None if batch.embedding.is_null() => return None,
            None => {
                let row = batch.embedding.wrapping_add(index * row_size);
                // SAFETY: the embeddings have `len` rows of this size.
                shadow::media(unsafe {
                    std::slice::from_raw_parts(row.cast(), row_size * size_of::<f32>())
                })
            }
        };
        // SAFETY: as above.
        let output = match unsafe { element(batch.output, index) } {
            Some(output) => output != 0,
            None => index + 1 == len,
        };
        // SAFETY: as above.
        let given = unsafe { element(batch.position, index) };
        // SAFETY: as above.
        let list = unsafe { element(batch.sequence, index) }.unwrap_or(ptr::null());
        // SAFETY: as above.
        let count = unsafe { element(batch.sequences, index) }.unwrap_or(1);
        let count = if list.is_null() { 1 } else { count };
        for which in 0..usize::try_from(count).ok()? {
            // SAFETY: each list has as many elements as is said of it.
            let sequence = unsafe { element(list, which) }.unwrap_or(0);
            let position = given.unwrap_or_else(|| consecutive(context, sequence, &mut next));
            entries.push(Entry {
                sequence,
                position,
                token,
                output,
            });
        }
    }
    Some(entries)
}

/// The next position of a sequence, counted on from what the engine holds of it.
fn consecutive(context: Pointer, sequence: i32, next: &mut Vec<(i32, i32)>) -> i32 {
    if let Some((_, position)) = next.iter_mut().find(|(s, _)| *s == sequence) {
        *position += 1;
        return *position;
    }
    // SAFETY: the context that a batch is about to be evaluated in.
    let last = unsafe { contexts::last_position(context, sequence) };
    let position = last.unwrap_or(-1) + 1;
    next.push((sequence, position));
    position
}

/// Numbers in a row of embeddings.
///
/// # Safety
/// The context is alive.
unsafe fn row_size(context: Pointer) -> Option<usize> {
    // SAFETY: the caller's promise.
    let model = unsafe { plain::get_model(context) }?;
    // SAFETY: the model of a living context is alive.
    let inputs = unsafe { plain::embedding_size_in(model) };
    // SAFETY: as above.
    let size = inputs.or_else(|| unsafe { plain::embedding_size(model) })?;
    usize::try_from(size).ok()
}

/// # Safety
/// If `array` is not null, it has more than `index` elements.
unsafe fn element<T: Copy>(array: *const T, index: usize) -> Option<T> {
    // SAFETY: the caller's promise.
    (!array.is_null()).then(|| unsafe { *array.wrapping_add(index) })
}
