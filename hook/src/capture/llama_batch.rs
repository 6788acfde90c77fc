//! Reads a `llama_batch`, the structure that engines before 0.5 take by value.

use std::ptr;

use contextpilot_residency::{Entries, Entry};

use crate::attach::plain;
use crate::base::abi::{Batch, Pointer};
use crate::capture::contexts;
use crate::capture::shadow;

/// What the engine has to be asked, if a batch leaves something out.
pub(crate) struct Answers {
    /// Numbers in a row of embeddings, if the batch has embeddings.
    row_size: Option<usize>,
    /// If the batch gives no positions: the last position that the engine holds, for each sequence.
    ends: Vec<(i32, i32)>,
}

impl Answers {
    /// Asks the engine. Do not call this within the [guard](crate::base::guard). The engine's header says
    /// what null pointers mean.
    ///
    /// # Safety
    /// The engine may read the batch, and the context is alive and not evaluating.
    pub(crate) unsafe fn of(context: Pointer, batch: &Batch) -> Self {
        let mut answers = Self {
            row_size: None,
            ends: Vec::new(),
        };
        if batch.token.is_null() {
            // SAFETY: the caller's promise.
            answers.row_size = unsafe { row_size(context) };
        }
        if batch.position.is_null() {
            for index in 0..usize::try_from(batch.len).unwrap_or(0) {
                // SAFETY: the caller's promise.
                for sequence in unsafe { sequences(batch, index) } {
                    if answers.ends.iter().all(|(known, _)| *known != sequence) {
                        // SAFETY: the caller's promise.
                        let last = unsafe { contexts::last_position(context, sequence) };
                        answers.ends.push((sequence, last.unwrap_or(-1)));
                    }
                }
            }
        }
        answers
    }
}

/// The sequences of an entry.
///
/// # Safety
/// The engine may read the batch, and the batch has an entry `index`.
unsafe fn sequences(batch: &Batch, index: usize) -> impl Iterator<Item = i32> {
    // SAFETY: each array that is not null has an element for each entry.
    let list = unsafe { element(batch.sequence, index) }.unwrap_or(ptr::null());
    // SAFETY: as above.
    let count = unsafe { element(batch.sequences, index) }.unwrap_or(1);
    let count = if list.is_null() { 1 } else { count };
    (0..usize::try_from(count).unwrap_or(0)).map(move |which| {
        // SAFETY: each list has `count` elements.
        unsafe { element(list, which) }.unwrap_or(0)
    })
}

/// The entries of a batch; `None` if they cannot be known.
///
/// # Safety
/// The engine may read the batch, and `answers` are about this batch.
pub(crate) unsafe fn entries(batch: &Batch, answers: &Answers) -> Option<Entries> {
    let len = usize::try_from(batch.len).ok()?;
    let row_size = if batch.token.is_null() {
        answers.row_size?
    } else {
        0
    };
    let mut ends = answers.ends.clone();
    let mut entries = Vec::with_capacity(len);
    for index in 0..len {
        // SAFETY: each array that is not null has `len` elements.
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
        // SAFETY: the caller's promise.
        for sequence in unsafe { sequences(batch, index) } {
            let position = given.or_else(|| consecutive(sequence, &mut ends))?;
            entries.push(Entry {
                sequence,
                position,
                token,
                output,
            });
        }
    }
    Some(entries.into())
}

/// The next position of a sequence, counted on from what the engine holds of it.
fn consecutive(sequence: i32, ends: &mut [(i32, i32)]) -> Option<i32> {
    let (_, last) = ends.iter_mut().find(|(known, _)| *known == sequence)?;
    *last += 1;
    Some(*last)
}

/// Numbers in a row of embeddings.
///
/// # Safety
/// The context is alive.
pub(crate) unsafe fn row_size(context: Pointer) -> Option<usize> {
    // SAFETY: the caller's promise.
    let model = unsafe { plain::get_model(context) }?;
    // SAFETY: the model of a living context is alive.
    unsafe { row_size_of_model(model) }
}

/// The same of a model.
///
/// # Safety
/// The model is alive.
pub(crate) unsafe fn row_size_of_model(model: Pointer) -> Option<usize> {
    // SAFETY: the caller's promise.
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
