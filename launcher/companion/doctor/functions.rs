//! Which functions of the hook's table will be hooked, and what follows.

use contextpilot_inspect::{Located, Program, REMOVED};
use contextpilot_settings::Settings;
use serde_json::{Value, json};

use crate::table::{
    FORGOTTEN, Generations, HOST_CACHE, LAUNCH, MEMORY, NUMBERS, OPENSSL, PROMPTS, ROWS, Row,
    UNCACHED, is_called, is_seen_elsewhere, newest, ties_by_prompts,
};
use crate::variables::of_process;

use super::report::{Finding, Grade, Report};

mod kind;
mod missing;
mod other;
mod tls;

pub(super) use kind::has;
use kind::{HookKind, verdicts, way};

fn are_tokens_wanted() -> bool {
    Settings::from(of_process).is_ok_and(|settings| settings.wants_tokens())
}

/// What is said of the KV cache.
const SUBJECT: &str = "KV cache";

struct Functions {
    /// For each row, how it is hooked.
    ways: Vec<(&'static Row, HookKind)>,
    /// The server has a host prompt cache.
    host_cache: bool,
}

/// Returns whether the KV cache is followed.
pub(super) fn examine(program: &Program, located: &Located, report: &mut Report) -> bool {
    let mut functions = Functions::new(program, located);
    let (tls, finding) = tls::examine(program, located);
    let openssl = OPENSSL.iter().map(|row| (row, tls.clone()));
    functions
        .ways
        .extend(openssl.filter(|_| tls != HookKind::Missing));
    functions.list(report);
    let kv_cache = functions.engine(program, located);
    let follows = kv_cache.grade == Grade::Good;
    report.add(kv_cache);
    report.add(functions.host_cache());
    report.add(functions.request_ids());
    report.add(functions.prompts());
    report.add(finding);
    follows
}

/// As [`examine`], of llama.cpp in a library that a program loads: what a server has besides is left out.
pub(super) fn examine_engine(program: &Program, located: &Located, report: &mut Report) -> bool {
    let mut functions = Functions::new(program, located);
    let others = ["cxx", "libc", "openssl", PROMPTS.0];
    functions.ways.retain(|(row, _)| {
        !others.contains(&row.generation) && !row.generation.starts_with("server")
    });
    functions.list(report);
    let kv_cache = functions.engine(program, located);
    let follows = kv_cache.grade == Grade::Good;
    // As the hook: a library has all that its version has, and nothing evaluates without this function.
    let was_cut = !functions.lacking().is_empty()
        && functions.has("llama_init_from_model")
        && !file_name(program).starts_with("libllama");
    report.add(if follows {
        let text = "followed, if its evaluations call these functions: its first prompt tells";
        Finding::new(SUBJECT, Grade::Good, text)
    } else if was_cut {
        let text = format!("{}: {REMOVED}", kv_cache.text);
        Finding::new(SUBJECT, Grade::Fails, text)
    } else {
        kv_cache
    });
    follows
}

impl Functions {
    /// All of them, by how they are hooked.
    fn list(&self, report: &mut Report) {
        report.detail("functions", self.json());
        report.add(self.count());
        self.say_refused(report);
        for (title, kind) in [
            ("Imported", HookKind::Imported),
            ("Hooked inline", HookKind::Inline),
            ("There, and not called", HookKind::Uncalled),
        ] {
            report.list(title, self.names(&kind));
        }
        report.list("Not hooked", self.consequences());
    }

    fn say_refused(&self, report: &mut Report) {
        for (row, way) in &self.ways {
            if let HookKind::Refused(why) = way {
                let text = format!("{} {why}", row.name);
                let grade = if self.sees_elsewhere(row) {
                    Grade::Good
                } else {
                    Grade::Fails
                };
                report.add(Finding::new("not inline", grade, text));
            }
        }
    }

