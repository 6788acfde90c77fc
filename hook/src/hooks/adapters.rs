//! Hooks for applying LoRA adapters to a context. They note the change after the call, because nothing is
//! evaluated meanwhile.
//!
//! The engine accepts every call, except to remove an adapter that is not applied, which changes nothing.

use crate::attach::original::original;
use crate::base::abi::Pointer;
use crate::base::guard::EngineCall;
use crate::capture::adapters;
use crate::store::{self, Context, purpose};

macro_rules! all_at_once {
    ($($set:ident $(-> $set_result:ty)?;)*) => {$(
        pub(crate) unsafe fn $set(
            context: Pointer,
            adapters: *const Pointer,
            count: usize,
            scales: *const f32,
        ) $(-> $set_result)? {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the context.
            let used = unsafe { Context::of(&call, context) };
            purpose::about_to_set_adapters(used);
            let result = original!($set(context, adapters, count, scales));
            if call.counts() {
                // SAFETY: our caller passed `count` elements of both, and uses the context.
                unsafe { adapters::set_all(&call, context, adapters, count, scales) };
                tell_store(used);
            }
            result
        }
    )*};
}
// The second is what a copy of the first calls.
all_at_once! {
    llama_set_adapters_lora -> i32;
    _ZN13llama_context17set_adapters_loraEPP18llama_adapter_loramPf;
}

/// The KV of what is evaluated from now on depends on other adapters.
fn tell_store(used: Context<'_>) {
    if !store::is_on() {
        return;
    }
    // SAFETY: the context is in use by this thread.
    match unsafe { adapters::applied(used.pointer()) } {
        Some(applied) => purpose::set_adapters(used, &applied),
        None => purpose::refuse(used, "too many contexts have LoRA adapters"),
    }
}

macro_rules! one_by_one {
    ($($set:ident $(-> $set_result:ty)?, $remove:ident -> $remove_result:ty $(, $clear:ident)?;)*) => {$(
        pub(crate) unsafe fn $set(context: Pointer, adapter: Pointer, scale: f32) $(-> $set_result)? {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the context.
            let used = unsafe { Context::of(&call, context) };
            purpose::about_to_set_adapters(used);
            let result = original!($set(context, adapter, scale));
            if call.counts() {
                // SAFETY: our caller uses the context, and the adapter that it applied.
                unsafe { adapters::set(&call, context, adapter, scale) };
                tell_store(used);
            }
            result
        }

        pub(crate) unsafe fn $remove(context: Pointer, adapter: Pointer) -> $remove_result {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the context.
            let used = unsafe { Context::of(&call, context) };
            purpose::about_to_set_adapters(used);
            let result = original!($remove(context, adapter));
            if call.counts() {
                // SAFETY: our caller uses the context.
                unsafe { adapters::remove(&call, context, adapter) };
                tell_store(used);
            }
            result
        }

        $(pub(crate) unsafe fn $clear(context: Pointer) {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the context.
            let used = unsafe { Context::of(&call, context) };
            purpose::about_to_set_adapters(used);
            original!($clear(context));
            if call.counts() {
                // SAFETY: our caller uses the context.
                unsafe { adapters::clear(&call, context) };
                tell_store(used);
            }
        })?
    )*};
}
one_by_one! {
    llama_set_adapter_lora -> i32, llama_rm_adapter_lora -> i32, llama_clear_adapter_lora;
    llama_lora_adapter_set -> i32, llama_lora_adapter_remove -> i32, llama_lora_adapter_clear;
    _ZN13llama_context16set_adapter_loraEP18llama_adapter_loraf,
        _ZN13llama_context15rm_adapter_loraEP18llama_adapter_lora -> bool;
}
