//! Contexts come and go.

use crate::attach::original::original;
use crate::base::abi::{ContextParams, Pointer};
use crate::base::guard::EngineCall;
use crate::capture::contexts;

pub(crate) unsafe fn llama_init_from_model(model: Pointer, params: ContextParams) -> Pointer {
    let call = EngineCall::enter();
    let context = original!(llama_init_from_model(model, params));
    contexts::made(&call, context, &params);
    context
}

/// The old name, which may or may not come back through the new one.
pub(crate) unsafe fn llama_new_context_with_model(
    model: Pointer,
    params: ContextParams,
) -> Pointer {
    let call = EngineCall::enter();
    let context = original!(llama_new_context_with_model(model, params));
    contexts::made(&call, context, &params);
    context
}

pub(crate) unsafe fn llama_free(context: Pointer) {
    let call = EngineCall::enter();
    // Before: afterwards the address may be somebody else's.
    // SAFETY: our caller uses it, for the last time.
    call.observe(|| unsafe { contexts::forget(context) });
    original!(llama_free(context))
}

/// Leads to every memory, so no context goes unnoticed, however it was made.
pub(crate) unsafe fn llama_get_memory(context: Pointer) -> Pointer {
    let call = EngineCall::enter();
    contexts::know(&call, context);
    call.observe(|| contexts::note_use(context));
    original!(llama_get_memory(context))
}
