//! Sequences are saved and restored.

use std::ffi::c_char;

use contextpilot_observer::Note;
use contextpilot_residency::{BufferId, ContextId, Event};

use crate::abi::Pointer;
use crate::attach::original::original;
use crate::channel::{note, push};
use crate::guard::EngineCall;
use crate::saved::Content;
use crate::status::STATUS;
use crate::{contexts, packed, saved};

/// The whole sequence, in host memory.
const WHOLE: u32 = 0;
/// `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`: a checkpoint of what a sliding window or a recurrent
/// state cannot give back otherwise.
const PARTIAL: u32 = 1;

pub(crate) unsafe fn llama_state_seq_get_data(
    context: Pointer,
    target: *mut u8,
    size: usize,
    sequence: i32,
) -> usize {
    let call = EngineCall::enter();
    let written = original!(llama_state_seq_get_data(context, target, size, sequence));
    call.observe(|| note_save(context, target, sequence, WHOLE, written));
    written
}

pub(crate) unsafe fn llama_state_seq_get_data_ext(
    context: Pointer,
    target: *mut u8,
    size: usize,
    sequence: i32,
    flags: u32,
) -> usize {
    let call = EngineCall::enter();
    let written = original!(llama_state_seq_get_data_ext(
        context, target, size, sequence, flags
    ));
    call.observe(|| note_save(context, target, sequence, flags, written));
    written
}

pub(crate) unsafe fn llama_state_seq_set_data(
    context: Pointer,
    source: *const u8,
    size: usize,
    sequence: i32,
) -> usize {
    let call = EngineCall::enter();
    let read = original!(llama_state_seq_set_data(context, source, size, sequence));
    call.observe(|| note_restore(context, source, sequence, WHOLE, read == size));
    read
}

pub(crate) unsafe fn llama_state_seq_set_data_ext(
    context: Pointer,
    source: *const u8,
    size: usize,
    sequence: i32,
    flags: u32,
) -> usize {
    let call = EngineCall::enter();
    let read = original!(llama_state_seq_set_data_ext(
        context, source, size, sequence, flags
    ));
    call.observe(|| note_restore(context, source, sequence, flags, read == size));
    read
}

/// Newer servers call it twice, the first time without room for tokens to learn their number:
/// that loads nothing.
pub(crate) unsafe fn llama_state_seq_load_file(
    context: Pointer,
    path: *const c_char,
    sequence: i32,
    tokens: *mut i32,
    capacity: usize,
    count: *mut usize,
) -> usize {
    let call = EngineCall::enter();
    let read = original!(llama_state_seq_load_file(
        context, path, sequence, tokens, capacity, count
    ));
    call.observe(|| {
        if tokens.is_null() {
            return;
        }
        let loaded = match read {
            0 => None,
            // SAFETY: the engine has written so many tokens there, and their number.
            _ => unsafe { loaded_tokens(tokens, capacity, count) },
        };
        note_load(context, sequence, loaded);
    });
    read
}

pub(crate) unsafe fn llama_state_set_data(
    context: Pointer,
    source: *const u8,
    size: usize,
) -> usize {
    let call = EngineCall::enter();
    let read = original!(llama_state_set_data(context, source, size));
    call.observe(|| obscure(context, -1));
    read
}

pub(crate) unsafe fn llama_state_load_file(
    context: Pointer,
    path: *const c_char,
    tokens: *mut i32,
    capacity: usize,
    count: *mut usize,
) -> bool {
    let call = EngineCall::enter();
    let done = original!(llama_state_load_file(
        context, path, tokens, capacity, count
    ));
    call.observe(|| obscure(context, -1));
    done
}

fn note_save(context: Pointer, target: *mut u8, sequence: i32, flags: u32, written: usize) {
    let buffer = BufferId(target.addr());
    if flags & PARTIAL != 0 && written > 0 && note_checkpoint(context, buffer, sequence, written) {
        return;
    }
    if flags == WHOLE && written > 0 {
        if saved::insert(buffer.0, written, Content::Whole) {
            note_size(buffer, written);
            push(Event::Saved {
                context: ContextId(context.addr()),
                sequence,
                buffer,
            });
        } else {
            // Its release would go unnoticed, so it must not count as a copy.
            STATUS.untracked_buffers.add(1);
        }
    } else if saved::remove(buffer.0) {
        // Something else, or nothing of use, was written over what it held.
        push(Event::Freed { buffer });
    }
}

/// A checkpoint was written. False if it is of no interest.
fn note_checkpoint(context: Pointer, buffer: BufferId, sequence: i32, size: usize) -> bool {
    if !contexts::is_bounded(context) {
        return false;
    }
    // SAFETY: a living context, which has just been read.
    let first = unsafe { contexts::first_position(context, sequence) };
    // SAFETY: see above.
    let last = unsafe { contexts::last_position(context, sequence) };
    let (Some(first), Some(last)) = (first, last) else {
        return false;
    };
    if !saved::insert(buffer.0, size, Content::Checkpoint) {
        STATUS.untracked_buffers.add(1);
        return false;
    }
    note_size(buffer, size);
    push(Event::Checkpointed {
        context: ContextId(context.addr()),
        sequence,
        buffer,
        first,
        last,
    });
    true
}

fn note_size(buffer: BufferId, size: usize) {
    note(|| Note::Size {
        buffer,
        bytes: size as u64,
    });
}

fn note_restore(context: Pointer, source: *const u8, sequence: i32, flags: u32, done: bool) {
    if flags & PARTIAL != 0 {
        return;
    }
    if flags == WHOLE && done {
        push(Event::Restored {
            context: ContextId(context.addr()),
            sequence,
            buffer: BufferId(source.addr()),
        });
        super::evaluate::note_reach(context, sequence);
    } else {
        obscure(context, sequence);
    }
}

fn note_load(context: Pointer, sequence: i32, loaded: Option<Vec<i32>>) {
    // SAFETY: a living context, which has just been written.
    let last = unsafe { contexts::last_position(context, sequence) };
    let held = last.and_then(|last| usize::try_from(last.saturating_add(1)).ok());
    match (loaded, held) {
        // The tokens are the server's word, their number the engine's.
        (Some(mut tokens), Some(held)) if held > 0 && held <= tokens.len() => {
            tokens.truncate(held);
            push(Event::Replaced {
                context: ContextId(context.addr()),
                sequence,
                tokens,
            });
        }
        _ => obscure(context, sequence),
    }
}

fn obscure(context: Pointer, sequence: i32) {
    push(Event::Obscured {
        context: ContextId(context.addr()),
        sequence,
    });
}

/// # Safety
/// `tokens` has `capacity` elements, of which as many are written as stands in `count`.
unsafe fn loaded_tokens(
    tokens: *const i32,
    capacity: usize,
    count: *const usize,
) -> Option<Vec<i32>> {
    if count.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let count = unsafe { *count };
    if count > capacity {
        return None;
    }
    // SAFETY: the caller's promise.
    packed::unpack(unsafe { std::slice::from_raw_parts(tokens, count) })
}
