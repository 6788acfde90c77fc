//! Hooks for tokenizing a prompt, which the server does on the thread of the request.

use std::ffi::c_char;

use contextpilot_residency::{Token, media_run};

use crate::attach::is_embedded;
use crate::attach::original::original;
use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::guard::{compute, guarded};
use crate::base::mode;
use crate::capture::connections;
use crate::capture::{infill, kept, prompts, shadow};
use crate::store::encodings;

/// Prompts with media that take more positions are not followed. No slot is as long.
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
    let mut count = original!(llama_tokenize(
        vocabulary, text, length, tokens, capacity, special, parse
    ));
    if special && kept::are_engaged() {
        // SAFETY: our caller's vocabulary and text, and the engine has just written so many tokens.
        count = unsafe { keep(vocabulary, (text, length), (tokens, count, capacity)) };
    }
    if special {
        guarded(|| connections::counted(count));
    }
    if prompts::are_engaged() {
        let mut is_infill = false;
        guarded(|| is_infill = connections::is_infill());
        // SAFETY: the caller's vocabulary.
        let infill = is_infill.then(|| unsafe { infill::rule(vocabulary) });
        let infill = infill.flatten();
        guarded(|| {
            // Negative: the buffer was too small, and nothing was written.
            // SAFETY: otherwise the engine has just written so many tokens there. Our caller waits
            // for us to return.
            let tokens = unsafe { slice(tokens.cast_const(), count) };
            // SAFETY: the text to tokenize, with the length that the caller passed.
            let text = unsafe { slice(text.cast::<u8>(), length) };
            if let (Some(tokens), Some(text)) = (tokens, text) {
                connections::tokenized(special, text, tokens, infill);
            }
        });
    }
    count
}

/// Gives a prompt the tokens of earlier answers. Returns how many tokens it has.
///
/// # Safety
/// The vocabulary and the text are alive, and of the tokens, for which there is room, so many were written.
unsafe fn keep(
    vocabulary: Pointer,
    (text, length): (*const c_char, i32),
    (tokens, count, capacity): (*mut i32, i32, i32),
) -> i32 {
    let mut wanted = false;
    guarded(|| wanted = is_embedded() || connections::keeps_tokens());
    // SAFETY: the caller's promise, here and below.
    let canonical = unsafe { slice(tokens.cast_const(), count) };
    // SAFETY: see above.
    let text = unsafe { slice(text.cast::<u8>(), length) };
    let (Some(canonical @ [_, ..]), Some(text), true) = (canonical, text, wanted) else {
        return count;
    };
    // SAFETY: see above.
    let kept = compute(|| unsafe { kept::keep(vocabulary, text, canonical) });
    let Some(kept) = kept.flatten() else {
        return count;
    };
    let length = i32::try_from(kept.tokens.len()).unwrap_or(i32::MAX);
    // A caller that has asked before how many there are has room for these, and wants as many.
    if length > capacity || capacity == count && length != count {
        return count;
    }
    // SAFETY: there is room for so many.
    unsafe { tokens.copy_from_nonoverlapping(kept.tokens.as_ptr(), kept.tokens.len()) };
    guarded(|| connections::kept(&kept));
    length
}

/// `None` for a negative length. An empty one may have no address.
///
/// # Safety
/// There are `length` elements at `start`, and no thread changes them.
unsafe fn slice<'a, T>(start: *const T, length: i32) -> Option<&'a [T]> {
    match usize::try_from(length).ok()? {
        0 => Some(&[]),
        // SAFETY: the caller's promise.
        length => (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, length) }),
    }
}

