//! The hook of the Python package: compiled by its own command at each enabled start.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use contextpilot_testbed::{Builder, Post, Result};

use crate::lab::{Lab, failed, has, run as run_command};

/// The package, as it was installed into an environment of its own.
pub(super) struct Package {
    command: PathBuf,
    library: PathBuf,
    pub(super) version: String,
}

impl Package {
    /// `None` with the reason if there is none on this machine.
    pub(super) fn find(
        lab: &Lab,
        python: Option<&Path>,
    ) -> Result<std::result::Result<Self, String>> {
        let Some(python) = python else {
            return Ok(Err("there is no Python that could have it".to_owned()));
        };
        if !has("g++") {
            return Ok(Err(
                "its hook is compiled by g++, which is not installed".to_owned()
            ));
        }
        let code = "import importlib.metadata as m; from contextpilot._llamacpp_hook import build; \
                    print(m.version('contextpilot')); print(build())";
        let mut command = lab.command(python);
        command.args(["-c", code]);
        let said = run_command(&mut command)?;
        let [version, library] = said.lines().collect::<Vec<_>>()[..] else {
            return Err(failed(format!("the package said {said:?}")));
        };
        Ok(Ok(Self {
            command: python.with_file_name("contextpilot-llama-server"),
            library: library.into(),
            version: version.to_owned(),
        }))
    }

    /// Its launcher.
    pub(super) fn launcher(&self, lab: &Lab) -> Command {
        lab.command(&self.command)
    }

    /// A server with the library that its launcher compiles and preloads.
    pub(super) fn hooked(&self, plain: &Builder, index: &str) -> Builder {
        plain
            .clone()
            .preload(&self.library)
            .env("CONTEXTPILOT_INDEX_URL", index)
    }
}

/// When a request had been answered, and in which slots it was.
pub(super) struct Visit {
    pub(super) end: Instant,
    pub(super) slots: Vec<i64>,
    pub(super) id: Option<String>,
}

/// What its posts of `slot_N` would mean if somebody knew which request was in the slot: the last
/// one that had been answered there.
pub(super) fn credited(posts: &[Post], visits: &[Visit]) -> Vec<String> {
    let of_post = |post: &Post| {
        let slots = post
            .ids
            .iter()
            .filter_map(|id| id.strip_prefix("slot_")?.parse().ok());
        let at = post.at;
        let ids = slots.filter_map(move |slot: i64| {
            let mut before = visits.iter().rev().filter(|visit| visit.end <= at);
            before.find(|visit| visit.slots.contains(&slot))?.id.clone()
        });
        ids.collect::<Vec<_>>()
    };
    posts.iter().flat_map(of_post).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_slot_means_the_last_request_that_was_answered_there() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let visit = |ms, slot, id: &str| Visit {
            end: at(ms),
            slots: vec![slot],
            id: Some(id.to_owned()),
        };
        let visits = [visit(10, 0, "a"), visit(20, 1, "b"), visit(30, 0, "c")];
        let post = |ms, id: &str| Post {
            at: at(ms),
            connection: 0,
            head: String::new(),
            body: Vec::new(),
            ids: vec![id.to_owned()],
            accepted: true,
        };
        let posts = [
            post(25, "slot_0"),
            post(35, "slot_0"),
            post(5, "slot_0"),
            post(40, "x"),
        ];
        assert_eq!(credited(&posts, &visits), ["a", "c"]);
    }
}
