//! As ../static-rust, with the crate llama-cpp-4.

use std::num::NonZeroU32;
use std::time::Instant;

use llama_cpp_4::context::LlamaContext;
use llama_cpp_4::context::params::LlamaContextParams;
use llama_cpp_4::llama_backend::LlamaBackend;
use llama_cpp_4::llama_batch::LlamaBatch;
use llama_cpp_4::model::params::LlamaModelParams;
use llama_cpp_4::model::{AddBos, LlamaModel, Special};
use llama_cpp_4::sampling::LlamaSampler;

const TOKENS: u32 = 4096;
const ANSWER: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, prompts] = arguments.as_slice() else {
        return Err("usage: static-rust-4 MODEL PROMPTS".into());
    };
    let prompts: Vec<String> = serde_json::from_str(prompts)?;
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let model = LlamaModel::load_from_file(&backend, model, &LlamaModelParams::default())?;
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(TOKENS))
        .with_n_batch(TOKENS)
        .with_n_threads(1)
        .with_n_threads_batch(1)
        // The engine counts what it evaluates.
        .with_no_perf(false);
    let mut context = model.new_context(&backend, params)?;
    let (mut answers, mut evaluated, mut ms) = (Vec::new(), Vec::new(), Vec::new());
    for prompt in &prompts {
        let begun = Instant::now();
        let (text, count) = answer(&model, &mut context, prompt)?;
        answers.push(text);
        evaluated.push(count);
        ms.push(begun.elapsed().as_millis());
    }
    println!(
        "{}",
        serde_json::json!({"answers": answers, "evaluated": evaluated, "ms": ms})
    );
    Ok(())
}

/// The most likely answer, and how many tokens of the prompt the engine has evaluated.
fn answer(
    model: &LlamaModel,
    context: &mut LlamaContext,
    prompt: &str,
) -> Result<(String, i32), Box<dyn std::error::Error>> {
    let tokens = model.str_to_token(prompt, AddBos::Always)?;
    context.clear_kv_cache_seq(Some(0), None, None)?;
    let mut batch = LlamaBatch::new(TOKENS as usize, 1);
    batch.add_sequence(&tokens, 0, false)?;
    let sampler = LlamaSampler::greedy();
    let mut text = Vec::new();
    let mut evaluated = None;
    context.perf_context_reset();
    for at in tokens.len()..tokens.len() + ANSWER {
        context.decode(&mut batch)?;
        let token = sampler.sample(context, -1);
        let timings = context.timings();
        // The engine counts a batch of one token as an answer's, and says 1 where there was none.
        let of = |ms: f64, tokens: i32| if ms > 0.0 { tokens } else { 0 };
        let count = of(timings.t_p_eval_ms(), timings.n_p_eval())
            + of(timings.t_eval_ms(), timings.n_eval());
        evaluated.get_or_insert(count);
        text.extend(model.token_to_bytes(token, Special::Tokenize)?);
        batch.clear();
        batch.add(token, i32::try_from(at)?, &[0], true)?;
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok((text, evaluated.unwrap_or_default()))
}
