//! What KV depends on besides model, adapters and layout: which engine it is, and with which flags it was started.

use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;

use contextpilot_server_flags::{may_change_kv, relevant_flags};

use super::{config, content};
use crate::attach::{self, is_embedded, version};
use crate::base::environment;

/// A server is about to load its model, and its engine was asked for its version.
pub(super) fn begin() {
    // As it is now that the server has read it.
    config::text();
    if !is_embedded() && !version().is_of_one_build() {
        // No file cannot be read, so nothing is stored.
        content::set_engine(attach::file_of_engine().unwrap_or_default());
    }
    content::begin_engine();
}

/// What the KV depends on besides model, adapters and layout: the engine's version, or the content of its file if that
/// does not name its commit, and all flags and variables of the server that are not known to be harmless. Without a server: the content of
/// the engine's file. `None`: not known, or not yet.
pub(super) fn all() -> Option<Vec<u8>> {
    let digest = content::of_engine()?;
    static FLAGS: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(digest) = digest.filter(|_| is_embedded()) {
        // Its arguments are not the engine's, and variables that stand for flags are a server's.
        let of_engine = || variables().filter(|(name, _)| name == OF_CONTEXTS);
        let flags = FLAGS.get_or_init(|| relevant(iter::empty(), of_engine()));
        return Some([&digest, &**flags].concat());
    }
    let config = config::digest(config::text()?).map(OsString::from);
    let flags = FLAGS.get_or_init(|| {
        let arguments = environment::arguments().map(OsString::from).skip(1);
        relevant(config.into_iter().chain(arguments), variables())
    });
    let mut text = flags.clone();
    text.extend_from_slice(engine_text(&version().to_string(), digest).as_bytes());
    Some(text)
}

/// How an engine is told from others.
fn engine_text(version: &str, digest: Option<[u8; 16]>) -> String {
    match digest {
        Some(digest) => format!("{version}, file {:032x}", u128::from_be_bytes(digest)),
        None => version.to_owned(),
    }
}

/// Whether a flag, a variable or the configuration of the server names this key of the model's metadata, which they replace
/// then.
pub(super) fn replace_metadata(key: &str) -> bool {
    let names = |text: &OsStr| text.to_string_lossy().contains(key);
    let config = config::text().map(OsStr::from_bytes);
    config.is_none_or(names)
        || environment::arguments().any(names)
        || environment::variables().any(|(name, value)| is_relevant_variable(name) && names(value))
}

/// The engine reads this variable whenever it creates a context. Keys and values of a quantised cache are not rotated
/// with it.
const OF_CONTEXTS: &str = "LLAMA_ATTN_ROT_DISABLE";

/// What a program has changed since its start of what the engine reads when it creates a context.
///
/// # Errors
/// It cannot be known.
pub(super) fn changed() -> Result<Vec<u8>, ()> {
    let now = environment::now(OF_CONTEXTS)?;
    let before = environment::variable(OF_CONTEXTS).map(OsString::into_vec);
    Ok(if now == before {
        Vec::new()
    } else {
        [OF_CONTEXTS.as_bytes(), &now.unwrap_or_default()].concat()
    })
}

/// What the process was started with.
fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    environment::variables().map(|(name, value)| (name.to_owned(), value.to_owned()))
}

fn relevant(
    arguments: impl Iterator<Item = OsString>,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<u8> {
    let variables: Vec<_> = variables
        .filter(|(name, _)| is_relevant_variable(name))
        .collect();
    let of_engine = variables.iter().find(|(name, _)| name == OF_CONTEXTS);
    let of_engine = of_engine.cloned().map(|(name, value)| [name, value]);
    let mut words = relevant_flags(arguments, variables);
    words.extend(of_engine.into_iter().flatten());
    let mut text = Vec::new();
    for word in &words {
        text.extend_from_slice(&(word.len() as u64).to_le_bytes());
        text.extend_from_slice(word.as_bytes());
    }
    text
}

/// Variables that stand for flags, without those that stand for the harmless ones.
fn is_relevant_variable(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    may_change_kv(&name).unwrap_or(name == OF_CONTEXTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &str, variables: &[(&str, &str)]) -> Vec<u8> {
        let arguments = arguments.split_whitespace().map(OsString::from);
        let variables = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        relevant(arguments, variables)
    }

    #[test]
    fn flags_count_that_change_kv_and_one_variable_that_is_no_flag() {
        let plain = of("", &[]);
        assert!(plain.is_empty());
        assert_eq!(of("--port 1 -np 4 -m a.gguf --cache_ram 9", &[]), plain);
        assert_ne!(of("--rope-freq-base 5", &[]), plain);
        assert_eq!(
            of("--rope-freq-base 5", &[]),
            of("", &[("LLAMA_ARG_ROPE_FREQ_BASE", "5")])
        );
        assert_eq!(of("", &[("LLAMA_ARG_PORT", "1"), ("HOME", "/")]), plain);
        let [on, off] = ["1", "0"].map(|value| of("", &[(OF_CONTEXTS, value)]));
        assert!(on != plain && on != off);
    }

    #[test]
    fn an_engine_that_has_no_version_is_known_by_its_file() {
        let name = "(version unknown)";
        let [one, other] = [1, 2].map(|n| engine_text(name, Some([n; 16])));
        assert_ne!(one, other);
        assert_eq!(one, format!("{name}, file {}", "01".repeat(16)));
        assert_eq!(engine_text("0.7.0", None), "0.7.0");
    }
}
