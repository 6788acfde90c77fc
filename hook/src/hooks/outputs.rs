//! Hooks for reading what an evaluation has put out. The host asks by the entry's index in the batch that it
//! made; the engine evaluated a batch without the entries that came from the prefix store.
//!
//! A function that calls another of these in the engine translates once: the outermost call does.

use crate::attach::original::original;
use crate::base::abi::Pointer;
use crate::base::guard::EngineCall;
use crate::store::Context;
use crate::store::hidden::{self, Source};
use crate::store::outputs::index_in_engine;

macro_rules! by_index {
    ($($name:ident -> $result:ty;)*) => {$(
        pub(crate) unsafe fn $name(context: Pointer, index: i32) -> $result {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the context.
            let used = unsafe { Context::of(&call, context) };
            original!($name(context, index_in_engine(used, index)))
        }
    )*};
}
by_index! {
    llama_get_logits_ith -> Pointer;
    llama_get_embeddings_ith -> Pointer;
    llama_get_sampled_token_ith -> i32;
    llama_get_sampled_probs_ith -> Pointer;
    llama_get_sampled_probs_count_ith -> u32;
    llama_get_sampled_logits_ith -> Pointer;
    llama_get_sampled_logits_count_ith -> u32;
    llama_get_sampled_candidates_ith -> Pointer;
    llama_get_sampled_candidates_count_ith -> u32;
}

/// The hidden states of all entries of the host's batch, also of those that were left out.
pub(crate) unsafe fn _Z26llama_get_embeddings_nextnP13llama_context(context: Pointer) -> Pointer {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    match hidden::rows(used, Source::Last, None) {
        Some(rows) => rows,
        None => original!(_Z26llama_get_embeddings_nextnP13llama_context(context)),
    }
}

/// The hidden state of one entry.
pub(crate) unsafe fn _Z30llama_get_embeddings_nextn_ithP13llama_contexti(
    context: Pointer,
    index: i32,
) -> Pointer {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    match hidden::rows(used, Source::Last, Some(index)) {
        Some(row) => row,
        None => original!(_Z30llama_get_embeddings_nextn_ithP13llama_contexti(
            context,
            index_in_engine(used, index)
        )),
    }
}

/// What went into a layer, of all entries.
pub(crate) unsafe fn _Z30llama_get_embeddings_layer_inpP13llama_contextj(
    context: Pointer,
    layer: u32,
) -> Pointer {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    match hidden::rows(used, Source::Layer(layer), None) {
        Some(rows) => rows,
        None => original!(_Z30llama_get_embeddings_layer_inpP13llama_contextj(
            context, layer
        )),
    }
}

pub(crate) unsafe fn llama_sampler_sample(sampler: Pointer, context: Pointer, index: i32) -> i32 {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    let index = index_in_engine(used, index);
    original!(llama_sampler_sample(sampler, context, index))
}
