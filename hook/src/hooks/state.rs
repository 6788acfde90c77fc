//! Hooks for saving and restoring sequences.

use std::ffi::{CStr, OsStr, c_char};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use contextpilot_observer::Note;
use contextpilot_residency::{BufferId, Event, RewindGeneration};

use super::evaluate::{ask_reach, note_reach};
use crate::attach::is_embedded;
use crate::attach::original::original;
use crate::base::abi::Pointer;
use crate::base::guard::{self, EngineCall};
use crate::base::status::STATUS;
use crate::capture::host_buffers::Content;
use crate::capture::slot_file::SavedCheckpoint;
use crate::capture::{contexts, host_buffers, rewinding, slot_file};
use crate::channel::{note, push};
use crate::store::engine::PARTIAL;
use crate::store::state as stored;
use crate::store::{Context, ahead, bounded, change, save};

/// The flags for a whole sequence, in host memory.
const WHOLE: u32 = 0;

pub(crate) unsafe fn llama_state_seq_get_data(
    context: Pointer,
    target: *mut u8,
    size: usize,
    sequence: i32,
) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    ahead::remove(used, sequence);
    let written = original!(llama_state_seq_get_data(context, target, size, sequence));
    // SAFETY: the engine has just written there.
    unsafe { stored::saved(used, sequence, target, written) };
    call.guarded(|| note_save(context, target, sequence, WHOLE, written, Ends::default()));
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
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    let from_store = match flags {
        // SAFETY: the caller's promise to the engine.
        PARTIAL => unsafe { stored::write_checkpoint(used, sequence, target, size) },
        _ => None,
    };
    let written = from_store.unwrap_or_else(|| {
        ahead::remove(used, sequence);
        let written = original!(llama_state_seq_get_data_ext(
            context, target, size, sequence, flags
        ));
        match flags {
            // SAFETY: the engine has just written there.
            WHOLE => unsafe { stored::saved(used, sequence, target, written) },
            // SAFETY: see above.
            PARTIAL => unsafe { stored::checkpointed(used, sequence, target, written) },
            _ => {}
        }
        written
    });
    let ends = if flags & PARTIAL != 0 && written > 0 && call.counts() {
        Ends::of(used, sequence, from_store.is_some())
    } else {
        Ends::default()
    };
    call.guarded(|| note_save(context, target, sequence, flags, written, ends));
    written
}

pub(crate) unsafe fn llama_state_seq_set_data(
    context: Pointer,
    source: *const u8,
    size: usize,
    sequence: i32,
) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    stored::about_to_restore(used, sequence);
    let read = original!(llama_state_seq_set_data(context, source, size, sequence));
    // SAFETY: the engine has just read there.
    unsafe { stored::restored(used, sequence, source, size, read == size) };
    let reach = ask_reach_after(used, sequence);
    call.guarded(|| note_restore(context, source, sequence, WHOLE, read == size, reach));
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
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    match flags {
        PARTIAL => stored::about_to_rewind(used, sequence),
        _ => stored::about_to_restore(used, sequence),
    }
    let read = original!(llama_state_seq_set_data_ext(
        context, source, size, sequence, flags
    ));
    let done = read == size;
    match flags {
        // SAFETY: the engine has just read there.
        PARTIAL => unsafe { stored::rewound(used, sequence, source, size, done) },
        // SAFETY: see above.
        _ => unsafe {
            stored::restored(used, sequence, source, size, done && flags == WHOLE);
        },
    }
    let reach = ask_reach_after(used, sequence);
    call.guarded(|| note_restore(context, source, sequence, flags, read == size, reach));
    read
}

/// What copies of `llama_state_seq_set_data` and `llama_state_seq_set_data_ext` call.
pub(crate) unsafe fn _ZN13llama_context18state_seq_set_dataEiPKhmj(
    context: Pointer,
    sequence: i32,
    source: *const u8,
    size: usize,
    flags: u32,
) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    if call.is_hosts() {
        stored::about_to_restore(used, sequence);
    }
    let read = original!(_ZN13llama_context18state_seq_set_dataEiPKhmj(
        context, sequence, source, size, flags
    ));
    if call.is_hosts() {
        // What was restored is not followed.
        // SAFETY: the engine has just read there.
        unsafe { stored::restored(used, sequence, source, size, false) };
        let reach = ask_reach_after(used, sequence);
        call.guarded(|| note_restore(context, source, sequence, flags, read == size, reach));
    }
    read
}