    fn new(program: &Program, located: &Located) -> Self {
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        let verdicts = verdicts(program, &names);
        let rows = ROWS.iter().zip(&located.functions).zip(verdicts);
        let ways = rows.map(|((row, (_, place)), refusal)| (row, way(row, place, refusal)));
        Self::from_ways(ways, has(located, HOST_CACHE), are_tokens_wanted())
    }

    /// Leaves out functions that the hook does not need in such a server.
    fn from_ways(
        ways: impl Iterator<Item = (&'static Row, HookKind)>,
        host_cache: bool,
        tokens_wanted: bool,
    ) -> Self {
        let mut functions = Self {
            ways: ways.collect(),
            host_cache,
        };
        if !tokens_wanted && !functions.ties_by_prompts() {
            let of_use = |(row, _): &(&Row, HookKind)| row.generation != PROMPTS.0;
            functions.ways.retain(of_use);
        }
        functions
    }

    /// How many will be hooked, as the banner of a running server counts them.
    fn count(&self) -> Finding {
        let count = |wanted: fn(&HookKind) -> bool| {
            let ways = self.ways.iter().map(|(_, way)| way);
            ways.filter(|way| wanted(way)).count()
        };
        let (imported, inline) = (
            count(|way| *way == HookKind::Imported),
            count(|way| *way == HookKind::Inline),
        );
        let others = self.ways.iter().filter(|way| self.is_others(way)).count();
        let not_hooked =
            count(|way| matches!(way, HookKind::Refused(_) | HookKind::Missing)) - others;
        let mut text = format!(
            "{} will be hooked: {imported} imported, {inline} inline",
            imported + inline
        );
        if not_hooked > 0 {
            text += &format!("; {not_hooked} not hooked (--verbose says why)");
        }
        let uncalled = count(|way| *way == HookKind::Uncalled);
        text += &format!("; {uncalled} more are not called, {others} are other versions'");
        Finding::new("functions", Grade::Good, text)
    }

    fn ties_by_prompts(&self) -> bool {
        ties_by_prompts(|name| self.has(name))
    }

    fn way(&self, name: &str) -> &HookKind {
        let found = self.ways.iter().find(|(row, _)| row.name == name);
        found.map_or(&HookKind::Missing, |(_, way)| way)
    }

    /// Whether the server has it, even if it cannot be hooked, which is reported separately.
    fn has(&self, name: &str) -> bool {
        *self.way(name) != HookKind::Missing
    }

    fn has_any(&self, generations: Generations) -> bool {
        newest(generations, |name| self.has(name)).is_some()
    }

    /// As in the hook: it need not be hooked if another hook sees the same.
    fn sees_elsewhere(&self, row: &Row) -> bool {
        is_seen_elsewhere(row.name, row.generation, |name| self.has(name))
    }

    fn engine(&self, program: &Program, located: &Located) -> Finding {
        match other::engine(program, located) {
            Some(why) => Finding::new(SUBJECT, Grade::Fails, why),
            None => self.kv_cache(),
        }
    }

    fn kv_cache(&self) -> Finding {
        if !self.has_any(MEMORY) {
            let text = "not followed: nothing in it is an engine that the hook knows \
                        (llama.cpp since May 2025); nothing is reported";
            return Finding::new(SUBJECT, Grade::Fails, text);
        }
        let lacking = self.lacking();
        if lacking.is_empty() {
            Finding::new(SUBJECT, Grade::Good, "followed")
        } else {
            let text = format!(
                "not followed: {} missing; nothing is reported",
                lacking.join(", ")
            );
            Finding::new(SUBJECT, Grade::Fails, text)
        }
    }

    /// Functions without which nothing is followed.
    fn lacking(&self) -> Vec<&'static str> {
        let lacking = self.ways.iter().filter(|(row, way)| {
            let called = is_called(row.generation, |name| self.has(name));
            row.required && called && *way == HookKind::Missing
        });
        lacking.map(|(row, _)| row.name).collect()
    }

