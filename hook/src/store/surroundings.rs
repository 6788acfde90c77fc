//! What KV depends on besides model, adapters and layout: which engine it is, and with which flags it was started.

use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;

use contextpilot_server_flags::name_of;

use super::{config, content};
use crate::attach::{self, is_embedded, version};
use crate::base::environment;

/// Flags of the server that the KV of a token does not depend on, and whether they have a value. Every other
/// flag counts: an unknown one is more likely to cost a store than to spoil it.
const OTHERS: &[(&str, bool)] = &[
    ("--host", true),
    ("--port", true),
    ("--reuse-port", false),
    ("--path", true),
    ("--api-prefix", true),
    ("--api-key", true),
    ("--api-key-file", true),
    ("--ssl-key-file", true),
    ("--ssl-cert-file", true),
    ("--timeout", true),
    ("-to", true),
    ("--threads", true),
    ("-t", true),
    ("--threads-batch", true),
    ("-tb", true),
    ("--threads-http", true),
    ("--parallel", true),
    ("-np", true),
    ("--kv-unified", false),
    ("-kvu", false),
    ("--no-kv-unified", false),
    ("-no-kvu", false),
    ("--ctx-size", true),
    ("-c", true),
    ("--batch-size", true),
    ("-b", true),
    ("--ubatch-size", true),
    ("-ub", true),
    ("--predict", true),
    ("--n-predict", true),
    ("-n", true),
    ("--gpu-layers", true),
    ("--n-gpu-layers", true),
    ("-ngl", true),
    ("--cache-ram", true),
    ("-cram", true),
    ("--cache-reuse", true),
    ("--cache-prompt", false),
    ("--no-cache-prompt", false),
    ("--cache-idle-slots", false),
    ("--no-cache-idle-slots", false),
    ("--slot-prompt-similarity", true),
    ("-sps", true),
    ("--slot-save-path", true),
    ("--slots", false),
    ("--no-slots", false),
    ("--metrics", false),
    ("--props", false),
    ("--model", true),
    ("-m", true),
    ("--model-draft", true),
    ("-md", true),
    ("--alias", true),
    ("-a", true),
    ("--lora", true),
    ("--lora-scaled", true),
    ("--lora-init-without-apply", false),
    ("--mmproj", true),
    ("--log-file", true),
    ("--log-verbosity", true),
    ("-lv", true),
    ("--log-verbose", false),
    ("--verbose", false),
    ("-v", false),
    ("--log-disable", false),
    ("--log-colors", true),
    ("--log-prefix", false),
    ("--log-timestamps", false),
    ("--no-warmup", false),
    ("--warmup", false),
    ("--seed", true),
    ("-s", true),
    ("--temp", true),
    ("--temperature", true),
    ("--top-k", true),
    ("--top-p", true),
    ("--min-p", true),
    ("--jinja", false),
    ("--no-jinja", false),
    ("--chat-template", true),
    ("--chat-template-file", true),
    ("--reasoning-format", true),
    ("--reasoning-budget", true),
    ("--mlock", false),
    ("--no-mmap", false),
    ("--mmap", false),
    ("--sleep-idle-seconds", true),
    ("--ctx-checkpoints", true),
    ("-ctxcp", true),
    ("--checkpoint-min-step", true),
    ("-cms", true),
    ("--context-shift", false),
    ("--no-context-shift", false),
    ("--no-webui", false),
    ("--webui", false),
    ("--no-ui", false),
];

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
        // Its arguments are not the engine's.
        let flags = FLAGS.get_or_init(|| relevant(iter::empty(), variables()));
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
    Ok(match now == before {
        true => Vec::new(),
        false => [OF_CONTEXTS.as_bytes(), &now.unwrap_or_default()].concat(),
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
    let mut text = Vec::new();
    let mut add = |part: &[u8]| {
        text.extend_from_slice(&(part.len() as u64).to_le_bytes());
        text.extend_from_slice(part);
    };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let name = name_of(&argument);
        match OTHERS.iter().find(|(known, _)| *known == name) {
            Some((_, true)) => drop(arguments.next()),
            Some((_, false)) => {}
            None => add(argument.as_bytes()),
        }
    }
    let mut variables: Vec<_> = variables
        .filter(|(name, _)| is_relevant_variable(name))
        .collect();
    variables.sort();
    for (name, value) in &variables {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    text
}

/// Variables that stand for flags, without those that stand for the harmless ones.
fn is_relevant_variable(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let Some(rest) = name.strip_prefix("LLAMA_ARG_") else {
        return name == OF_CONTEXTS;
    };
    const OTHERS: &[&str] = &[
        "HOST",
        "PORT",
        "THREADS",
        "THREADS_HTTP",
        "N_PARALLEL",
        "KV_UNIFIED",
        "CTX_SIZE",
        "BATCH",
        "UBATCH",
        "N_PREDICT",
        "N_GPU_LAYERS",
        "CACHE_RAM",
        "CACHE_REUSE",
        "CACHE_PROMPT",
        "CACHE_IDLE_SLOTS",
        "SLOT_PROMPT_SIMILARITY",
        "MODEL",
        "MODEL_DRAFT",
        "ALIAS",
        "ENDPOINT_METRICS",
        "ENDPOINT_SLOTS",
        "ENDPOINT_PROPS",
        "TIMEOUT",
        "API_PREFIX",
        "STATIC_PATH",
        "SSL_KEY_FILE",
        "SSL_CERT_FILE",
        "MLOCK",
        "NO_MMAP",
        "JINJA",
        "CHAT_TEMPLATE",
        "CHAT_TEMPLATE_FILE",
        "CTX_CHECKPOINTS",
        "CHECKPOINT_MIN_SPACING_NT",
        "CONTEXT_SHIFT",
        "MMPROJ",
        "LOG_FILE",
        "LOG_VERBOSITY",
        "LOG_COLORS",
        "LOG_PREFIX",
        "LOG_TIMESTAMPS",
    ];
    !OTHERS.contains(&rest)
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
    fn harmless_flags_do_not_count_and_unknown_ones_do() {
        let plain = of("", &[]);
        assert!(plain.is_empty());
        assert_eq!(of("--port 1 -np 4 -m a.gguf --cache_ram 9", &[]), plain);
        assert_ne!(of("--rope-freq-base 5", &[]), plain);
        assert_ne!(of("--rope-freq-base 5", &[]), of("--rope-freq-base 6", &[]));
        assert_ne!(of("--from-next-year", &[]), plain);
        assert_eq!(of("", &[("LLAMA_ARG_PORT", "1"), ("HOME", "/")]), plain);
        assert_ne!(of("", &[("LLAMA_ARG_ROPE_FREQ_BASE", "1")]), plain);
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
