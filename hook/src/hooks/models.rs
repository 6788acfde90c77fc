//! Models are loaded, by servers. A router loads none.

use std::ffi::c_char;

use crate::attach;
use crate::attach::original::original;
use crate::base::abi::{ContextParams, Pointer};
use crate::base::guard::EngineCall;
use crate::base::mode;
use crate::capture::model::Loading;

/// What servers of all generations load their model with, and a draft model. Newer ones load it
/// twice: first without its tensors, to see what fits.
pub(crate) unsafe fn llama_model_load_from_file(
    path: *const c_char,
    params: ContextParams,
) -> Pointer {
    let _loading = begin();
    original!(llama_model_load_from_file(path, params))
}

/// A projector for images and sounds.
pub(crate) unsafe fn mtmd_init_from_file(
    path: *const c_char,
    model: Pointer,
    params: ContextParams,
) -> Pointer {
    let _loading = begin();
    original!(mtmd_init_from_file(path, model, params))
}

/// Until it is dropped, something is being loaded.
fn begin() -> (EngineCall, Option<Loading>) {
    let call = EngineCall::enter();
    if call.counts() {
        // For the line that says that we are here.
        attach::ask_version();
    }
    call.observe(mode::ensure_running);
    let loading = call.counts().then(Loading::begin);
    (call, loading)
}
