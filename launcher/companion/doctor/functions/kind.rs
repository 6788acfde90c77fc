//! How a function is hooked, by what is known of its place.

use contextpilot_inspect::{Calls, FunctionPlace, Located, Program};

use crate::table::Row;

/// How one function is hooked, or why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookKind {
    /// Called through GOT entries, which can be patched.
    Imported,
    Inline,
    /// It exists, and nothing calls it through an entry that could be patched.
    Uncalled,
    /// It exists, and cannot be hooked.
    Refused(String),
    Missing,
}

/// Whether the server has a function that was looked up.
pub(in crate::companion::doctor) fn has(located: &Located, name: &str) -> bool {
    let mut functions = located.functions.iter();
    functions.any(|(found, place)| found == name && !matches!(place, FunctionPlace::Missing { .. }))
}

pub(super) fn way(row: &Row, place: &FunctionPlace, refusal: Option<String>) -> HookKind {
    match place {
        FunctionPlace::Dynamic {
            exporter: None,
            calls: Calls::Unseen,
        }
        | FunctionPlace::Missing { .. } => HookKind::Missing,
        // Exported, but called directly.
        FunctionPlace::Dynamic {
            calls: Calls::Unseen,
            ..
        } if row.module == "server" => HookKind::Missing,
        FunctionPlace::Dynamic {
            calls: Calls::Unseen,
            ..
        } => HookKind::Uncalled,
        // The runtime's own calls are not the server's.
        FunctionPlace::Dynamic {
            calls: Calls::FromItself,
            ..
        } if ["cxx", "libc"].contains(&row.generation) => HookKind::Uncalled,
        FunctionPlace::Dynamic { .. } => HookKind::Imported,
        FunctionPlace::Inside(_) => refusal.map_or(HookKind::Inline, HookKind::Refused),
    }
}

/// For each of `names` inside the program, why it cannot be hooked.
#[cfg(target_os = "linux")]
pub(super) fn verdicts(program: &Program, names: &[&str]) -> Vec<Option<String>> {
    match contextpilot_inline::preflight::of_file(&program.path, names) {
        Ok(verdicts) => verdicts
            .into_iter()
            .map(|verdict| Some(verdict?.err()?.to_string()))
            .collect(),
        Err(e) => vec![Some(format!("cannot be examined ({e})")); names.len()],
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn verdicts(_: &Program, names: &[&str]) -> Vec<Option<String>> {
    vec![Some("is hooked inline on Linux only".into()); names.len()]
}
