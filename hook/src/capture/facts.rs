//! What the engine says of a context, for the control endpoint and the log file. Without these, it is
//! not asked.

use std::ffi::c_char;
use std::sync::Arc;

use contextpilot_observer::Note;
use contextpilot_residency::ContextId;

use crate::attach::{self, original, plain};
use crate::base::abi::Pointer;
use crate::base::clock::is_engaged;
use crate::channel::note;

/// Facts about a context, as the engine states them.
pub(crate) struct ContextFacts {
    capacity: Option<u32>,
    slots: Option<u32>,
    can_shift: Option<bool>,
    /// The special tokens of prompts for `/infill`, if these begin with the prefix.
    infill: Option<[i32; 3]>,
    /// The engine's description of the model, ended by a zero byte.
    model: [u8; 128],
}

/// Asks the engine, if there is an observer. Do not call this within the guard.
pub(crate) fn ask_context(
    context: Pointer,
    memory: Pointer,
    model: Option<Pointer>,
) -> Option<ContextFacts> {
    if !is_engaged() {
        return None;
    }
    // SAFETY: a living context, here and below.
    let of_one = unsafe { plain::context_size_of_one(context) };
    // SAFETY: see above.
    let capacity = of_one.or_else(|| unsafe { plain::context_size(context) });
    // SAFETY: see above.
    let slots = unsafe { plain::sequences(context) };
    let is_memory = !memory.is_null() && original::llama_get_memory().is_some();
    // SAFETY: `llama_get_memory` returned it for a living context.
    let can_shift = is_memory.then(|| unsafe { plain::can_shift(memory) });
    let mut text = [0_u8; 128];
    if let Some(model) = model {
        // SAFETY: the model of a living context, and a buffer of that size, which the engine ends with a zero byte.
        unsafe { plain::model_desc(model, text.as_mut_ptr().cast::<c_char>(), text.len()) };
    }
    Some(ContextFacts {
        capacity,
        slots,
        can_shift: can_shift.flatten(),
        // SAFETY: see above.
        infill: model.and_then(|model| unsafe { infill(model) }),
        model: text,
    })
}

/// A context was created. `window`: it is bounded, and looks back so many tokens.
pub(crate) fn note_context(context: ContextId, window: Option<u32>, facts: Option<&ContextFacts>) {
    if let Some(facts) = facts {
        note(|| Note::Context {
            context,
            window,
            capacity: facts.capacity,
            limit: attach::flags().kv_unified_per_slot(),
            slots: facts.slots,
            can_shift: facts.can_shift,
            model: model_of(facts),
        });
        if let Some(markers) = facts.infill {
            note(|| Note::Infill { markers });
        }
    }
}

/// See [`ContextFacts::infill`].
///
/// # Safety
/// The model is alive.
unsafe fn infill(model: Pointer) -> Option<[i32; 3]> {
    if attach::is_embedded() || attach::flags().spm_infill() {
        return None;
    }
    // SAFETY: the caller's promise.
    let vocabulary = unsafe { plain::vocabulary(model) }?;
    // SAFETY: the vocabulary of a living model, here and below.
    let prefix = unsafe { plain::infill_prefix(vocabulary) }?;
    // SAFETY: see above.
    let suffix = unsafe { plain::infill_suffix(vocabulary) }?;
    // SAFETY: see above.
    let middle = unsafe { plain::infill_middle(vocabulary) }?;
    let markers = [prefix, suffix, middle];
    // A vocabulary without them has negative ones.
    markers.iter().all(|&marker| marker >= 0).then_some(markers)
}

/// A context of a program is about to be freed. (A server's is known by its address, and by the ledger's event.)
pub(crate) fn note_freed(context: ContextId) {
    if attach::is_program() {
        note(|| Note::ContextFreed { context });
    }
}

/// The engine's description of the context's model.
fn model_of(facts: &ContextFacts) -> Option<Arc<str>> {
    let text = facts.model.split(|&byte| byte == 0).next()?;
    let text = String::from_utf8_lossy(text);
    (!text.is_empty()).then(|| Arc::from(&*text))
}
