//! The names of all environment variables, in one place.
//!
//! For each of them an empty value means the same as none.

/// Base URL of the index, such as `http://127.0.0.1:8765` or `unix:/run/index.sock` (see
/// [`IndexUrl`](crate::IndexUrl)). Unset: nothing
/// is reported anywhere, and unless [`LISTEN`], [`LOG_FILE`], [`KV_EVENTS`], [`TRAFFIC_FILE`] or
/// [`STORE`] is set, the launcher execs the
/// plain server and the hook does nothing.
pub const INDEX_URL: &str = "CONTEXTPILOT_INDEX_URL";

/// Sent to the index as `Authorization: Bearer …`. Never shown.
pub const INDEX_TOKEN: &str = "CONTEXTPILOT_INDEX_TOKEN";

/// A PEM file of certificate authorities to trust for an `https` index instead
/// of the system's trust store.
pub const INDEX_CA: &str = "CONTEXTPILOT_INDEX_CA";

/// Milliseconds to wait for a connection to the index (default 1000).
pub const INDEX_CONNECT_TIMEOUT_MS: &str = "CONTEXTPILOT_INDEX_CONNECT_TIMEOUT_MS";

/// Milliseconds for one whole request to the index, connecting included
/// (default 5000).
pub const INDEX_TIMEOUT_MS: &str = "CONTEXTPILOT_INDEX_TIMEOUT_MS";

/// Milliseconds that a server that is ending may spend on telling the index
/// what it held (default 2000, 0 turns it off).
pub const EXIT_DRAIN_MS: &str = "CONTEXTPILOT_EXIT_DRAIN_MS";

/// `0`: no journal of live request ids is kept, so what a crash takes from the cache is not
/// reported by the next start (default 1). It lies in `contextpilot-llama` in the user's state
/// folder, `$XDG_STATE_HOME` or `~/.local/state`.
pub const JOURNAL: &str = "CONTEXTPILOT_JOURNAL";

/// Where the control endpoint listens: `auto` for a private Unix socket that the companion
/// command finds by itself, `127.0.0.1:8890`, `[::1]:8890` or `unix:/path` (see
/// [`Listen`](crate::Listen)). Unset: nowhere. Without an index URL the hook is
/// then there for observation only.
pub const LISTEN: &str = "CONTEXTPILOT_LISTEN";

/// The URL of an index that stands in front of the server and asks the control endpoint what is
/// cached. `contextpilot-llama up` sets it, so that the hook can say so and the index finds its
/// servers. Unset: none is known of.
pub const INDEX_IN_FRONT: &str = "CONTEXTPILOT_INDEX_IN_FRONT";

/// Bearer token that the control endpoint asks for. Must be set if it listens where other
/// machines can reach it. Never shown.
pub const LISTEN_TOKEN: &str = "CONTEXTPILOT_LISTEN_TOKEN";

/// Connections to the control endpoint at a time, of which half may follow `/events` (default 16).
pub const LISTEN_CONNECTIONS: &str = "CONTEXTPILOT_LISTEN_CONNECTIONS";

/// Milliseconds that a client of the control endpoint may take to send a request, to begin one, and to read some
/// of an answer (default 20000).
pub const LISTEN_TIMEOUT_MS: &str = "CONTEXTPILOT_LISTEN_TIMEOUT_MS";

/// A file that gets a line of JSON for each finished request. Without an index URL the hook is
/// then there for observation only.
pub const LOG_FILE: &str = "CONTEXTPILOT_LOG_FILE";

/// The size in MiB at which the log file is set aside as `<file>.1` and begun anew (default
/// 64).
pub const LOG_FILE_MB: &str = "CONTEXTPILOT_LOG_FILE_MB";

/// The folder of the prefix store: KV of prompts, so that no token is evaluated twice. It is as secret as
/// the prompts. Unset: there is no store.
pub const STORE: &str = "CONTEXTPILOT_STORE";

/// How large the prefix store may become, in 10⁹ bytes, with decimals if need be (default: a tenth of what
/// is free in the file system, at most 50).
pub const STORE_GB: &str = "CONTEXTPILOT_STORE_GB";

/// `1`: the hook also works in programs that are no llama-server and have llama.cpp inside, or load it (default
/// 0). `contextpilot-llama run` sets it.
pub const ENGINE: &str = "CONTEXTPILOT_ENGINE";

/// What the names of all variables about KV cache events begin with.
pub const KV_PREFIX: &str = "CONTEXTPILOT_KV_";

/// Where KV cache events are published for routers, by ZeroMQ: `tcp://127.0.0.1:5557`, or
/// `tcp://*:5557` for whoever can reach this machine. The events have all prompts in them, as token
/// ids. For the servers of a llama-server in router mode, one for each model, by its name:
/// `a=tcp://127.0.0.1:5557,b=tcp://127.0.0.1:5567`. Unset: nothing is published.
pub const KV_EVENTS: &str = "CONTEXTPILOT_KV_EVENTS";

