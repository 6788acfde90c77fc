//! For what contexts are used: from some, nothing may be left out.

use std::ffi::CStr;
use std::sync::Arc;

use contextpilot_kv_engine::synchronise;

use super::calls::before;
use super::content::{self, Content};
use super::engine::Context;
use super::hidden::{self, Source};
use super::records::with_record;
use super::working::works;
use super::{ahead, encodings, metadata};
use crate::attach::original;
use crate::attach::{is_embedded, plain};
use crate::base::abi::Pointer;
use crate::base::guard::{self, EngineCall};
use crate::capture::contexts::{self, Windows};

/// The context has no store from now on.
pub(crate) fn refuse(context: Context<'_>, why: &str) {
    before(context, || {
        synchronise(&context, -1);
        with_record(context, |record| record.refuse(why));
    });
}

/// The host asks for the hidden state of every entry from now on: it drafts with them.
pub(crate) fn want_hidden(context: Context<'_>, source: Source) {
    const NAMELESS: &str =
        "speculation that needs hidden states, in an engine that does not say how large they are";
    const WINDOWS: &str =
        "speculation that needs hidden states (MTP, EAGLE-3, DFlash), with sliding windows";
    // llama-server 0.7.0 goes back behind wrong guesses by a copy of the recurrent state of each of the last tokens. With
    // several slots its answers are wrong now and then, with or without a store: a wrong state must not be stored.
    const SLOTS: &str = "speculation that needs hidden states (MTP, EAGLE-3, DFlash), with a recurrent state and \
                         several slots: the server itself goes back to wrong states there now and then";
    if contexts::windows_of(context.pointer()) != Windows::None {
        return refuse(context, WINDOWS);
    }
    // SAFETY: the context is in use by this thread, here and below.
    let sequences = unsafe { plain::sequences(context.pointer()) };
    if contexts::is_bounded(context.pointer()) && sequences != Some(1) {
        return refuse(context, SLOTS);
    }
    // SAFETY: see above.
    let model = unsafe { plain::get_model(context.pointer()) };
    let width = model.and_then(|model| match source {
        // SAFETY: the model of a living context.
        Source::Last => unsafe { plain::embedding_size_out(model) },
        // SAFETY: see above.
        Source::Layer(_) => unsafe { plain::embedding_size(model) },
    });
    let width = width.and_then(|width| usize::try_from(width).ok());
    let has_rows = match source {
        Source::Last => {
            original::_Z26llama_get_embeddings_nextnP13llama_context().is_some()
                && original::_Z30llama_get_embeddings_nextn_ithP13llama_contexti().is_some()
        }
        Source::Layer(_) => {
            original::_Z30llama_get_embeddings_layer_inpP13llama_contextj().is_some()
        }
    };
    match width.filter(|width| has_rows && *width > 0) {
        Some(width) => before(context, || {
            synchronise(&context, -1);
            hidden::want(context, source, width);
        }),
        None => refuse(context, NAMELESS),
    }
}

/// The host asks for none of these any more.
pub(crate) fn want_no_hidden(context: Context<'_>) {
    before(context, || {
        synchronise(&context, -1);
        hidden::forget(context);
    });
}

/// The context is a draft's own, whose batches have hidden states beside tokens.
pub(crate) fn is_for_drafts(context: Context<'_>) {
    // SAFETY: the context is in use by this thread, here and below.
    let other = unsafe { plain::other_context(context.pointer()) };
    // SAFETY: see above.
    let model = unsafe { plain::get_model(context.pointer()) };
    // SAFETY: the model of a living context.
    let architecture = model.and_then(|model| unsafe { metadata::architecture(model) });
    before(context, || {
        hidden::note_draft(
            architecture.as_deref(),
            other.is_some_and(|other| !other.is_null()),
        );
        with_record(context, |record| record.exclude("a draft's own context"));
    });
}