    fn host_cache(&self) -> Finding {
        const SUBJECT: &str = "host cache";
        if !self.host_cache {
            return Finding::new(SUBJECT, Grade::Good, "none in this version");
        }
        let needed = ["llama_state_seq_get_data_ext", "_ZdlPvm"];
        match needed.into_iter().find(|name| !self.has(name)) {
            None => Finding::new(SUBJECT, Grade::Good, "followed"),
            Some(missing) => {
                let text = format!("not followed ({missing} missing): prompts in it count as gone");
                Finding::new(SUBJECT, Grade::Limited, text)
            }
        }
    }

    /// Whether the server forgets prompts that are not to be cached; it is older than images, too.
    fn forgets(&self) -> bool {
        newest(UNCACHED, |name| self.has(name)) == Some(FORGOTTEN)
    }

    fn request_ids(&self) -> Finding {
        const SUBJECT: &str = "request ids";
        let missing = match (self.has_any(NUMBERS), self.has_any(LAUNCH)) {
            (true, true) => {
                return Finding::new(SUBJECT, Grade::Good, "read from HTTP, tied to slots");
            }
            (false, _) => "server_queue::get_new_id",
            (true, false) => "server_context::launch_slot_with_task",
        };
        if self.ties_by_prompts() {
            let text = format!(
                "read from HTTP, tied to slots by their prompts ({missing} cannot be hooked here)"
            );
            return Finding::new(SUBJECT, Grade::Limited, text);
        }
        let text = format!(
            "not recognised: {missing} is no function of its own in this build; \
             nothing is reported, use a newer llama.cpp or a shared build"
        );
        Finding::new(SUBJECT, Grade::Fails, text)
    }

    /// Which forms of prompts are followed exactly. All forms are compared as tokens in the KV cache, so
    /// most are alike.
    fn prompts(&self) -> Finding {
        const SUBJECT: &str = "prompts";
        let tracked = [self.kv_cache(), self.request_ids()];
        if tracked.iter().any(|finding| finding.grade == Grade::Fails) {
            let text = "as text, chat or token arrays, infill, images: not tracked";
            return Finding::new(SUBJECT, Grade::Fails, text);
        }
        let named = self.has("mtmd_helper_decode_image_chunk");
        let takes_none = self.forgets();
        let whole = self.has("mtmd_tokenize");
        if self.ties_by_prompts() && !takes_none && !(named && whole) {
            let text = "as text, chat or token arrays: exact; infill: exact; images: not tracked, \
                        their ids are told as gone when they are answered";
            return Finding::new(SUBJECT, Grade::Limited, text);
        }
        let images = if named {
            "exact"
        } else if takes_none {
            "none in this version"
        } else {
            "by their content, if it takes any"
        };
        let text = format!("as text, chat or token arrays: exact; infill: exact; images: {images}");
        Finding::new(SUBJECT, Grade::Good, text)
    }

    fn names(&self, kind: &HookKind) -> Vec<String> {
        let rows = self.ways.iter().filter(|(_, way)| way == kind);
        rows.map(|(row, _)| row.name.to_owned()).collect()
    }

    fn json(&self) -> Value {
        let entry = |(row, way): &(&Row, HookKind)| {
            let (how, why) = match way {
                HookKind::Imported => ("imported", None),
                HookKind::Inline => ("inline", None),
                HookKind::Uncalled => ("uncalled", None),
                HookKind::Refused(why) => ("refused", Some(why)),
                HookKind::Missing => ("missing", None),
            };
            json!({
                "name": row.name,
                "part": row.module,
                "generation": row.generation,
                "required": row.required,
                "how": how,
                "why": why,
                "consequence": match way {
                    HookKind::Imported | HookKind::Inline | HookKind::Uncalled => None,
                    _ => Some(self.consequence(row, way)),
                },
            })
        };
        self.ways.iter().map(entry).collect()
    }
}

fn file_name(program: &Program) -> std::borrow::Cow<'_, str> {
    program
        .path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
}

#[cfg(test)]
mod tests;
