//! Hooks for filling a `llama_batch_ext`. They take a few nanoseconds each, because they run for every
//! token. They are called only while hooks observe.
//!
//! What only adds or changes an entry, where there is room for it, allocates nothing and cannot fail: so it needs no guard.

use std::hint::black_box;

use crate::attach::original::original;
use crate::base::abi::{Embeddings, Pointer};
use crate::base::guard::{EngineCall, HostCall, guarded, is_in_engine};
use crate::capture::shadow::{self, Shadow};

/// # Safety
/// The calling thread is in a call that the batch's owner made with `batch`.
#[inline]
unsafe fn note(call: &EngineCall, batch: Pointer, work: impl FnOnce(&mut Shadow)) {
    call.guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { shadow::with(batch, work) };
    });
}

pub(crate) unsafe fn llama_batch_ext_init(context: Pointer) -> Pointer {
    let call = EngineCall::enter();
    let batch = original!(llama_batch_ext_init(context));
    // SAFETY: no other thread has the batch yet.
    call.guarded(|| unsafe { shadow::begin(batch) });
    batch
}

pub(crate) unsafe fn llama_batch_ext_free(batch: Pointer) {
    let call = EngineCall::enter();
    // Note this before the call: afterwards the address may belong to another batch.
    // SAFETY: the owner frees the batch, so no other thread uses it.
    call.guarded(|| unsafe { shadow::end(batch) });
    original!(llama_batch_ext_free(batch))
}

pub(crate) unsafe fn llama_batch_ext_clear(batch: Pointer) {
    let call = EngineCall::enter();
    original!(llama_batch_ext_clear(batch));
    // After this the batch is empty, so its content is known even if it was not before.
    // SAFETY: the caller uses the batch.
    call.guarded(|| unsafe { shadow::begin(batch) });
}

pub(crate) unsafe fn llama_batch_ext_add(batch: Pointer, sequence: i32) -> i32 {
    let call = EngineCall::enter();
    let index = original!(llama_batch_ext_add(batch, sequence));
    // SAFETY: the caller uses the batch.
    unsafe { note(&call, batch, |s| s.add_without_token(index, sequence)) };
    index
}

#[inline(always)]
pub(crate) unsafe fn llama_batch_ext_add_token(batch: Pointer, sequence: i32, token: i32) -> i32 {
    let Some(call) = HostCall::enter() else {
        return original!(llama_batch_ext_add_token(batch, sequence, token));
    };
    let index = original!(llama_batch_ext_add_token(batch, sequence, token));
    drop(call);
    let add = |s: &mut Shadow| s.add_if_it_fits(index, sequence, token);
    // SAFETY: the caller uses the batch.
    if unsafe { shadow::with_last(batch, add) } {
        index
    } else {
        // SAFETY: as above.
        unsafe { add_slowly(batch, index, sequence, token) }
    }
}

/// Returns the index, so that its caller has nothing to do behind it, and keeps nothing for that. If the compiler saw what is
/// returned, it would keep it nevertheless, for every token.
///
/// # Safety
/// As for [`note`].
#[cold]
#[inline(never)]
unsafe fn add_slowly(batch: Pointer, index: i32, sequence: i32, token: i32) -> i32 {
    // SAFETY: the caller's promise.
    guarded(|| unsafe {
        shadow::with(batch, |s| s.add(index, sequence, token));
    });
    black_box(index)
}

pub(crate) unsafe fn llama_batch_ext_add_embd(
    batch: Pointer,
    sequence: i32,
    row: Embeddings,
) -> i32 {
    let call = EngineCall::enter();
    let index = original!(llama_batch_ext_add_embd(batch, sequence, row));
    // SAFETY: if the engine accepted the row, it has just read it.
    let add = |s: &mut Shadow| unsafe { s.add_row(index, sequence, row) };
    // SAFETY: the caller uses the batch.
    unsafe { note(&call, batch, add) };
    index
}

pub(crate) unsafe fn llama_batch_ext_add_seq(batch: Pointer, index: i32, sequence: i32) -> bool {
    let call = EngineCall::enter();
    let done = original!(llama_batch_ext_add_seq(batch, index, sequence));
    if done {
        // SAFETY: the caller uses the batch.
        unsafe { note(&call, batch, |s| s.add_sequence(index, sequence)) };
    }
    done
}

pub(crate) unsafe fn llama_batch_ext_set_embd_token(
    batch: Pointer,
    index: i32,
    row: Embeddings,
) -> bool {
    let call = EngineCall::enter();
    let done = original!(llama_batch_ext_set_embd_token(batch, index, row));
    if done {
        // SAFETY: the engine has just read the row.
        let set = |s: &mut Shadow| unsafe { s.set_row(index, row) };
        // SAFETY: the caller uses the batch.
        unsafe { note(&call, batch, set) };
    }
    done
}

/// The engine calls no function here that is hooked, so it is not noted that it runs.
#[inline(always)]
pub(crate) unsafe fn llama_batch_ext_set_pos(
    batch: Pointer,
    index: i32,
    position: *const i32,
) -> bool {
    if is_in_engine() {
        return original!(llama_batch_ext_set_pos(batch, index, position));
    }
    let done = original!(llama_batch_ext_set_pos(batch, index, position));
    if !done || position.is_null() {
        return done;
    }
    // SAFETY: the engine has just read it. With M-RoPE there are several; the first is that of the KV cache.
    let position = unsafe { *position };
    let set = |s: &mut Shadow| s.set_position_if_there(index, position);
    // SAFETY: the caller uses the batch.
    if unsafe { shadow::with_last(batch, set) } {
        done
    } else {
        // SAFETY: as above.
        unsafe { set_pos_slowly(batch, index, position) }
    }
}

/// Returns that it is done, as [`add_slowly`] does the index.
///
/// # Safety
/// As for [`note`].
#[cold]
#[inline(never)]
unsafe fn set_pos_slowly(batch: Pointer, index: i32, position: i32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { shadow::with(batch, |s| s.set_position(index, position)) };
    black_box(true)
}

pub(crate) unsafe fn llama_batch_ext_set_output_logits(
    batch: Pointer,
    index: i32,
    value: bool,
) -> bool {
    let Some(call) = HostCall::enter() else {
        return original!(llama_batch_ext_set_output_logits(batch, index, value));
    };
    let done = original!(llama_batch_ext_set_output_logits(batch, index, value));
    drop(call);
    if done {
        // SAFETY: the caller uses the batch.
        unsafe { shadow::with(batch, |s| s.set_output(index, value)) };
    }
    done
}

/// Does the same as `llama_batch_ext_set_output`, by the engine's header.
pub(crate) unsafe fn llama_batch_ext_set_output_embd(
    batch: Pointer,
    index: i32,
    value: bool,
) -> bool {
    let Some(call) = HostCall::enter() else {
        return original!(llama_batch_ext_set_output_embd(batch, index, value));
    };
    let done = original!(llama_batch_ext_set_output_embd(batch, index, value));
    drop(call);
    if done {
        let set = |s: &mut Shadow| {
            s.set_special();
            s.set_output(index, value);
        };
        // SAFETY: the caller uses the batch.
        unsafe { shadow::with(batch, set) };
    }
    done
}
