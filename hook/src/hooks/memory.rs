//! Hooks for changes of the KV cache other than evaluation. They note a change after the call.
//!
//! Each function has three names, one for each generation of the API. Two of them take the context.

use contextpilot_residency::{ContextId, Event};

use crate::attach::original::original;
use crate::base::abi::Pointer;
use crate::base::guard::EngineCall;
use crate::capture::{contexts, engine_prompts};
use crate::channel::push;
use crate::store::{Context, ahead, bounded, change, save};

/// The first argument of a generation's functions.
#[derive(Clone, Copy)]
enum Target {
    Memory,
    Context,
}

fn note(call: &EngineCall, target: Pointer, kind: Target, event: impl FnOnce(ContextId) -> Event) {
    if let Target::Context = kind {
        contexts::know(call, target);
    }
    call.guarded(|| {
        let context = match kind {
            Target::Memory => contexts::of_memory(target),
            Target::Context => contexts::with_memory(target),
        };
        if let Some(context) = context {
            push(event(context));
        }
    });
}

fn note_removal(
    call: &EngineCall,
    target: Pointer,
    kind: Target,
    (sequence, from, to): (i32, i32, i32),
) {
    note(call, target, kind, |context| {
        engine_prompts::removed(context, sequence, from, to);
        Event::Removed {
            context,
            sequence,
            from,
            to,
        }
    });
}

macro_rules! generation {
    ($kind:path: $clear:ident($($data:ident)?), $remove:ident, $copy:ident, $keep:ident, $add:ident, $divide:ident) => {
        pub(crate) unsafe fn $clear(target: Pointer $(, $data: bool)?) {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the memory.
            let owner = unsafe { Context::of_memory(&call, target) };
            save::about_to_lose(owner, -1, 0);
            original!($clear(target $(, $data)?));
            change::cleared(owner);
            note(&call, target, $kind, |context| {
                engine_prompts::removed(context, -1, -1, -1);
                Event::Cleared { context }
            });
        }

        pub(crate) unsafe fn $remove(target: Pointer, sequence: i32, from: i32, to: i32) -> bool {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the memory.
            let owner = unsafe { Context::of_memory(&call, target) };
            if ahead::holds_nothing_else(owner, sequence, from, to) {
                // Newer servers call this before every batch of a prompt, for what they believe to be empty.
                return true;
            }
            if bounded::removes_only_pending(owner, sequence, from, to) {
                note_removal(&call, target, $kind, (sequence, from, to));
                return true;
            }
            save::about_to_lose(owner, sequence, from);
            ahead::remove_from(owner, sequence);
            let lacking = bounded::about_to_go_back(owner, sequence, from, to);
            let removed = original!($remove(target, sequence, from, to));
            if removed {
                change::removed(owner, sequence, from, to);
                bounded::went_back(owner, &lacking);
                note_removal(&call, target, $kind, (sequence, from, to));
            }
            removed
        }

        pub(crate) unsafe fn $copy(target: Pointer, source: i32, copy: i32, from: i32, to: i32) {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the memory.
            let owner = unsafe { Context::of_memory(&call, target) };
            save::about_to_lose(owner, copy, 0);
            ahead::remove_from(owner, source);
            ahead::remove_from(owner, copy);
            if let Some(owner) = owner.filter(|_| from > 0 || to >= 0) {
                bounded::make_whole(owner, source);
            }
            original!($copy(target, source, copy, from, to));
            change::copied(owner, source, copy, from, to);
            note(&call, target, $kind, |context| Event::Copied {
                context,
                source,
                target: copy,
                from,
                to,
            });
        }

        pub(crate) unsafe fn $keep(target: Pointer, sequence: i32) {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the memory.
            let owner = unsafe { Context::of_memory(&call, target) };
            save::about_to_keep(owner, sequence);
            original!($keep(target, sequence));
            change::kept(owner, sequence);
            note(&call, target, $kind, |context| {
                engine_prompts::kept(context, sequence);
                Event::Kept { context, sequence }
            });
        }

        pub(crate) unsafe fn $add(target: Pointer, sequence: i32, from: i32, to: i32, delta: i32) {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the memory.
            let owner = unsafe { Context::of_memory(&call, target) };
            save::about_to_lose(owner, sequence, from);
            ahead::remove_all_of(owner, sequence);
            original!($add(target, sequence, from, to, delta));
            change::moved(owner, sequence, (from, to), delta);
            note(&call, target, $kind, |context| Event::Shifted {
                context,
                sequence,
                from,
                to,
                delta,
            });
        }

        pub(crate) unsafe fn $divide(
            target: Pointer,
            sequence: i32,
            from: i32,
            to: i32,
            divisor: i32,
        ) {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the memory.
            let owner = unsafe { Context::of_memory(&call, target) };
            save::about_to_lose(owner, sequence, from);
            ahead::remove_all_of(owner, sequence);
            original!($divide(target, sequence, from, to, divisor));
            change::obscured(owner, sequence);
            note(&call, target, $kind, |context| Event::Obscured {
                context,
                sequence,
            });
        }
    };
}

