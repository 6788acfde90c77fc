//! Extended batches are filled. A handful of nanoseconds each: this happens for every token.

use crate::attach::original::original;
use crate::base::abi::{Embeddings, Pointer};
use crate::base::guard::EngineCall;
use crate::capture::shadow::{self, Shadow};

/// # Safety
/// In a call that uses `batch`, and that the batch's owner made.
#[inline]
unsafe fn note(call: &EngineCall, batch: Pointer, work: impl FnOnce(&mut Shadow)) {
    call.observe(|| {
        // SAFETY: the caller's promise.
        unsafe { shadow::with(batch, work) };
    });
}

/// For what changes an entry and nothing else: no memory is needed and nothing can fail, so nothing
/// has to be guarded against. Says what became of the work; `None` if nothing is to be noted.
///
/// # Safety
/// As for [`note`].
#[inline]
unsafe fn note_in_place<R>(
    call: &EngineCall,
    batch: Pointer,
    work: impl FnOnce(&mut Shadow) -> R,
) -> Option<R> {
    if !call.counts() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { shadow::with(batch, work) }
}

pub(crate) unsafe fn llama_batch_ext_init(context: Pointer) -> Pointer {
    let call = EngineCall::enter();
    let batch = original!(llama_batch_ext_init(context));
    // SAFETY: nobody else has it yet.
    call.observe(|| unsafe { shadow::begin(batch) });
    batch
}

pub(crate) unsafe fn llama_batch_ext_free(batch: Pointer) {
    let call = EngineCall::enter();
    // Before: afterwards the address may be another batch's. The caller owns the batch.
    // SAFETY: its owner gives it up.
    call.observe(|| unsafe { shadow::end(batch) });
    original!(llama_batch_ext_free(batch))
}

pub(crate) unsafe fn llama_batch_ext_clear(batch: Pointer) {
    let call = EngineCall::enter();
    original!(llama_batch_ext_clear(batch));
    // An empty batch is known, whatever was known of it before.
    // SAFETY: the caller uses the batch.
    call.observe(|| unsafe { shadow::begin(batch) });
}

pub(crate) unsafe fn llama_batch_ext_add(batch: Pointer, sequence: i32) -> i32 {
    let call = EngineCall::enter();
    let index = original!(llama_batch_ext_add(batch, sequence));
    // SAFETY: the caller uses the batch.
    unsafe { note(&call, batch, |s| s.add_without_token(index, sequence)) };
    index
}

pub(crate) unsafe fn llama_batch_ext_add_token(batch: Pointer, sequence: i32, token: i32) -> i32 {
    let call = EngineCall::enter();
    let index = original!(llama_batch_ext_add_token(batch, sequence, token));
    let add = |s: &mut Shadow| s.add_if_there_is_room(index, sequence, token);
    // SAFETY: the caller uses the batch.
    if unsafe { note_in_place(&call, batch, add) } == Some(false) {
        // SAFETY: as above.
        unsafe { note(&call, batch, |s| s.add(index, sequence, token)) };
    }
    index
}

pub(crate) unsafe fn llama_batch_ext_add_embd(
    batch: Pointer,
    sequence: i32,
    row: Embeddings,
) -> i32 {
    let call = EngineCall::enter();
    let index = original!(llama_batch_ext_add_embd(batch, sequence, row));
    // SAFETY: the engine has copied the row, if it took it.
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
        // SAFETY: the engine has copied the row.
        let set = |s: &mut Shadow| unsafe { s.set_row(index, row) };
        // SAFETY: the caller uses the batch.
        unsafe { note(&call, batch, set) };
    }
    done
}

pub(crate) unsafe fn llama_batch_ext_set_pos(
    batch: Pointer,
    index: i32,
    position: *const i32,
) -> bool {
    let call = EngineCall::enter();
    let done = original!(llama_batch_ext_set_pos(batch, index, position));
    if done && !position.is_null() {
        // SAFETY: the engine has read it; of several (M-RoPE), the first is the KV cache's.
        let position = unsafe { *position };
        // SAFETY: the caller uses the batch.
        unsafe { note_in_place(&call, batch, |s| s.set_position(index, position)) };
    }
    done
}

pub(crate) unsafe fn llama_batch_ext_set_output_logits(
    batch: Pointer,
    index: i32,
    value: bool,
) -> bool {
    let call = EngineCall::enter();
    let done = original!(llama_batch_ext_set_output_logits(batch, index, value));
    if done {
        // SAFETY: the caller uses the batch.
        unsafe { note_in_place(&call, batch, |s| s.set_output(index, value)) };
    }
    done
}

/// The same thing as the former, says the engine.
pub(crate) unsafe fn llama_batch_ext_set_output_embd(
    batch: Pointer,
    index: i32,
    value: bool,
) -> bool {
    let call = EngineCall::enter();
    let done = original!(llama_batch_ext_set_output_embd(batch, index, value));
    if done {
        // SAFETY: the caller uses the batch.
        unsafe { note_in_place(&call, batch, |s| s.set_output(index, value)) };
    }
    done
}