/// Newer servers call this twice. The first call has no room for tokens: it returns their number, and
/// loads nothing.
pub(crate) unsafe fn llama_state_seq_load_file(
    context: Pointer,
    path: *const c_char,
    sequence: i32,
    tokens: *mut i32,
    capacity: usize,
    count: *mut usize,
) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    if !tokens.is_null() {
        stored::about_to_restore(used, sequence);
    }
    let read = original!(llama_state_seq_load_file(
        context, path, sequence, tokens, capacity, count
    ));
    let loaded = match read {
        0 => None,
        _ if tokens.is_null() => None,
        // SAFETY: the engine has written so many tokens there, and their number.
        _ => guard::compute(|| unsafe { loaded_tokens(tokens, capacity, count) }).flatten(),
    };
    if !tokens.is_null() {
        stored::restored_from_file(used, sequence, loaded.as_deref());
    }
    let (last, reach) = if tokens.is_null() || !call.counts() {
        (None, None)
    } else {
        (
            // SAFETY: a living context that is not evaluating: the engine has just written to it.
            unsafe { contexts::last_position(context, sequence) },
            ask_reach_after(used, sequence),
        )
    };
    call.guarded(|| {
        if tokens.is_null() {
            return;
        }
        if note_load(context, sequence, loaded, last) && reach.is_some() {
            note_reach(context, sequence, reach);
            // SAFETY: the caller's promise to the engine.
            unsafe { note_loaded_checkpoints(context, path, sequence, read) };
        }
    });
    read
}

pub(crate) unsafe fn llama_state_set_data(
    context: Pointer,
    source: *const u8,
    size: usize,
) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    save::about_to_lose(Some(used), -1, 0);
    let read = original!(llama_state_set_data(context, source, size));
    change::obscured(Some(used), -1);
    call.guarded(|| obscure(context, -1));
    read
}

/// What a copy of `llama_state_set_data` calls.
pub(crate) unsafe fn _ZN13llama_context14state_set_dataEPKhm(
    context: Pointer,
    source: *const u8,
    size: usize,
) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    save::about_to_lose(Some(used), -1, 0);
    let read = original!(_ZN13llama_context14state_set_dataEPKhm(
        context, source, size
    ));
    change::obscured(Some(used), -1);
    call.guarded(|| obscure(context, -1));
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
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    save::about_to_lose(Some(used), -1, 0);
    let done = original!(llama_state_load_file(
        context, path, tokens, capacity, count
    ));
    change::obscured(Some(used), -1);
    call.guarded(|| obscure(context, -1));
    done
}

/// The first and last position of a sequence, if the context is bounded.
#[derive(Clone, Copy, Default)]
struct Ends(Option<(i32, i32)>);

impl Ends {
    fn of(context: Context<'_>, sequence: i32, is_from_store: bool) -> Self {
        let Some(first) = ask_reach(context, sequence) else {
            return Self(None);
        };
        let last = match bounded::ends(context, sequence).filter(|_| is_from_store) {
            Some((_, last)) => Some(last),
            // SAFETY: a living context that is not evaluating: the engine has just read it.
            None => unsafe { contexts::last_position(context.pointer(), sequence) },
        };
        Self(last.map(|last| (first, last)))
    }
}

/// The first position of a sequence that has just been restored.
fn ask_reach_after(context: Context<'_>, sequence: i32) -> Option<i32> {
    if !context.call().counts() {
        None
    } else if contexts::saves_windows(context.pointer()) {
        // SAFETY: a living context that is not evaluating: the engine has just written to it.
        unsafe { contexts::first_in_engine(context.pointer(), sequence) }
    } else {
        ask_reach(context, sequence)
    }
}

