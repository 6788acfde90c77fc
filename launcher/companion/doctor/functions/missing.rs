//! What follows from each function that is not hooked.

use crate::table::{ADAPTERS, EVALUATION, LAUNCH, MEMORY, NUMBERS, PROMPTS, Row, newest};

use super::Functions;
use super::kind::HookKind;

impl Functions {
    /// Whether it is missing because this version has another function in its place.
    pub(super) fn is_others(&self, (row, way): &(&'static Row, HookKind)) -> bool {
        *way == HookKind::Missing && self.instead_of(row).is_some()
    }

    /// What follows from each function that is not hooked, unless it is another version's.
    pub(super) fn consequences(&self) -> Vec<String> {
        let own = self.ways.iter().filter(|way| !self.is_others(way));
        let rows = own.filter_map(|(row, way)| {
            let why = match way {
                HookKind::Imported | HookKind::Inline | HookKind::Uncalled => return None,
                HookKind::Refused(why) => why,
                HookKind::Missing => "is not there",
            };
            Some(format!(
                "{} {why}: {}",
                row.name,
                self.consequence(row, way)
            ))
        });
        rows.collect()
    }

    pub(super) fn consequence(&self, row: &Row, way: &HookKind) -> String {
        const NOTHING: &str = "nothing is reported";
        if *way != HookKind::Missing {
            return if self.sees_elsewhere(row) {
                "seen through another function".into()
            } else {
                NOTHING.into()
            };
        }
        if let Some(instead) = self.instead_of(row) {
            return format!("not needed, this version has {instead}");
        }
        match row.generation {
            "cxx" if row.name == "_ZdlPvm" => "prompts in the host cache count as gone",
            "cxx" => "not needed, buffers are released by another function",
            generation if generation.starts_with("server") => {
                if self.ties_by_prompts() {
                    "requests are tied to slots by their prompts"
                } else {
                    "requests are not recognised, nothing is reported"
                }
            }
            _ if row.generation == PROMPTS.0 => "requests with images are not tracked",
            _ if row.required => NOTHING,
            _ if row.name.starts_with("llama_state_seq_") => "this version has no host cache",
            _ if row.module == "media" && self.forgets() => "this version takes no images",
            _ if row.module == "media" => "images and sounds are told apart by their content only",
            _ if row.name == "llama_new_context_with_model" => {
                "not needed, an old name of llama_init_from_model"
            }
            _ => "done without",
        }
        .into()
    }

    /// What a server of another generation has in place of this function.
    fn instead_of(&self, row: &Row) -> Option<&'static str> {
        let mut all = [MEMORY, EVALUATION, NUMBERS, LAUNCH, ADAPTERS].into_iter();
        let generations = all.find(|all| all.iter().any(|(name, _)| *name == row.generation))?;
        let newest = newest(generations, |name| self.has(name))?;
        let (_, anchor) = generations.iter().find(|(name, _)| *name == newest)?;
        (newest != row.generation).then_some(anchor)
    }
}
