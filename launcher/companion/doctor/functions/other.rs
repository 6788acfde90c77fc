//! Forks of llama.cpp, which have its functions by the same names, and other structures.

use contextpilot_inspect::{FunctionPlace, Located, Program};

/// What a `llama_batch` has, in bytes.
const BATCH: u64 = 56;

/// Why the engine of this program is another one, which the hook leaves alone. It asks the engine itself, and for all
/// structures; here code is read.
pub(super) fn engine(program: &Program, located: &Located) -> Option<String> {
    let (_, place) = located
        .functions
        .iter()
        .find(|(name, _)| name == "llama_decode")?;
    let file = match place {
        FunctionPlace::Dynamic {
            exporter: Some(file),
            ..
        } => file,
        _ => &program.path,
    };
    let written = batch_of(file).filter(|written| *written > BATCH)?;
    Some(format!(
        "not followed: it is another llama.cpp, whose llama_batch is not the known one ({written} bytes, not {BATCH}); \
         its prompts are evaluated as ever"
    ))
}

#[cfg(target_os = "linux")]
fn batch_of(file: &std::path::Path) -> Option<u64> {
    contextpilot_inline::preflight::returned(file, "llama_batch_get_one")
        .ok()
        .flatten()
}

#[cfg(not(target_os = "linux"))]
fn batch_of(_: &std::path::Path) -> Option<u64> {
    None
}