/// Tokenizes a whole prompt, in a server with a projector. It calls `llama_tokenize` for the texts in
/// the prompt.
pub(crate) unsafe fn mtmd_tokenize(
    projector: Pointer,
    chunks: Pointer,
    text: Pointer,
    media: Pointer,
    count: usize,
) -> i32 {
    if prompts::are_engaged() {
        guarded(connections::tokenizing_media);
    }
    let result = original!(mtmd_tokenize(projector, chunks, text, media, count));
    if result == 0 {
        // SAFETY: our caller has the chunks, which the engine has just filled.
        let media_of = || unsafe { self::media(chunks) };
        // SAFETY: our caller has so many images.
        unsafe { encodings::note_tokenized(media.cast(), count, media_of) };
    }
    if prompts::are_engaged() {
        let is_read = result == 0 && mode::is_active();
        // SAFETY: both belong to the caller, which waits for us. The engine has just filled the chunks.
        let chunks = is_read.then(|| unsafe { ask(projector, chunks) }).flatten();
        guarded(|| {
            // SAFETY: as above.
            let tokens = chunks.and_then(|chunks| unsafe { tokens(&chunks) });
            connections::tokenized_media(tokens.as_deref());
        });
    }
    result
}

/// All chunks that are no text, and their names; `None` if they cannot be known.
///
/// # Safety
/// They are alive, and no thread changes them.
unsafe fn media(chunks: Pointer) -> Option<Vec<(Pointer, Box<[u8]>)>> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise.
    for chunk in unsafe { plain::chunks(chunks) } {
        let mut tokens = 0;
        // SAFETY: one of the chunks. The result is null if the chunk is not text.
        if unsafe { plain::chunk_text(chunk, &raw mut tokens) }?.is_null() {
            // SAFETY: one of the chunks.
            let name = unsafe { plain::name_of_chunk(chunk) }?;
            all.push((chunk, name.into()));
        }
    }
    Some(all)
}

/// A part of a prompt with media.
enum Chunk<'a> {
    /// Tokens and their number. The pointer is null if there are none.
    Text(*const i32, usize),
    /// Its name, the number of positions that it takes, and whether its rows share the first one.
    Media(&'a [u8], i32, bool),
}

/// All chunks; `None` if they cannot be known.
///
/// # Safety
/// Both are alive, and no thread changes them.
unsafe fn ask<'a>(projector: Pointer, chunks: Pointer) -> Option<Vec<Chunk<'a>>> {
    // SAFETY: the caller's promise.
    let images_share = unsafe { plain::shares_positions(projector) }?;
    // SAFETY: the caller's promise.
    let count = unsafe { plain::chunk_count(chunks) }?;
    let mut all = Vec::new();
    for index in 0..count {
        // SAFETY: `index` is less than the number of chunks.
        let chunk = unsafe { plain::chunk(chunks, index) }.filter(|chunk| !chunk.is_null())?;
        let mut count = 0;
        // SAFETY: one of the chunks. The result is null if the chunk is not text.
        let text = unsafe { plain::chunk_text(chunk, &raw mut count) }?;
        all.push(if text.is_null() {
            // The rows of a sound stand side by side with M-RoPE, too.
            // SAFETY: one of the chunks. The result is null if the chunk is no image.
            let image = unsafe { plain::chunk_image(chunk) };
            let is_sound = image.is_some_and(|image| image.is_null());
            Chunk::Media(
                // SAFETY: one of the chunks.
                unsafe { plain::name_of_chunk(chunk) }?,
                // SAFETY: as above.
                unsafe { plain::chunk_positions(chunk) }?,
                images_share && !is_sound,
            )
        } else {
            Chunk::Text(text, count)
        });
    }
    Some(all)
}

/// All chunks as tokens, as they will be in the KV cache; `None` if they are too long.
///
/// # Safety
/// They are alive, and no thread changes them.
unsafe fn tokens(chunks: &[Chunk<'_>]) -> Option<Vec<Token>> {
    let mut all = Vec::new();
    for chunk in chunks {
        match *chunk {
            Chunk::Text(text, count) => {
                // SAFETY: the engine said that there are `count` tokens.
                all.extend_from_slice(unsafe { std::slice::from_raw_parts(text, count) });
            }
            Chunk::Media(name, positions, shared) => {
                let positions = usize::try_from(positions).ok();
                let positions = positions.filter(|positions| *positions <= LONGEST)?;
                all.extend(media_run(shadow::token_of_name(name), positions, shared));
            }
        }
        if all.len() > LONGEST {
            return None;
        }
    }
    Some(all)
}
