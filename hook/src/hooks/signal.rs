//! What a program that is no llama-server may tell us. It asks the dynamic linker for the function by its name.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use contextpilot_request::MAX_ID_BYTES;

use crate::attach::{OwnFunction, plain};
use crate::base::guard::guarded;
use crate::base::mode;
use crate::capture::{contexts, engine_prompts};

/// What the dynamic linker answers.
pub(crate) static ANSWERS: &[OwnFunction] = &[OwnFunction {
    name: c"contextpilot_request",
    function: contextpilot_request,
}];

/// The next prompt of the sequence has that id.
const TIED: i32 = 0;
/// The id is of no use: there is neither an index nor an observer, the hook is not active, or the context is not
/// the one that is followed.
const NOT_FOLLOWED: i32 = 1;
/// An id has 1 to [`MAX_ID_BYTES`] bytes of UTF-8. The context has no such sequence.
const REFUSED: i32 = 2;

/// `int32_t contextpilot_request(struct llama_context * ctx, int32_t seq, const char * id)`, to be called by the
/// thread that uses the context, before it evaluates the prompt. Without a context the only one of the process is meant: bindings
/// such as those of Rust do not say where it is.
extern "C-unwind" fn contextpilot_request(
    context: *mut c_void,
    sequence: i32,
    id: *const c_char,
) -> i32 {
    if id.is_null() {
        return REFUSED;
    }
    if !mode::is_active() {
        return NOT_FOLLOWED;
    }
    let context = if context.is_null() {
        let Some(only) = contexts::only() else {
            return REFUSED;
        };
        only.cast()
    } else {
        context
    };
    let _engine = contexts::enter_engine_of(context.cast());
    // SAFETY: a living context, by what is asked of callers.
    let sequences = unsafe { plain::sequences(context.cast()) };
    let sequences = sequences.and_then(|count| i32::try_from(count).ok());
    // SAFETY: a C string, by what is asked of callers.
    let id = unsafe { CStr::from_ptr(id) }.to_str();
    let (Ok(id), true) = (id, (0..sequences.unwrap_or(i32::MAX)).contains(&sequence)) else {
        return REFUSED;
    };
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return REFUSED;
    }
    let mut result = NOT_FOLLOWED;
    guarded(|| {
        if engine_prompts::name_next(context.cast(), sequence, Arc::from(id)) {
            result = TIED;
        }
    });
    result
}
