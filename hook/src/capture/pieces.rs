//! Asks the engine for the text of tokens.
//!
//! Our threads call this while the engine may be evaluating. That is safe: the functions take a
//! `const llama_vocab *`, which is filled when the model is loaded and does not change afterwards.
//! llama-server itself calls them from its HTTP threads (`/tokenize`, `/detokenize`). A vocabulary lives
//! as long as its model, and a model as long as its contexts. So a lock is held while one token is read,
//! and `llama_free` takes the lock before a context is freed. It waits for one token at most, and only if
//! text is being read at that moment (`CONTEXTPILOT_EXPLAIN_TEXT`).

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::attach::plain;
use crate::base::abi::Pointer;

/// An upper bound for the bytes of a token.
const LONGEST: usize = 1024;
/// `LLAMA_VOCAB_TYPE_NONE`: a model without text. Asking it for text aborts the process.
const NO_TEXT: i32 = 0;

static IN_USE: Mutex<()> = Mutex::new(());

/// While this is held, no context is freed.
pub(super) fn hold() -> MutexGuard<'static, ()> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The vocabulary of a model, if it has text.
///
/// # Safety
/// The model is alive.
pub(super) unsafe fn vocabulary_of(model: Pointer) -> Option<Pointer> {
    // SAFETY: the caller's promise.
    let vocabulary = unsafe { plain::vocabulary(model) }.filter(|known| !known.is_null())?;
    // SAFETY: a model's vocabulary lives as long as the model.
    let kind = unsafe { plain::vocabulary_kind(vocabulary) }?;
    (kind != NO_TEXT).then_some(vocabulary)
}

/// The bytes of a token. `None` if the vocabulary has no such token.
///
/// # Safety
/// The vocabulary is alive and has text.
pub(super) unsafe fn piece(vocabulary: Pointer, token: i32) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    let size = unsafe { plain::vocabulary_size(vocabulary) }?;
    // For any other number the engine throws.
    if !(0..size).contains(&token) {
        return None;
    }
    let mut text = [0_u8; LONGEST];
    let (room, most) = (text.as_mut_ptr().cast(), LONGEST as i32);
    // SAFETY: the caller's promise; the token exists, and the buffer has `most` bytes.
    let length = unsafe { plain::piece(vocabulary, token, room, most, 0, true) }?;
    // Negative: the buffer was too small.
    let length = usize::try_from(length).ok()?;
    text.get(..length).map(<[u8]>::to_vec)
}