generation!(Target::Memory: llama_memory_clear(data), llama_memory_seq_rm,
    llama_memory_seq_cp, llama_memory_seq_keep, llama_memory_seq_add, llama_memory_seq_div);
generation!(Target::Context: llama_kv_self_clear(), llama_kv_self_seq_rm,
    llama_kv_self_seq_cp, llama_kv_self_seq_keep, llama_kv_self_seq_add, llama_kv_self_seq_div);
generation!(Target::Context: llama_kv_cache_clear(), llama_kv_cache_seq_rm,
    llama_kv_cache_seq_cp, llama_kv_cache_seq_keep, llama_kv_cache_seq_add, llama_kv_cache_seq_div);
// What copies of llama_memory_* call, in each kind of memory. One may call those of its parts.
generation!(Target::Memory: _ZN14llama_kv_cache5clearEb(data), _ZN14llama_kv_cache6seq_rmEiii, _ZN14llama_kv_cache6seq_cpEiiii,
    _ZN14llama_kv_cache8seq_keepEi, _ZN14llama_kv_cache7seq_addEiiii, _ZN14llama_kv_cache7seq_divEiiii);
generation!(Target::Memory: _ZN19llama_kv_cache_iswa5clearEb(data), _ZN19llama_kv_cache_iswa6seq_rmEiii, _ZN19llama_kv_cache_iswa6seq_cpEiiii,
    _ZN19llama_kv_cache_iswa8seq_keepEi, _ZN19llama_kv_cache_iswa7seq_addEiiii, _ZN19llama_kv_cache_iswa7seq_divEiiii);
generation!(Target::Memory: _ZN22llama_memory_recurrent5clearEb(data), _ZN22llama_memory_recurrent6seq_rmEiii, _ZN22llama_memory_recurrent6seq_cpEiiii,
    _ZN22llama_memory_recurrent8seq_keepEi, _ZN22llama_memory_recurrent7seq_addEiiii, _ZN22llama_memory_recurrent7seq_divEiiii);
generation!(Target::Memory: _ZN19llama_memory_hybrid5clearEb(data), _ZN19llama_memory_hybrid6seq_rmEiii, _ZN19llama_memory_hybrid6seq_cpEiiii,
    _ZN19llama_memory_hybrid8seq_keepEi, _ZN19llama_memory_hybrid7seq_addEiiii, _ZN19llama_memory_hybrid7seq_divEiiii);
generation!(Target::Memory: _ZN24llama_memory_hybrid_iswa5clearEb(data), _ZN24llama_memory_hybrid_iswa6seq_rmEiii, _ZN24llama_memory_hybrid_iswa6seq_cpEiiii,
    _ZN24llama_memory_hybrid_iswa8seq_keepEi, _ZN24llama_memory_hybrid_iswa7seq_addEiiii, _ZN24llama_memory_hybrid_iswa7seq_divEiiii);
