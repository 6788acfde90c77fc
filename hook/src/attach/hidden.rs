//! Engines whose functions cannot be found: they were hidden, stripped, inlined by link-time optimisation, or in part
//! removed by the linker. Nothing of them is guessed. A message says that they are there.

use std::path::Path;

use contextpilot_inline::{functions_in, holds_engine};

use super::original::ROWS;
use super::row::Row;

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
    let what = match lacking.first() {
                Some(first) if lacking.len() == 1 => format!(
            "{first}, one of its functions, is not there (--gc-sections removes what a program does not call): link it with \
             all of llama.cpp's functions"
        ),
        Some(first) if lacking.len() < names.len() => format!(
            "{first} and {} more of its functions are not there (--gc-sections removes what a program does not call): link \
             it with all of llama.cpp's functions",
            lacking.len() - 1
        ),
        _ => "its functions cannot be found (hidden, stripped, or inlined by link-time optimisation): use a build with \
              shared libraries, or one that keeps its symbols"
            .to_owned(),
    };
    Some(format!(
        "{shown} has llama.cpp inside, and {what}; its prompts are evaluated as ever"
    ))
}

/// Whether each llama.cpp since mid-2025 has it, and the hook needs it.
fn is_basic(row: &Row) -> bool {
    matches!(row.generation, "memory" | "any" | "legacy") && !row.is_optional()
}
