//! What a person may be shown of a server's flags.
//!
//! A flag's name is no secret. Its value may be: `--hf-token`, `--mcp-servers-json`, an address with a password in it, and
//! whatever a later server takes. So a value is kept only if its flag is on a list, and it looks as such a value does. Of
//! any other four bytes of a digest are kept: enough to say which flag differs. A reader who guesses all of the value can
//! check that, as with the fingerprint itself.

use sha2::{Digest, Sha256};

use crate::bytes::Bytes;

/// Flags whose values are numbers, or words of the server's own.
const PLAIN: &[&str] = &[
    "--cache-type-k",
    "-ctk",
    "--cache-type-v",
    "-ctv",
    "--flash-attn",
    "-fa",
    "--rope-scaling",
    "--rope-scale",
    "--rope-freq-base",
    "--rope-freq-scale",
    "--yarn-orig-ctx",
    "--yarn-ext-factor",
    "--yarn-attn-factor",
    "--yarn-beta-slow",
    "--yarn-beta-fast",
    "--grp-attn-n",
    "-gan",
    "--grp-attn-w",
    "-gaw",
    "--keep",
    "--main-gpu",
    "-mg",
    "--split-mode",
    "-sm",
    "--tensor-split",
    "-ts",
    "--n-cpu-moe",
    "-ncmoe",
    "--pooling",
    "LLAMA_ARG_CACHE_TYPE_K",
    "LLAMA_ARG_CACHE_TYPE_V",
    "LLAMA_ARG_FLASH_ATTN",
    "LLAMA_ARG_ROPE_SCALING_TYPE",
    "LLAMA_ARG_ROPE_SCALE",
    "LLAMA_ARG_ROPE_FREQ_BASE",
    "LLAMA_ARG_ROPE_FREQ_SCALE",
    "LLAMA_ARG_YARN_ORIG_CTX",
    "LLAMA_ARG_YARN_EXT_FACTOR",
    "LLAMA_ARG_YARN_ATTN_FACTOR",
    "LLAMA_ARG_YARN_BETA_SLOW",
    "LLAMA_ARG_YARN_BETA_FAST",
    "LLAMA_ARG_MAIN_GPU",
    "LLAMA_ARG_SPLIT_MODE",
    "LLAMA_ARG_TENSOR_SPLIT",
    "LLAMA_ARG_N_CPU_MOE",
    "LLAMA_ATTN_ROT_DISABLE",
];
/// What stands behind a flag with such a word in its name is its value, whatever it looks like.
const PRIVATE: &[&str] = &[
    "token", "key", "secret", "pass", "auth", "json", "url", "header", "cert", "user", "repo",
];
/// How a digest of the server's configuration begins.
const CONFIG: &str = "config.ini ";
/// The longest name of a flag, and the longest value that is kept.
const LONGEST: usize = 40;
/// Bytes of an engine's digest, which stands first where there is no server.
const ENGINE: usize = 16;

/// The same as a fact [`What::Program`](crate::What::Program), with flags and their values as words that may be shown.
pub(super) fn program(fact: &[u8]) -> Vec<u8> {
    let (parts, engine) = of_server(fact)
        .or_else(|| of_program(fact))
        .unwrap_or_else(|| (Vec::new(), shown_digest("program", fact)));
    let mut text = Vec::new();
    for word in words(&parts) {
        text.extend((word.len() as u64).to_le_bytes());
        text.extend(word.as_bytes());
    }
    text.extend(engine.as_bytes());
    text
}

/// Flags, each with its length before it, and the version of the engine.
fn of_server(fact: &[u8]) -> Option<(Vec<&[u8]>, String)> {
    let (parts, rest) = divided(fact);
    let version = std::str::from_utf8(rest).ok()?;
    let is_plain = |c: char| c.is_ascii_graphic() || c == ' ';
    version
        .chars()
        .all(is_plain)
        .then(|| (parts, version.to_owned()))
}

/// A digest of the engine, and variables.
fn of_program(fact: &[u8]) -> Option<(Vec<&[u8]>, String)> {
    let (engine, rest) = fact.split_at_checked(ENGINE)?;
    let (parts, rest) = divided(rest);
    let engine = engine.iter().map(|byte| format!("{byte:02x}")).collect();
    rest.is_empty().then_some((parts, engine))
}

