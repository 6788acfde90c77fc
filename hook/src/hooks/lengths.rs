//! Hooks for questions about a sequence, or about all of a context. The engine may hold more of it than the host knows (see
//! [`crate::store`]), and the host must not see that.

use std::ffi::c_char;

use crate::attach::original::original;
use crate::base::abi::Pointer;
use crate::base::guard::EngineCall;
use crate::store::engine::PARTIAL;
use crate::store::{Context, ahead, bounded, state as stored};

/// The answer to a question for the last position of a sequence.
fn last(context: Option<Context<'_>>, sequence: i32, last: i32) -> i32 {
    if let Some((_, believed)) = ends(context, sequence) {
        return believed;
    }
    match context.and_then(|context| ahead::last(context, sequence)) {
        Some(believed) => last.min(believed),
        None => last,
    }
}

/// The answers to both questions, if the engine holds less than the host believes.
fn ends(context: Option<Context<'_>>, sequence: i32) -> Option<(i32, i32)> {
    bounded::ends(context.filter(|context| context.is_hosts())?, sequence)
}

pub(crate) unsafe fn llama_memory_seq_pos_min(memory: Pointer, sequence: i32) -> i32 {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the memory.
    let used = unsafe { Context::of_memory(&call, memory) };
    ahead::about_to_ask(used);
    match ends(used, sequence) {
        Some((first, _)) => first,
        None => original!(llama_memory_seq_pos_min(memory, sequence)),
    }
}

pub(crate) unsafe fn llama_memory_seq_pos_max(memory: Pointer, sequence: i32) -> i32 {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the memory.
    let used = unsafe { Context::of_memory(&call, memory) };
    ahead::about_to_ask(used);
    let answer = original!(llama_memory_seq_pos_max(memory, sequence));
    last(used, sequence, answer)
}

pub(crate) unsafe fn llama_kv_self_seq_pos_max(context: Pointer, sequence: i32) -> i32 {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    ahead::about_to_ask(Some(used));
    let answer = original!(llama_kv_self_seq_pos_max(context, sequence));
    last(Some(used), sequence, answer)
}

pub(crate) unsafe fn llama_kv_cache_seq_pos_max(context: Pointer, sequence: i32) -> i32 {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    ahead::about_to_ask(Some(used));
    let answer = original!(llama_kv_cache_seq_pos_max(context, sequence));
    last(Some(used), sequence, answer)
}

pub(crate) unsafe fn llama_state_seq_get_size(context: Pointer, sequence: i32) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    ahead::remove(used, sequence);
    original!(llama_state_seq_get_size(context, sequence))
}

pub(crate) unsafe fn llama_state_seq_get_size_ext(
    context: Pointer,
    sequence: i32,
    flags: u32,
) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    if flags == PARTIAL {
        if let Some(size) = stored::checkpoint_size(used, sequence) {
            return size;
        }
    }
    ahead::remove(used, sequence);
    original!(llama_state_seq_get_size_ext(context, sequence, flags))
}

pub(crate) unsafe fn llama_state_seq_save_file(
    context: Pointer,
    path: *const c_char,
    sequence: i32,
    tokens: *const i32,
    count: usize,
) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    ahead::remove(used, sequence);
    original!(llama_state_seq_save_file(
        context, path, sequence, tokens, count
    ))
}

pub(crate) unsafe fn llama_state_get_size(context: Pointer) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    ahead::remove_all_of(Some(used), -1);
    original!(llama_state_get_size(context))
}

pub(crate) unsafe fn llama_state_get_data(context: Pointer, target: *mut u8, size: usize) -> usize {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    ahead::remove_all_of(Some(used), -1);
    original!(llama_state_get_data(context, target, size))
}

pub(crate) unsafe fn llama_state_save_file(
    context: Pointer,
    path: *const c_char,
    tokens: *const i32,
    count: usize,
) -> bool {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    ahead::remove_all_of(Some(used), -1);
    original!(llama_state_save_file(context, path, tokens, count))
}
