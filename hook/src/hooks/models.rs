//! Hooks for loading models. The parent process in router mode loads none.

use std::ffi::{CStr, c_char};

use crate::attach;
use crate::attach::original::original;
use crate::base::abi::{ContextParams, Pointer};
use crate::base::guard::EngineCall;
use crate::base::mode;
use crate::capture::kept;
use crate::capture::model::Loading;
use crate::store::{params, purpose};

/// Servers of all generations load their model and a draft model with this. Newer servers call it
/// twice: first without the tensors, to see what fits.
pub(crate) unsafe fn llama_model_load_from_file(
    path: *const c_char,
    params: ContextParams,
) -> Pointer {
    let (call, _loading) = begin();
    // SAFETY: the engine is about to read the path.
    let name = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let name = name.filter(|_| params::may_store_model(&call, &params));
    let opening = purpose::open_model(&call, name);
    let model = original!(llama_model_load_from_file(path, params));
    kept::forget_vocabulary();
    purpose::note_loaded(opening, model);
    model
}

/// Loads a projector for images and sounds.
pub(crate) unsafe fn mtmd_init_from_file(
    path: *const c_char,
    model: Pointer,
    params: ContextParams,
) -> Pointer {
    let (call, _loading) = begin();
    // SAFETY: the library is about to read the path.
    let name = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let opening = purpose::open_projector(&call, name);
    let projector = original!(mtmd_init_from_file(path, model, params));
    purpose::note_projector(opening, projector, model);
    projector
}

/// Notes that something is being loaded, until the result is dropped.
fn begin() -> (EngineCall, Option<Loading>) {
    let call = EngineCall::enter();
    if call.counts() {
        // The banner contains the version.
        attach::ask_version();
    }
    call.guarded(mode::ensure_running);
    let loading = call.counts().then(Loading::begin);
    (call, loading)
}
