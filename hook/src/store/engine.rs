//! The calls of the engine that the store makes. None of them is made within the
//! [guard](crate::base::guard).

use crate::attach::original::{self, original};
use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::faults;
use crate::capture::contexts;

/// Removes the positions of a sequence from `from` on.
///
/// # Safety
/// The context is alive, and the calling thread uses it.
pub(super) unsafe fn cut(context: Pointer, sequence: i32, from: usize) {
    let from = i32::try_from(from).unwrap_or(i32::MAX);
    if original::llama_memory_seq_rm().is_some() {
        if let Some(memory) = contexts::memory_of(context) {
            original!(llama_memory_seq_rm(memory, sequence, from, -1));
        }
    } else if original::llama_kv_self_seq_rm().is_some() {
        original!(llama_kv_self_seq_rm(context, sequence, from, -1));
    } else {
        original!(llama_kv_cache_seq_rm(context, sequence, from, -1));
    }
}

/// The number of tokens that the engine holds of a sequence whose positions begin at 0.
///
/// # Safety
/// As for [`cut`].
pub(super) unsafe fn length(context: Pointer, sequence: i32) -> Option<usize> {
    // SAFETY: the caller's promise.
    let last = unsafe { contexts::last_position(context, sequence) }?;
    usize::try_from(last + 1).ok()
}

/// Whether the engine holds so many tokens of a sequence, as far as it says.
///
/// # Safety
/// As for [`cut`].
pub(super) unsafe fn holds(context: Pointer, sequence: i32, tokens: usize) -> bool {
    // SAFETY: the caller's promise.
    let there = unsafe { length(context, sequence) };
    there.is_none_or(|there| there == tokens)
}

/// The first position that the engine has of a sequence.
///
/// # Safety
/// As for [`cut`].
pub(super) unsafe fn first(context: Pointer, sequence: i32) -> Option<usize> {
    // SAFETY: the caller's promise.
    let first = unsafe { contexts::first_in_engine(context, sequence) }?;
    usize::try_from(first).ok()
}

/// Whether a vocabulary of so many tokens says that one stands for no text.
///
/// # Safety
/// The vocabulary is alive, and has so many.
pub(super) unsafe fn is_control(vocabulary: Pointer, size: i32, token: i32) -> bool {
    /// `CONTROL` of `llama_token_attr`.
    const CONTROL: i32 = 8;
    // For any other number the engine throws.
    let exists = (0..size).contains(&token);
    // SAFETY: the caller's promise; the token exists.
    let attribute = exists.then(|| unsafe { plain::attribute(vocabulary, token) });
    attribute.flatten().is_some_and(|kind| kind & CONTROL != 0)
}

/// `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`: of a state, what cannot be cut back.
pub(crate) const PARTIAL: u32 = 1;

/// The size of the partial state of a sequence.
///
/// # Safety
/// As for [`cut`].
pub(super) unsafe fn partial_size(context: Pointer, sequence: i32) -> Option<usize> {
    // Our caller's caller has called a function of the engine that takes the context.
    original::llama_state_seq_get_size_ext()?;
    Some(original!(llama_state_seq_get_size_ext(
        context, sequence, PARTIAL
    )))
}

/// As [`save`], of the partial state.
///
/// # Safety
/// As for [`cut`].
pub(super) unsafe fn save_partial(context: Pointer, sequence: i32, state: &mut Vec<u8>) -> bool {
    // SAFETY: the caller's promise.
    let Some(size) = (unsafe { partial_size(context, sequence) }) else {
        return false;
    };
    state.clear();
    state.resize(size, 0);
    original::llama_state_seq_get_data_ext().is_some()
        && original!(llama_state_seq_get_data_ext(
            context,
            state.as_mut_ptr(),
            size,
            sequence,
            PARTIAL
        )) == size
}

/// Copies the state of a sequence to `state`, whose memory is used again. False if the engine did not.
///
/// # Safety
/// As for [`cut`].
pub(super) unsafe fn save(context: Pointer, sequence: i32, state: &mut Vec<u8>) -> bool {
    // SAFETY: the caller's promise.
    let Some(size) = (unsafe { plain::state_size(context, sequence) }) else {
        return false;
    };
    state.clear();
    state.reserve(size);
    // SAFETY: the caller's promise, and there is room for so many bytes.
    let written = unsafe { write(context, state.as_mut_ptr(), size, sequence) };
    if written == 0 || written > size {
        return false;
    }
    // SAFETY: the engine has written so many bytes, and there is room for them.
    unsafe { state.set_len(written) };
    true
}

/// Copies the state of a sequence to `target`. How many bytes were written; 0: the engine did not.
///
/// # Safety
/// As for [`cut`], and there is room for `size` bytes.
pub(super) unsafe fn write(context: Pointer, target: *mut u8, size: usize, sequence: i32) -> usize {
    match original::llama_state_seq_get_data_ext().is_some() {
        true => original!(llama_state_seq_get_data_ext(
            context, target, size, sequence, 0
        )),
        false => original!(llama_state_seq_get_data(context, target, size, sequence)),
    }
}

/// Replaces a sequence by a saved state. If that fails, the sequence is empty, or holds anything.
///
/// # Safety
/// As for [`cut`].
pub(super) unsafe fn load(context: Pointer, sequence: i32, state: &[u8]) -> bool {
    let size = faults::at_load(state.len());
    // SAFETY: the caller's promise.
    let read = unsafe { read(context, sequence, &state[..size]) };
    read == state.len()
}

/// As [`load`], of a state that the engine has given a moment ago.
///
/// # Safety
/// As for [`cut`].
pub(super) unsafe fn put_back(context: Pointer, sequence: i32, state: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    let read = unsafe { read(context, sequence, state) };
    read == state.len()
}

/// How many bytes the engine has read.
///
/// # Safety
/// As for [`cut`].
unsafe fn read(context: Pointer, sequence: i32, state: &[u8]) -> usize {
    let (source, size) = (state.as_ptr(), state.len());
    match original::llama_state_seq_set_data_ext().is_some() {
        true => original!(llama_state_seq_set_data_ext(
            context, source, size, sequence, 0
        )),
        false => original!(llama_state_seq_set_data(context, source, size, sequence)),
    }
}