/// Where routers ask for what they missed (default: the port after the other), or `off`.
pub const KV_EVENTS_REPLAY: &str = "CONTEXTPILOT_KV_EVENTS_REPLAY";

/// Connections of routers at a time (default 32). A quarter as many may ask for what they missed.
pub const KV_EVENTS_CONNECTIONS: &str = "CONTEXTPILOT_KV_EVENTS_CONNECTIONS";

/// What each message begins with (default: nothing, which is what vllm-router wants). Where each model
/// has an address, `{model}` in it stands for the model's name.
pub const KV_EVENTS_TOPIC: &str = "CONTEXTPILOT_KV_EVENTS_TOPIC";

/// Tokens of a block, the same as the router's (default 16).
pub const KV_BLOCK_SIZE: &str = "CONTEXTPILOT_KV_BLOCK_SIZE";

/// What requests call the server's LoRA adapters, by commas, in the order of its `/lora-adapters`
/// (default: nothing, and only what serves requests without adapters is published).
pub const KV_LORA_NAMES: &str = "CONTEXTPILOT_KV_LORA_NAMES";

/// A file that gets a recording of traffic without its text, for `contextpilot-llama simulate`.
/// Without an index URL the hook is then there for observation only.
pub const TRAFFIC_FILE: &str = "CONTEXTPILOT_TRAFFIC_FILE";

/// The size in MiB at which the recording ends (default 64).
pub const TRAFFIC_FILE_MB: &str = "CONTEXTPILOT_TRAFFIC_FILE_MB";

/// `1`: the recording keeps the key of its hashes, so whoever has the file can try whether some
/// text was sent (default 0).
pub const TRAFFIC_KEEP_KEY: &str = "CONTEXTPILOT_TRAFFIC_KEEP_KEY";

/// MiB of what has been in slots that are remembered, to say why prompts are evaluated (default
/// 32, 0 turns that off). Without [`LISTEN`] and [`LOG_FILE`] nobody is told, and nothing is
/// remembered.
pub const EXPLAIN_MB: &str = "CONTEXTPILOT_EXPLAIN_MB";

/// `1`: where a prompt differs from an earlier one, the control endpoint shows some tokens around
/// that place as text, if only this machine can reach it (default 0).
pub const EXPLAIN_TEXT: &str = "CONTEXTPILOT_EXPLAIN_TEXT";

/// A file that gets every event and effect, one a line, for finding faults. It has ids and no prompts.
pub const TRACE_FILE: &str = "CONTEXTPILOT_TRACE_FILE";

/// The hook library to preload, instead of the one inside the launcher: for
/// packagers who install it as a file of its own.
pub const HOOK_LIB: &str = "CONTEXTPILOT_HOOK_LIB";

/// `1`: a hook that cannot be used ends the launcher (exit 3) instead of
/// starting the plain server. In the server, it ends the server (exit 3) before the model is loaded; a file
/// that a setting names and that cannot be written does the same.
pub const STRICT: &str = "CONTEXTPILOT_STRICT";

/// The llama-server to run, instead of the first `llama-server` on `PATH`.
pub const LLAMA_SERVER_BIN: &str = "LLAMA_SERVER_BIN";

/// All of them that begin with `CONTEXTPILOT_`. Those that give the hook something to do come first.
pub const ALL: &[&str] = &[
    INDEX_URL,
    LISTEN,
    LOG_FILE,
    KV_EVENTS,
    TRAFFIC_FILE,
    STORE,
    INDEX_TOKEN,
    INDEX_CA,
    INDEX_CONNECT_TIMEOUT_MS,
    INDEX_TIMEOUT_MS,
    EXIT_DRAIN_MS,
    JOURNAL,
    INDEX_IN_FRONT,
    LISTEN_TOKEN,
    LISTEN_CONNECTIONS,
    LISTEN_TIMEOUT_MS,
    LOG_FILE_MB,
    STORE_GB,
    KV_EVENTS_REPLAY,
    KV_EVENTS_CONNECTIONS,
    KV_EVENTS_TOPIC,
    KV_BLOCK_SIZE,
    KV_LORA_NAMES,
    TRAFFIC_FILE_MB,
    TRAFFIC_KEEP_KEY,
    EXPLAIN_MB,
    EXPLAIN_TEXT,
    TRACE_FILE,
    ENGINE,
    HOOK_LIB,
    STRICT,
];

#[cfg(test)]
mod tests {
    #[test]
    fn all_are_listed() {
        let source = include_str!("env.rs");
        let lines = source.lines().filter(|line| line.starts_with("pub const"));
        let values = lines.filter_map(|line| line.split('"').nth(1));
        let mut names: Vec<_> = values
            .filter(|value| value.starts_with("CONTEXTPILOT_") && *value != super::KV_PREFIX)
            .collect();
        let mut listed = super::ALL.to_vec();
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, names);
    }
}