fn note_save(
    context: Pointer,
    target: *mut u8,
    sequence: i32,
    flags: u32,
    written: usize,
    ends: Ends,
) {
    let buffer = BufferId(target.addr());
    let is_checkpoint = flags & PARTIAL != 0 && written > 0;
    if is_checkpoint && note_checkpoint(context, buffer, sequence, written, ends) {
        return;
    }
    if flags == WHOLE && written > 0 {
        if host_buffers::insert(buffer.0, written, Content::Whole) {
            note_size(buffer, written);
            push(Event::Saved {
                context: contexts::id_of(context),
                sequence,
                buffer,
            });
        } else {
            // Its release would not be noticed, so it must not count as a copy.
            STATUS.untracked_buffers.add(1);
        }
    } else if host_buffers::remove(buffer.0) {
        // The buffer's previous content was overwritten.
        push(Event::Freed { buffer });
    }
}

/// A checkpoint was saved. False if it is of no interest.
fn note_checkpoint(
    context: Pointer,
    buffer: BufferId,
    sequence: i32,
    size: usize,
    ends: Ends,
) -> bool {
    let Some((first, last)) = ends.0 else {
        return false;
    };
    if !host_buffers::insert(buffer.0, size, Content::Checkpoint) {
        STATUS.untracked_buffers.add(1);
        return false;
    }
    note_size(buffer, size);
    push(Event::Checkpointed {
        context: contexts::id_of(context),
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

fn note_restore(
    context: Pointer,
    source: *const u8,
    sequence: i32,
    flags: u32,
    done: bool,
    reach: Option<i32>,
) {
    if flags & PARTIAL != 0 {
        return;
    }
    if flags == WHOLE && done {
        push(Event::Restored {
            context: contexts::id_of(context),
            sequence,
            buffer: BufferId(source.addr()),
        });
        note_reach(context, sequence, reach);
    } else {
        obscure(context, sequence);
    }
}

/// A sequence was loaded. `last`: its last position in the engine. False if it is not known what was
/// loaded.
fn note_load(context: Pointer, sequence: i32, loaded: Option<Vec<i32>>, last: Option<i32>) -> bool {
    let held = last.and_then(|last| usize::try_from(last.saturating_add(1)).ok());
    match (loaded, held) {
        // The tokens are from the file, and their number is from the engine.
        (Some(mut tokens), Some(held)) if held > 0 && held <= tokens.len() => {
            tokens.truncate(held);
            push(Event::Replaced {
                context: contexts::id_of(context),
                sequence,
                tokens,
            });
            true
        }
        _ => {
            obscure(context, sequence);
            false
        }
    }
}

/// Servers of 0.7.0 read the checkpoints behind the state, of which the engine has read `size` bytes.
///
/// # Safety
/// `path` is a string.
unsafe fn note_loaded_checkpoints(
    context: Pointer,
    path: *const c_char,
    sequence: i32,
    size: usize,
) {
    let rules = rewinding::rules();
    if is_embedded() || rules.generation != RewindGeneration::Late2026 {
        return;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let file = File::open(OsStr::from_bytes(path.to_bytes())).ok();
    let all = file.and_then(|mut file| slot_file::checkpoints(&mut file, size as u64));
    let all = all.unwrap_or_default();
    // If there are more than it may have, the server drops the oldest.
    let surplus = all.len().saturating_sub(rules.checkpoints as usize);
    for SavedCheckpoint {
        tokens,
        first,
        last,
    } in all.into_iter().skip(surplus)
    {
        push(Event::CheckpointLoaded {
            context: contexts::id_of(context),
            sequence,
            tokens,
            first,
            last,
        });
    }
}

fn obscure(context: Pointer, sequence: i32) {
    push(Event::Obscured {
        context: contexts::id_of(context),
        sequence,
    });
}

/// # Safety
/// `tokens` has `capacity` elements, and the first `*count` of them were written.
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
    slot_file::unpack(unsafe { std::slice::from_raw_parts(tokens, count) })
}
