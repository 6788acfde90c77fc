//! Changes to the KV cache other than evaluation. Noted when they have happened.

use contextpilot_residency::{ContextId, Event};

use crate::abi::Pointer;
use crate::channel::push;
use crate::contexts;
use crate::guard::EngineCall;
use crate::original::original;

fn note(call: &EngineCall, memory: Pointer, event: impl FnOnce(ContextId) -> Event) {
    call.observe(|| {
        if let Some(context) = contexts::of_memory(memory) {
            push(event(context));
        }
    });
}

pub(super) unsafe fn llama_memory_clear(memory: Pointer, data: bool) {
    let call = EngineCall::enter();
    original!(llama_memory_clear(memory, data));
    note(&call, memory, |context| Event::Cleared { context });
}

pub(super) unsafe fn llama_memory_seq_rm(
    memory: Pointer,
    sequence: i32,
    from: i32,
    to: i32,
) -> bool {
    let call = EngineCall::enter();
    let removed = original!(llama_memory_seq_rm(memory, sequence, from, to));
    if removed {
        note(&call, memory, |context| Event::Removed {
            context,
            sequence,
            from,
            to,
        });
    }
    removed
}

pub(super) unsafe fn llama_memory_seq_cp(
    memory: Pointer,
    source: i32,
    target: i32,
    from: i32,
    to: i32,
) {
    let call = EngineCall::enter();
    original!(llama_memory_seq_cp(memory, source, target, from, to));
    note(&call, memory, |context| Event::Copied {
        context,
        source,
        target,
        from,
        to,
    });
}

pub(super) unsafe fn llama_memory_seq_keep(memory: Pointer, sequence: i32) {
    let call = EngineCall::enter();
    original!(llama_memory_seq_keep(memory, sequence));
    note(&call, memory, |context| Event::Kept { context, sequence });
}

pub(super) unsafe fn llama_memory_seq_add(
    memory: Pointer,
    sequence: i32,
    from: i32,
    to: i32,
    delta: i32,
) {
    let call = EngineCall::enter();
    original!(llama_memory_seq_add(memory, sequence, from, to, delta));
    note(&call, memory, |context| Event::Shifted {
        context,
        sequence,
        from,
        to,
        delta,
    });
}

pub(super) unsafe fn llama_memory_seq_div(
    memory: Pointer,
    sequence: i32,
    from: i32,
    to: i32,
    divisor: i32,
) {
    let call = EngineCall::enter();
    original!(llama_memory_seq_div(memory, sequence, from, to, divisor));
    note(&call, memory, |context| Event::Obscured {
        context,
        sequence,
    });
}