/// Whether the following batches are evaluated for their embeddings. The server says so before each batch.
pub(crate) fn set_embeddings(context: Context<'_>, value: bool) {
    before(context, || {
        let before = with_record(context, |record| record.set_embeddings(value));
        if value && before == Some(false) {
            synchronise(&context, -1);
        }
    });
}

/// Whether the tokens of the following batches see only what is before them. libmtmd says no for the images of some models, and
/// yes behind them.
pub(crate) fn set_causal(context: Context<'_>, value: bool) {
    before(context, || {
        with_record(context, |record| record.is_causal = value);
    });
}

/// Whether the store takes note of files.
fn notes(call: &EngineCall) -> bool {
    works() && call.is_hosts()
}

/// A file that is about to be loaded.
pub(crate) struct Opening(Option<Arc<Content>>);

/// The engine is about to load a model from this file.
pub(crate) fn open_model(call: &EngineCall, path: Option<&CStr>) -> Opening {
    let wanted = path.filter(|_| notes(call));
    let begin = |path| {
        content::begin_engine();
        content::begin(path)
    };
    Opening(wanted.and_then(|path| guard::compute(|| begin(path))))
}

/// The engine is about to load an adapter from this file.
pub(crate) fn open_adapter(call: &EngineCall, path: Option<&CStr>) -> Opening {
    let wanted = path.filter(|_| notes(call));
    Opening(wanted.and_then(|path| guard::compute(|| content::begin(path))))
}

/// libmtmd is about to load a projector from this file.
pub(crate) fn open_projector(call: &EngineCall, path: Option<&CStr>) -> Opening {
    let wanted = path.filter(|_| notes(call) && encodings::can_be_seen());
    Opening(wanted.and_then(|path| guard::compute(|| content::begin(path))))
}

/// The projector has been loaded, for this model.
pub(crate) fn note_projector(opening: Opening, projector: Pointer, model: Pointer) {
    if let Some(content) = opening.0 {
        encodings::note_projector(projector, model, content);
    }
}

/// The model or the adapter has been loaded.
pub(crate) fn note_loaded(opening: Opening, address: Pointer) {
    let note = |content: Arc<Content>| {
        if content.is_still_there() {
            content::own(address.addr(), content)
        } else {
            // It may have been loaded from either file.
            content::disown(address.addr())
        }
    };
    if let Some(content) = opening.0 {
        guard::compute(|| note(content));
    }
}

/// What is at this address is about to be freed, or was loaded from a file that is not known.
pub(crate) fn forget(call: &EngineCall, address: Pointer) {
    if notes(call) {
        guard::compute(|| content::disown(address.addr()));
    }
}

/// A program is about to apply adapters to a context, or to remove some: what is left of a sequence under those that are
/// applied now cannot be evaluated afterwards. (A server goes back to them before it goes on with a sequence.)
pub(crate) fn about_to_set_adapters(context: Context<'_>) {
    if is_embedded() {
        ahead::remove_all_of(Some(context), -1);
    }
}

/// The weights of the context's model are about to be changed: neither it nor any other context of that model has a store
/// from now on.
///
pub(crate) fn train(context: Context<'_>) {
    const TRAINED: &str = "the model was trained in the process";
    // SAFETY: the context is in use by this thread.
    let model = unsafe { plain::get_model(context.pointer()) };
    if let Some(model) = model.filter(|_| notes(context.call())) {
        guard::compute(|| {
            content::spoil_model(model.addr(), TRAINED);
            content::disown(model.addr());
        });
    }
    refuse(context, TRAINED);
}

/// These adapters are applied to a context from now on.
pub(crate) fn set_adapters(context: Context<'_>, applied: &[(usize, f32)]) {
    with_record(context, |record| {
        let applied = applied
            .iter()
            .map(|(address, scale)| (content::adapter_at(*address), scale.to_bits()));
        record.set_adapters(applied.collect());
    });
}