/// A length is followed by that much, and no version looks like a length.
fn divided(fact: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut bytes = Bytes(fact);
    let (mut parts, mut rest) = (Vec::new(), fact);
    while let Some(part) = bytes
        .u64()
        .and_then(|length| bytes.take(usize::try_from(length).ok()?))
    {
        parts.push(part);
        rest = bytes.0;
    }
    (parts, rest)
}

/// A word for each flag, with what may be shown of its values.
fn words(parts: &[&[u8]]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    // The flag whose values come next.
    let mut flag = String::new();
    let mut is_value = false;
    for part in parts {
        let text = String::from_utf8_lossy(part);
        if let Some(digest) = text.strip_prefix(CONFIG) {
            words.push(format!(
                "{CONFIG}{}",
                shown_digest(CONFIG, digest.as_bytes())
            ));
            continue;
        }
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.as_bytes())),
            None => (&*text, None),
        };
        if !is_value && is_name(name) {
            name.clone_into(&mut flag);
            is_value = value.is_none()
                && (is_variable(name) || PRIVATE.iter().any(|word| name.contains(word)));
            let value = value.map(|value| format!("={}", shown(name, value)));
            words.push(format!("{name}{}", value.unwrap_or_default()));
            continue;
        }
        is_value = false;
        let value = shown(&flag, part);
        match words.last_mut() {
            Some(word) if is_variable(&flag) => *word += &format!("={value}"),
            Some(word) => *word += &format!(" {value}"),
            None => words.push(value),
        }
    }
    words
}

fn is_variable(name: &str) -> bool {
    name.starts_with("LLAMA_")
}

fn is_name(text: &str) -> bool {
    let is_word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || b"-_".contains(&c))
            && text.len() < LONGEST
    };
    match (text.strip_prefix("--"), text.strip_prefix('-')) {
        (Some(long), _) => is_word(long) && !long.bytes().any(|c| c.is_ascii_uppercase()),
        (None, Some(short)) => is_word(short) && short.len() <= 6,
        (None, None) => {
            is_variable(text) && is_word(text) && !text.bytes().any(|c| c.is_ascii_lowercase())
        }
    }
}

/// A value, if its flag is on the list and it is such a value; else a part of its digest.
fn shown(flag: &str, value: &[u8]) -> String {
    let flag = if flag.starts_with("--") {
        flag.replace('_', "-")
    } else {
        flag.to_owned()
    };
    let is_plain = |c: &u8| c.is_ascii_alphanumeric() || b"._,+-".contains(c);
    match std::str::from_utf8(value) {
        Ok(text)
            if PLAIN.contains(&&*flag) && text.len() < LONGEST && value.iter().all(is_plain) =>
        {
            text.to_owned()
        }
        _ => shown_digest(&flag, value),
    }
}

fn shown_digest(flag: &str, value: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update((flag.len() as u64).to_le_bytes());
    hash.update(flag);
    hash.update(value);
    let hash = hash.finalize();
    let digest: String = hash[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("(digest {digest})")
}

/// In what two programs differ, as they are shown.
pub(super) fn difference(theirs: &[u8], ours: &[u8]) -> String {
    let text = |parts: &[&[u8]]| -> Vec<String> {
        let parts = parts.iter();
        parts
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect()
    };
    let [(theirs, engine), (ours, own_engine)] = [theirs, ours].map(|fact| {
        let (parts, engine) = divided(fact);
        (text(&parts), String::from_utf8_lossy(engine).into_owned())
    });
    if engine != own_engine {
        return format!("the engine is another one: {engine}, here {own_engine}");
    }
    let list = |flags: &[String], without: &[String]| {
        let others = flags.iter().filter(|flag| !without.contains(flag));
        let shown: Vec<&str> = others.map(String::as_str).collect();
        if shown.is_empty() {
            "none".to_owned()
        } else {
            shown.join(" ")
        }
    };
    format!(
        "flags differ: {}, here {}",
        list(&theirs, &ours),
        list(&ours, &theirs)
    )
}
