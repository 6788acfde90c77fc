//! Where the server makes tokens of a prompt, on the thread of its request.

use std::ffi::c_char;

use contextpilot_residency::{Token, media_run};

use super::media;
use crate::abi::Pointer;
use crate::attach::original::{original, plain};
use crate::connections;
use crate::guard::observe;
use crate::{prompts, shadow};

/// A prompt with media that takes more positions is not followed: no slot is as long.
const LONGEST: usize = 1 << 22;

pub(crate) unsafe fn llama_tokenize(
    vocabulary: Pointer,
    text: *const c_char,
    length: i32,
    tokens: *mut i32,
    capacity: i32,
    special: bool,
    parse: bool,
) -> i32 {
    let count = original!(llama_tokenize(
        vocabulary, text, length, tokens, capacity, special, parse
    ));
    // Negative: there was too little room for so many, and nothing was written.
    if let (true, Ok(count), false) = (
        prompts::are_engaged(),
        usize::try_from(count),
        tokens.is_null(),
    ) {
        observe(|| {
            // SAFETY: the engine has just written so many there, for our caller, who waits for us.
            let tokens = unsafe { std::slice::from_raw_parts(tokens, count) };
            connections::tokenized(special, tokens);
        });
    }
    count
}

/// A whole prompt, of a server with a projector; the texts in it are tokenized beneath.
pub(crate) unsafe fn mtmd_tokenize(
    projector: Pointer,
    chunks: Pointer,
    text: Pointer,
    media: Pointer,
    count: usize,
) -> i32 {
    if prompts::are_engaged() {
        observe(connections::tokenizing_media);
    }
    let result = original!(mtmd_tokenize(projector, chunks, text, media, count));
    if prompts::are_engaged() {
        observe(|| {
            let read = result == 0;
            // SAFETY: the caller's, who waits for us; the engine has just filled the chunks.
            let tokens = read.then(|| unsafe { tokens(projector, chunks) }).flatten();
            connections::tokenized_media(tokens.as_deref());
        });
    }
    result
}

/// All chunks as they will stand in the KV cache; `None` if that cannot be known.
///
/// # Safety
/// Both are alive, and nobody changes them.
unsafe fn tokens(projector: Pointer, chunks: Pointer) -> Option<Vec<Token>> {
    // SAFETY: the caller's promise.
    let shared = unsafe { plain::shares_positions(projector) }?;
    // SAFETY: the caller's promise.
    let count = unsafe { plain::chunk_count(chunks) }?;
    let mut all = Vec::new();
    for index in 0..count {
        // SAFETY: there are so many.
        let chunk = unsafe { plain::chunk(chunks, index) }.filter(|chunk| !chunk.is_null())?;
        // SAFETY: one of the chunks.
        all.extend_from_slice(&unsafe { tokens_of_chunk(chunk, shared) }?);
        if all.len() > LONGEST {
            return None;
        }
    }
    Some(all)
}

/// # Safety
/// The chunk is alive, and nobody changes it.
unsafe fn tokens_of_chunk(chunk: Pointer, shared: bool) -> Option<Vec<Token>> {
    let mut count = 0;
    // SAFETY: the caller's promise; null for what is no text.
    let text = unsafe { plain::chunk_text(chunk, &raw mut count) }?;
    if !text.is_null() {
        // SAFETY: so many tokens, says the engine.
        return Some(unsafe { std::slice::from_raw_parts(text, count) }.to_vec());
    }
    // SAFETY: the caller's promise.
    let token = shadow::token_of_name(unsafe { media::name(chunk) }?);
    // SAFETY: the caller's promise.
    let positions = usize::try_from(unsafe { plain::chunk_positions(chunk) }?).ok()?;
    (positions <= LONGEST).then(|| media_run(token, positions, shared).collect())
}
