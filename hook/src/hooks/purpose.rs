//! Hooks for the functions that say what a context is used for. The prefix store leaves tokens out of evaluations, which
//! must not be done if the host needs more of them than their KV.

use std::ffi::{CStr, c_char};

use crate::attach::original::original;
use crate::base::abi::{Embeddings, Pointer};
use crate::base::guard::EngineCall;
use crate::capture::shadow;
use crate::store::hidden::Source;
use crate::store::{Context, purpose};

pub(crate) unsafe fn llama_set_embeddings(context: Pointer, value: bool) {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    original!(llama_set_embeddings(context, value));
    purpose::set_embeddings(used, value);
}

/// For speculation with MTP.
pub(crate) unsafe fn _Z26llama_set_embeddings_nextnP13llama_contextbb(
    context: Pointer,
    value: bool,
    masked: bool,
) {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    original!(_Z26llama_set_embeddings_nextnP13llama_contextbb(
        context, value, masked
    ));
    match (value, masked) {
        (true, false) => purpose::want_hidden(used, Source::Last),
        // Those of outputs alone: a draft's context asks for these.
        (true, true) => purpose::is_for_drafts(used),
        (false, _) => purpose::want_no_hidden(used),
    }
}

/// For speculation with EAGLE-3, DFlash and DSpark: they need what goes into some layers.
pub(crate) unsafe fn _Z30llama_set_embeddings_layer_inpP13llama_contextjb(
    context: Pointer,
    layer: u32,
    value: bool,
) {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    original!(_Z30llama_set_embeddings_layer_inpP13llama_contextjb(
        context, layer, value
    ));
    if value {
        purpose::want_hidden(used, Source::Layer(layer))
    } else {
        purpose::want_no_hidden(used)
    }
}

pub(crate) unsafe fn llama_set_causal_attn(context: Pointer, value: bool) {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    original!(llama_set_causal_attn(context, value));
    purpose::set_causal(used, value);
}

macro_rules! control_vector {
    ($($name:ident -> $result:ty;)*) => {$(
        pub(crate) unsafe fn $name(
            context: Pointer,
            data: *const f32,
            length: usize,
            width: i32,
            first: i32,
            last: i32,
        ) -> $result {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the context.
            let used = unsafe { Context::of(&call, context) };
            let result = original!($name(context, data, length, width, first, last));
            if !data.is_null() {
                purpose::refuse(used, "a control vector");
            }
            result
        }
    )*};
}
control_vector! {
    llama_set_adapter_cvec -> i32;
    llama_apply_adapter_cvec -> i32;
    _ZN13llama_context16set_adapter_cvecEPKfmiii -> bool;
    _ZN13llama_context18apply_adapter_cvecEPKfmiii -> bool;
}

/// Changes the weights of the context's model.
pub(crate) unsafe fn llama_opt_epoch(
    context: Pointer,
    data: Pointer,
    trained: Pointer,
    evaluated: Pointer,
    split: i64,
    on_train: Pointer,
    on_evaluation: Pointer,
) {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    purpose::train(used);
    original!(llama_opt_epoch(
        context,
        data,
        trained,
        evaluated,
        split,
        on_train,
        on_evaluation
    ))
}

pub(crate) unsafe fn llama_model_free(model: Pointer) {
    let call = EngineCall::enter();
    purpose::forget(&call, model);
    original!(llama_model_free(model))
}

pub(crate) unsafe fn llama_adapter_lora_init(model: Pointer, path: *const c_char) -> Pointer {
    let call = EngineCall::enter();
    // SAFETY: the engine is about to read the path.
    let name = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let opening = purpose::open_adapter(&call, name);
    let adapter = original!(llama_adapter_lora_init(model, path));
    purpose::note_loaded(opening, adapter);
    adapter
}

/// The adapter's file is not known.
pub(crate) unsafe fn llama_adapter_lora_init_from_file_ptr(
    model: Pointer,
    file: Pointer,
) -> Pointer {
    let call = EngineCall::enter();
    let adapter = original!(llama_adapter_lora_init_from_file_ptr(model, file));
    purpose::forget(&call, adapter);
    adapter
}

pub(crate) unsafe fn llama_adapter_lora_free(adapter: Pointer) {
    let call = EngineCall::enter();
    purpose::forget(&call, adapter);
    original!(llama_adapter_lora_free(adapter));
}

pub(crate) unsafe fn llama_batch_ext_set_embd_state(
    batch: Pointer,
    index: i32,
    row: Embeddings,
) -> bool {
    let call = EngineCall::enter();
    let done = original!(llama_batch_ext_set_embd_state(batch, index, row));
    // SAFETY: the caller uses the batch.
    call.guarded(|| unsafe {
        shadow::with(batch, |s| s.set_special());
    });
    done
}

pub(crate) unsafe fn _Z34llama_batch_ext_set_decision_orderP15llama_batch_exti20llama_decision_order(
    batch: Pointer,
    index: i32,
    order: i32,
) -> bool {
    let call = EngineCall::enter();
    let done = original!(
        _Z34llama_batch_ext_set_decision_orderP15llama_batch_exti20llama_decision_order(
            batch, index, order
        )
    );
    // SAFETY: the caller uses the batch.
    call.guarded(|| unsafe {
        shadow::with(batch, |s| s.set_special());
    });
    done
}
