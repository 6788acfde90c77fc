//! What tokens stand for, asked of the engine.
//!
//! Called by threads of ours while the engine may be at work. That is safe: the functions take a
//! `const llama_vocab *`, which is filled when the model is loaded and changed by nobody; llama-server
//! itself calls them from its HTTP threads (`/tokenize`, `/detokenize`). A vocabulary lives as long as its
//! model, and a model as long as its contexts: so a lock is held while the engine is asked for one token,
//! and `llama_free` takes it before a context goes. It waits for that one token at most, and only if text
//! is asked for just then (`CONTEXTPILOT_EXPLAIN_TEXT`).

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::attach::original::plain;
use crate::base::abi::Pointer;

/// More bytes than any token stands for.
const LONGEST: usize = 1024;
/// `LLAMA_VOCAB_TYPE_NONE`: a model without text, which aborts if it is asked.
const NO_TEXT: i32 = 0;

static IN_USE: Mutex<()> = Mutex::new(());

/// While this is held, no context goes.
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

/// The bytes that a token stands for. `None`: the vocabulary has no such token.
///
/// # Safety
/// The vocabulary is alive and has text.
pub(super) unsafe fn piece(vocabulary: Pointer, token: i32) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    let size = unsafe { plain::vocabulary_size(vocabulary) }?;
    // The engine throws if it is asked for others.
    if !(0..size).contains(&token) {
        return None;
    }
    let mut text = [0_u8; LONGEST];
    let (room, most) = (text.as_mut_ptr().cast(), LONGEST as i32);
    // SAFETY: the caller's promise; a token that it has, and room for as many bytes as said.
    let length = unsafe { plain::piece(vocabulary, token, room, most, 0, true) }?;
    // Negative: there was no room.
    let length = usize::try_from(length).ok()?;
    text.get(..length).map(<[u8]>::to_vec)
}
