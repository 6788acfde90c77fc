//! Engines whose functions cannot be found: they were hidden, stripped, inlined by link-time optimisation, or in part
//! removed by the linker. Nothing of them is guessed. A message says that they are there.

use std::path::Path;

use contextpilot_inline::{REMOVED, functions_in, holds_engine};

use super::original::ROWS;
use super::row::Row;

/// What follows if the engine cannot be hooked.
pub(super) const AS_EVER: &str = "its prompts are evaluated as ever";

/// In bytes. Smaller files contain no engine; the smallest that was seen has four times as many.
const SMALLEST: u64 = 1 << 20;

/// Why the llama.cpp in this file is not followed, as the rest of a message. `None`: there is none in it. The file's
/// functions were looked for, and those that each engine has were not found.
pub(super) fn reason(file: &Path) -> Option<String> {
    let is_large = std::fs::metadata(file).is_ok_and(|found| found.len() >= SMALLEST);
    if !is_large || !holds_engine(file).unwrap_or(false) {
        return None;
    }
    let shown = file.display();
    let names: Vec<&str> = ROWS
        .iter()
        .filter(|row| is_basic(row))
        .map(|row| row.name)
        .collect();
    let found = functions_in(file, &names).unwrap_or_default();
    let lacking: Vec<&str> = names
        .iter()
        .zip(&found)
        .filter(|(_, found)| !**found)
        .map(|(name, _)| *name)
        .collect();
    if (1..names.len()).contains(&lacking.len()) {
        return Some(lacks(file, &lacking));
    }
    Some(format!(
        "{shown} has llama.cpp inside, and its functions cannot be found (hidden, stripped, or inlined by link-time \
         optimisation): use a build with shared libraries, or one that keeps its symbols; {AS_EVER}"
    ))
}

/// Of an engine in this file that has other functions, and not these. There is one at least.
pub(super) fn lacks(file: &Path, functions: &[&str]) -> String {
    let shown = file.display();
    let names = functions.join(", ");
    // A library has all that its version has. Nothing evaluates without the function that makes a context: that one is
    // not removed.
    if !is_module(file) || functions.contains(&"llama_init_from_model") {
        return format!(
            "{shown} lacks {names}, which each llama.cpp since January 2025 has; {AS_EVER}"
        );
    }
    format!("{shown} has llama.cpp inside, and lacks {names}; {AS_EVER}: {REMOVED}")
}

/// Whether it is more than llama.cpp: a module of Python or Node, which calls the llama.cpp inside.
pub(super) fn is_module(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with("libllama")
}

/// Whether each llama.cpp since mid-2025 has it, and the hook needs it.
fn is_basic(row: &Row) -> bool {
    matches!(row.generation, "memory" | "any" | "legacy") && !row.is_optional()
}
