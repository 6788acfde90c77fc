//! Whether the server can have a prefix store.

use std::path::Path;

use contextpilot_inspect::Located;
use contextpilot_kv_files::Folder;
use contextpilot_kv_remote::Remote;
use contextpilot_settings::{Settings, env};

use super::functions::has;
use super::report::{Finding, Grade};
use super::room::Room;
use crate::variables::{Lookup, of_process};

const SUBJECT: &str = "prefix store";

/// What the hook calls to copy the KV of a sequence. The server needs one function of each line, as the
/// versions of llama.cpp have named it.
const NEEDED: [&[&str]; 5] = [
    &["llama_state_seq_get_size"],
    &["llama_state_seq_get_data_ext", "llama_state_seq_get_data"],
    &["llama_state_seq_set_data_ext", "llama_state_seq_set_data"],
    &[
        "llama_memory_seq_rm",
        "llama_kv_self_seq_rm",
        "llama_kv_cache_seq_rm",
    ],
    &[
        "llama_memory_seq_pos_max",
        "llama_kv_self_seq_pos_max",
        "llama_kv_cache_seq_pos_max",
    ],
];

/// The names of the functions to look for.
pub(super) fn functions() -> impl Iterator<Item = &'static str> {
    NEEDED.into_iter().flatten().copied()
}

/// `folder`: the setting. `unless`: what the file does not show, and makes a store impossible.
pub(super) fn examine(
    located: &Located,
    follows: bool,
    folder: Option<&Path>,
    unless: &str,
) -> Finding {
    let lacking = NEEDED
        .iter()
        .find(|names| !names.iter().any(|name| has(located, name)));
    let obstacle = match lacking {
        Some(names) => Some(format!("this build has no {}", names.join(" or "))),
        None if !follows => Some("its KV cache is not followed".to_owned()),
        None => None,
    };
    let variable = env::STORE;
    let (grade, text) = match (obstacle, folder) {
        (Some(why), None) => (Grade::Good, format!("not possible: {why}")),
        (Some(why), Some(_)) => (
            Grade::Limited,
            format!("not possible, though {variable} is set: {why}"),
        ),
        (None, None) => (
            Grade::Good,
            format!("possible{unless}: set {variable} to a folder of your own"),
        ),
        (None, Some(folder)) => grade_of(folder),
    };
    Finding::new(SUBJECT, grade, text)
}

/// Asks the remote, if there is one, as `store sync` will.
pub(super) fn remote() -> Option<Finding> {
    let variable = env::STORE_REMOTE;
    let url = of_process.text(variable)?;
    let found = |grade, text| Some(Finding::new("store remote", grade, text));
    let reached = Remote::new(&url, |name| of_process.text(name)).and_then(|mut remote| {
        remote.reach()?;
        Ok(remote)
    });
    match reached {
        Err(why) => found(
            Grade::Limited,
            format!("{why}; until that is right, this machine has a store of its own"),
        ),
        Ok(remote) => found(Grade::Good, format!("{} answers", remote.shown())),
    }
}

/// The budget that the settings give.
fn budget() -> Option<u64> {
    Settings::from(of_process).ok()?.store?.limit
}

/// Looks at the folder as the hook does, and makes nothing.
fn grade_of(folder: &Path) -> (Grade, String) {
    if !folder.is_absolute() {
        let text = format!("none: {} is no absolute path", folder.display());
        return (Grade::Limited, text);
    }
    let looked = Folder::look(folder);
    let problem = Room::of(folder)
        .ok()
        .and_then(|room| room.problem(budget()));
    if let (Ok(_), Some(problem)) = (&looked, problem) {
        return (
            Grade::Limited,
            format!("in {}: {problem}", folder.display()),
        );
    }
    match looked {
        Ok(Some(())) => (
            Grade::Good,
            format!(
                "in {}; `contextpilot-llama store` shows it",
                folder.display()
            ),
        ),
        Ok(None) => (
            Grade::Good,
            format!("in {}, which will be made", folder.display()),
        ),
        Err(why) => (
            Grade::Limited,
            format!("none: {why}; correct {}", env::STORE),
        ),
    }
}
