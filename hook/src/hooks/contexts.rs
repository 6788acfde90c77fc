//! Hooks for creating and freeing contexts.

use std::time::Instant;

use crate::attach::claims;
use crate::attach::original::original;
use crate::base::abi::{ContextParams, Pointer};
use crate::base::guard::EngineCall;
use crate::capture::{adapters, contexts, engine_prompts};
use crate::store::{self, Context, params, save};

pub(crate) unsafe fn llama_init_from_model(model: Pointer, params: ContextParams) -> Pointer {
    let call = EngineCall::enter();
    let context = original!(llama_init_from_model(model, params));
    note(&call, context, &params);
    context
}

/// The old name. It may or may not call the new one.
pub(crate) unsafe fn llama_new_context_with_model(
    model: Pointer,
    params: ContextParams,
) -> Pointer {
    let call = EngineCall::enter();
    let context = original!(llama_new_context_with_model(model, params));
    note(&call, context, &params);
    context
}

fn note(call: &EngineCall, context: Pointer, params: &ContextParams) {
    contexts::made(call, context, params);
    if contexts::memory_of(context).is_some() {
        claims::note_context();
    }
    if !context.is_null() {
        // SAFETY: our caller has just created it.
        params::note_context(unsafe { Context::of(call, context) }, params);
    }
}

pub(crate) unsafe fn llama_free(context: Pointer) {
    let call = EngineCall::enter();
    // SAFETY: our caller frees the context.
    unsafe { about_to_free(&call, context) };
    original!(llama_free(context))
}

/// What a copy of `llama_free` calls.
pub(crate) unsafe fn _ZN13llama_contextD1Ev(context: Pointer) {
    let call = EngineCall::enter();
    // SAFETY: our caller frees the context.
    unsafe { about_to_free(&call, context) };
    original!(_ZN13llama_contextD1Ev(context))
}

/// Forgets the context before it is freed: afterwards its address may belong to another one.
///
/// # Safety
/// Our caller frees the context, so no other thread uses it.
unsafe fn about_to_free(call: &EngineCall, context: Pointer) {
    // SAFETY: the caller's promise, here and below.
    let used = unsafe { Context::of(call, context) };
    save::about_to_free(used, Instant::now() + store::FLUSH);
    call.guarded(|| {
        // SAFETY: see above.
        unsafe { adapters::forget(context) };
        engine_prompts::about_to_free(context);
        contexts::forget(context);
    });
}

/// The server calls this for every context, so every context is noticed, however it was created.
pub(crate) unsafe fn llama_get_memory(context: Pointer) -> Pointer {
    let call = EngineCall::enter();
    contexts::know(&call, context);
    call.guarded(|| contexts::note_use(context));
    original!(llama_get_memory(context))
}
