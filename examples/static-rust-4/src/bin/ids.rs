//! Gives prompts ids, by which an index is told when they are lost. Waits for a line after each step, and prints what the
//! engine has evaluated.
//!
//! ids MODEL

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{BufRead, stdin};
use std::num::NonZeroU32;

use llama_cpp_4::context::LlamaContext;
use llama_cpp_4::context::params::LlamaContextParams;
use llama_cpp_4::llama_backend::LlamaBackend;
use llama_cpp_4::llama_batch::LlamaBatch;
use llama_cpp_4::model::params::LlamaModelParams;
use llama_cpp_4::model::{AddBos, LlamaModel};
use llama_cpp_4::token::LlamaToken;

const TOKENS: u32 = 1024;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Gives the next prompt of a sequence an id. The crate does not say where its context is: null means the only one of the
/// process. False: no index and no endpoint is set.
fn tie(sequence: i32, id: &str) -> bool {
    const NAME: &CStr = c"contextpilot_request";
    let Ok(id) = CString::new(id) else {
        return false;
    };
    // SAFETY: asks for a function by a C string. Null stands for all objects.
    let found = unsafe { dlsym(std::ptr::null_mut(), NAME.as_ptr()) };
    if found.is_null() {
        return false;
    }
    // SAFETY: null was excluded, and a function of this name is what the hook answers with.
    let request: extern "C" fn(*mut c_void, i32, *const c_char) -> c_int =
        unsafe { std::mem::transmute(found) };
    request(std::ptr::null_mut(), sequence, id.as_ptr()) == 0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: ids MODEL")?;
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let model = LlamaModel::load_from_file(&backend, model, &LlamaModelParams::default())?;
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(TOKENS))
        .with_n_seq_max(2)
        .with_n_threads(1)
        .with_n_threads_batch(1)
        .with_no_perf(false);
    let mut context = model.new_context(&backend, params)?;
    let mut held = [Vec::new(), Vec::new()];
    for (id, sequence, text) in [
        (Some("a"), 0, "Tea is picked in spring, high on the mountains."),
        (Some("b"), 1, "Owls turn their heads, and see what moves below."),
        (Some("c"), 0, "The sea is salt, and ships sail on it for days."),
        (None, 1, "Owls turn their heads, and see what moves below."),
        (None, 0, "Tea is picked in spring, high on the mountains."),
    ] {
        let tokens = model.str_to_token(text, AddBos::Always)?;
        let tied = id.map(|id| tie(sequence, id));
        let of_sequence = &mut held[usize::try_from(sequence)?];
        let evaluated = evaluate(&mut context, sequence, of_sequence, &tokens)?;
        *of_sequence = tokens;
        println!(
            "{}",
            serde_json::json!({"id": id, "tied": tied, "tokens": of_sequence.len(), "evaluated": evaluated})
        );
        stdin().lock().read_line(&mut String::new())?;
    }
    Ok(())
}

/// Evaluates what the sequence has not evaluated yet, the last token at least, and returns how many tokens that was.
fn evaluate(
    context: &mut LlamaContext,
    sequence: i32,
    held: &[LlamaToken],
    tokens: &[LlamaToken],
) -> Result<usize, Box<dyn std::error::Error>> {
    let same = held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let from = same.min(tokens.len() - 1);
    let id = u32::try_from(sequence)?;
    context.clear_kv_cache_seq(Some(id), Some(u32::try_from(from)?), None)?;
    let mut batch = LlamaBatch::new(TOKENS as usize, 1);
    for (at, token) in tokens.iter().enumerate().skip(from) {
        batch.add(*token, i32::try_from(at)?, &[sequence], at + 1 == tokens.len())?;
    }
    context.decode(&mut batch)?;
    Ok(tokens.len() - from)
}
