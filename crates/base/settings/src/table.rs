//! All settings in one table: of each its variable, its kind with its default, and what it means.
//!
//! Everything that knows settings is written from it: the parser ([`Settings::from`](crate::Settings::from)),
//! the names ([`env`](mod@crate::env)), the table of `docs/settings.md` (`tests/page.rs`), `contextpilot-llama --help`, the
//! manual pages, and the launcher's search for misspelt names.

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<K = Kind> {
    /// The environment variable. An empty value means the same as none.
    pub name: &'static str,
    /// What its values are, and the default.
    pub kind: K,
    /// What it means, in Markdown. Links are relative to README.
    pub text: &'static str,
}

/// The kinds of settings, each with its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// See [`Text`].
    Text(Text),
    /// See [`Flag`].
    Flag(Flag),
    /// See [`Number`].
    Number(Number),
}

/// A value with rules of its own: an address, a path, a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// What holds if the variable is not set, in Markdown.
    pub unset: &'static str,
    /// Whether it gives the hook something to do. If no such setting is there, the launcher executes the
    /// plain server.
    pub engages: bool,
}

/// `1` or `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// What holds if the variable is not set.
    pub default: bool,
}

/// A whole number, of decimal digits alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// What it counts.
    pub unit: Unit,
    /// The smallest value.
    pub least: u64,
    /// The largest value. What is larger is taken for a typing error.
    pub most: u64,
    /// What holds if the variable is not set.
    pub default: u64,
}

/// What a [`Number`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds.
    Milliseconds,
    /// 2²⁰ bytes.
    Mebibytes,
    /// Connections at a time.
    Connections,
    /// Tokens.
    Tokens,
}

/// What to give, as in "give whole MiB".
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Milliseconds => "whole milliseconds",
            Self::Mebibytes => "whole MiB",
            Self::Connections => "how many connections",
            Self::Tokens => "whole tokens",
        })
    }
}

/// The default, in Markdown.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text.unset),
            Self::Flag(flag) => write!(f, "{}", u8::from(flag.default)),
            Self::Number(number) => write!(f, "{}", number.default),
        }
    }
}

impl Setting<Text> {
    const fn row(self) -> Setting {
        self.as_kind(Kind::Text(self.kind))
    }
}

impl Setting<Flag> {
    const fn row(self) -> Setting {
        self.as_kind(Kind::Flag(self.kind))
    }
}

impl Setting<Number> {
    const fn row(self) -> Setting {
        self.as_kind(Kind::Number(self.kind))
    }

    /// The default of a time.
    pub(crate) const fn default_time(self) -> Duration {
        Duration::from_millis(self.kind.default)
    }
}

impl<K: Copy> Setting<K> {
    const fn as_kind(self, kind: Kind) -> Setting {
        Setting {
            name: self.name,
            kind,
            text: self.text,
        }
    }
}

impl Setting {
    /// Whether it gives the hook something to do.
    #[must_use]
    pub const fn engages(&self) -> bool {
        matches!(self.kind, Kind::Text(Text { engages: true, .. }))
    }

    /// The settings of which one has to be set, too, or it does nothing; without any: one that [engages](Self::engages)
    /// the hook. `None`: it does something by itself.
    pub(crate) fn needs(&self) -> Option<&'static [&'static str]> {
        let mut all = NEEDED.iter();
        let found = all.find(|(_, settings)| settings.contains(&self.name));
        found.map(|(needed, _)| *needed)
    }

    /// Whether this value changes nothing.
    pub(crate) fn has_default(&self, value: &OsStr) -> bool {
        !matches!(self.kind, Kind::Text(_)) && value == self.kind.to_string().as_str()
    }
}

/// Settings that do nothing by themselves, behind those of which one has to be set, too.
const NEEDED: &[(&[&str], &[&str])] = &[
    (
        &[env::INDEX_URL],
        &[
            env::INDEX_TOKEN,
            env::INDEX_CA,
            env::INDEX_CONNECT_TIMEOUT_MS,
            env::INDEX_TIMEOUT_MS,
            env::JOURNAL,
            env::WATCHER,
        ],
    ),
    (
        &[env::LISTEN],
        &[
            env::INDEX_IN_FRONT,
            env::LISTEN_TOKEN,
            env::LISTEN_CONNECTIONS,
            env::LISTEN_TIMEOUT_MS,
            env::RECENT_MB,
            env::EXPLAIN_TEXT,
        ],
    ),
    (&[env::LISTEN, env::LOG_FILE], &[env::EXPLAIN_MB]),
    (&[env::LOG_FILE], &[env::LOG_FILE_MB]),
    (
        &[env::KV_EVENTS],
        &[
            env::KV_EVENTS_REPLAY,
            env::KV_EVENTS_TOPIC,
            env::KV_EVENTS_CONNECTIONS,
            env::KV_BLOCK_SIZE,
            env::KV_LORA_NAMES,
        ],
    ),
    (
        &[env::TRAFFIC_FILE],
        &[env::TRAFFIC_FILE_MB, env::TRAFFIC_KEEP_KEY],
    ),
    (
        &[env::STORE],
        &[
            env::STORE_GB,
            env::STORE_REMOTE,
            env::STORE_BOUNDED,
            env::STORE_USAGE,
        ],
    ),
    (
        &[],
        &[
            env::EXIT_DRAIN_MS,
            env::ENGINE,
            env::TRACE_FILE,
            env::HOOK_LIB,
        ],
    ),
];

const fn engaging(unset: &'static str) -> Text {
    Text {
        unset,
        engages: true,
    }
}

const fn text(unset: &'static str) -> Text {
    Text {
        unset,
        engages: false,
    }
}

const fn flag(default: bool) -> Flag {
    Flag { default }
}

const fn number(unit: Unit, least: u64, most: u64, default: u64) -> Number {
    Number {
        unit,
        least,
        most,
        default,
    }
}

/// Up to an hour. A `Duration` of this size can be added to any clock without overflow.
const fn milliseconds(least: u64, default: u64) -> Number {
    number(Unit::Milliseconds, least, 3_600_000, default)
}

/// Up to a TiB.
const fn mebibytes(least: u64, default: u64) -> Number {
    number(Unit::Mebibytes, least, 1 << 20, default)
}

const fn connections(most: u64, default: u64) -> Number {
    number(Unit::Connections, 1, most, default)
}

macro_rules! settings {
    ($($name:ident = $variable:literal, $kind:ident: $value:expr, $text:literal;)*) => {
        $(
            #[doc = concat!("`", $variable, "`: ", $text, ".")]
            pub const $name: Setting<$kind> = Setting { name: $variable, kind: $value, text: $text };
        )*

        /// All settings. Those that give the hook something to do come first.
        pub const ALL: &[Setting] = &[$($name.row()),*];

        /// The names of all environment variables.
        pub mod env {
            $(
                #[doc = concat!("See [`table::", stringify!($name), "`](super::", stringify!($name), ").")]
                pub const $name: &str = super::$name.name;
            )*

            /// Set by `contextpilot-llama run`, and no setting: the number of the process that has become the program.
            pub const RUN: &str = "CONTEXTPILOT_RUN";

            /// What the names of all settings about KV cache events begin with.
            pub const KV_PREFIX: &str = "CONTEXTPILOT_KV_";
        }
    };
}

settings! {
    INDEX_URL = "CONTEXTPILOT_INDEX_URL", Text: engaging("nothing is reported"),
        "where the index is: `http://` or `https://`, with user info and path prefix if any; or a Unix socket, \
         `unix:/path`, with a path prefix `unix:/path:/prefix`";
    LISTEN = "CONTEXTPILOT_LISTEN", Text: engaging("nowhere"),
        "where the [control endpoint](docs/control.md) listens: `auto` (a Unix socket of this user, which \
         `contextpilot-llama` finds by itself), `127.0.0.1:8890`, `[::1]:8890`, `unix:/path`";
    LOG_FILE = "CONTEXTPILOT_LOG_FILE", Text: engaging("none"),
        "a regular file that gets a line of JSON for [each finished request](docs/control.md#the-log-file): ids \
         and numbers, no prompts";
    KV_EVENTS = "CONTEXTPILOT_KV_EVENTS", Text: engaging("nowhere"),
        "where KV cache events are published for [routers](docs/fleets.md), by ZeroMQ: `tcp://127.0.0.1:5557`. \
         `tcp://*:5557` lets other machines read them, and with them all prompts. In router mode one address for \
         each model: `a=tcp://127.0.0.1:5557,b=tcp://127.0.0.1:5567`";
    TRAFFIC_FILE = "CONTEXTPILOT_TRAFFIC_FILE", Text: engaging("none"),
        "a [recording of traffic without its text](docs/tools.md#simulate), for `contextpilot-llama simulate` \
         and `advise`";
    KEEP_TOKENS = "CONTEXTPILOT_KEEP_TOKENS", Text: engaging("0"),
        "`1`: where the text of a prompt goes on as an earlier answer did, it gets [the tokens that were \
         generated](docs/tokens.md), so the answer is not evaluated again. `calls`: also where JSON in it, such as \
         a tool call, came back with other white space or escapes";
    STORE = "CONTEXTPILOT_STORE", Text: engaging("none"),
        "the folder of the [prefix store](docs/store.md), an absolute path. It is as secret as the prompts";
    STORE_GB = "CONTEXTPILOT_STORE_GB", Text: text("a tenth of what would be free without it, at most 50; what is there stays"),
        "how large the prefix store may become, in 10⁹ bytes, with decimals if need be";
    STORE_REMOTE = "CONTEXTPILOT_STORE_REMOTE", Text: text("none"),
        "a Redis or a bucket that [holds the store for several machines](docs/store.md#several-machines), as \
         `redis://host:6379`, `rediss://…` with TLS, or `s3://bucket/prefix`: the launcher starts `contextpilot-llama store sync`";
    STORE_BOUNDED = "CONTEXTPILOT_STORE_BOUNDED", Flag: flag(true),
        "`0`: no prefix store for [models whose cache cannot go back](docs/store.md#models-that-cannot-go-back) to any \
         position (sliding windows, recurrent and hybrid ones)";
    STORE_USAGE = "CONTEXTPILOT_STORE_USAGE", Flag: flag(true),
        "`0`: answers count what the prefix store has loaded as evaluated, as the server does, and not [as cached](docs/store.md#usage-in-answers)";
    KV_EVENTS_REPLAY = "CONTEXTPILOT_KV_EVENTS_REPLAY", Text: text("the next port"),
        "where routers ask for events that they missed, or `off`";
    KV_EVENTS_TOPIC = "CONTEXTPILOT_KV_EVENTS_TOPIC", Text: text("empty"),
        "the topic: what each message begins with. Where each model has an address, `{model}` in it stands for the \
         model's name";
    KV_EVENTS_CONNECTIONS = "CONTEXTPILOT_KV_EVENTS_CONNECTIONS", Number: connections(1024, 32),
        "connections of routers at a time; a quarter as many may ask for events that they missed";
    KV_BLOCK_SIZE = "CONTEXTPILOT_KV_BLOCK_SIZE", Number: number(Unit::Tokens, 1, 4096, 16),
        "tokens in a block, the same as the router's";
    KV_LORA_NAMES = "CONTEXTPILOT_KV_LORA_NAMES", Text: text("none"),
        "the names by which requests to the router call the server's LoRA adapters, in the server's order: `sql,chat`";
    INDEX_TOKEN = "CONTEXTPILOT_INDEX_TOKEN", Text: text("none"),
        "bearer token for the index";
    INDEX_CA = "CONTEXTPILOT_INDEX_CA", Text: text("the system's store"),
        "PEM file of certificates to trust instead of the system's store";
    INDEX_CONNECT_TIMEOUT_MS = "CONTEXTPILOT_INDEX_CONNECT_TIMEOUT_MS", Number: milliseconds(1, 1_000),
        "how long connecting to the index may take";
    INDEX_TIMEOUT_MS = "CONTEXTPILOT_INDEX_TIMEOUT_MS", Number: milliseconds(1, 5_000),
        "how long a whole request to the index may take, connecting included";
    INDEX_IN_FRONT = "CONTEXTPILOT_INDEX_IN_FRONT", Text: text("none"),
        "the URL of an index in front of the server that asks the control endpoint, so that the hook can say so; \
         `contextpilot-llama up` sets it";
    EXIT_DRAIN_MS = "CONTEXTPILOT_EXIT_DRAIN_MS", Number: milliseconds(0, 2_000),
        "how long the server's exit may wait until the last evictions are reported; 0: not at all";
    JOURNAL = "CONTEXTPILOT_JOURNAL", Flag: flag(true),
        "`0`: keep no journal of live ids. Evictions by a crash are then not reported at the next start";
    WATCHER = "CONTEXTPILOT_WATCHER", Text: text("none"),
        "`auto`: a second process, which sleeps while the server lives, reports evictions [as soon as the server was \
         killed](docs/delivery.md#as-soon-as-a-server-was-killed), and not only the next start. Where no launcher and no \
         `contextpilot-llama run` starts the server: the path of `contextpilot-llama`";
    LISTEN_TOKEN = "CONTEXTPILOT_LISTEN_TOKEN", Text: text("none"),
        "bearer token that the control endpoint asks for; required if other machines can reach the endpoint";
    // So many queries may wait for the hook's worker.
    LISTEN_CONNECTIONS = "CONTEXTPILOT_LISTEN_CONNECTIONS", Number: connections(64, 16),
        "connections to the control endpoint at a time ([all limits](docs/security.md#limits-of-the-listeners)), 64 \
         at most. Half of them may follow `/events`";
    LISTEN_TIMEOUT_MS = "CONTEXTPILOT_LISTEN_TIMEOUT_MS", Number: milliseconds(1, 20_000),
        "how long a client of the control endpoint may take to begin a request, to send it, and to read some of an \
         answer";
    LOG_FILE_MB = "CONTEXTPILOT_LOG_FILE_MB", Number: mebibytes(1, 64),
        "MiB at which the log file is renamed to `<file>.1` and a new one begins";
    TRAFFIC_FILE_MB = "CONTEXTPILOT_TRAFFIC_FILE_MB", Number: mebibytes(1, 64),
        "MiB at which the recording ends";
    TRAFFIC_KEEP_KEY = "CONTEXTPILOT_TRAFFIC_KEEP_KEY", Flag: flag(false),
        "`1`: the recording keeps the key of its hashes, so whoever has the recording can test whether a given text \
         was sent";
    EXPLAIN_MB = "CONTEXTPILOT_EXPLAIN_MB", Number: mebibytes(0, 32),
        "MiB for remembering what was in slots, which is needed to say \
         [why prompts are evaluated](docs/tools.md#why). `0` turns this off. Used only with a control endpoint or a \
         log file";
    RECENT_MB = "CONTEXTPILOT_RECENT_MB", Number: mebibytes(0, 8),
        "MiB for the last requests, as a [recording](docs/traffic.md) has them: [`why`](docs/tools.md#why) and `advise` \
         try on them what would help. `0` turns this off. Used only with a control endpoint";
    EXPLAIN_TEXT = "CONTEXTPILOT_EXPLAIN_TEXT", Flag: flag(false),
        "`1`: the control endpoint shows [the first words](docs/control.md#what-a-request-is-about) of requests and, where \
         a prompt differs from an earlier one, [some of the text of both](docs/control.md#the-text-around-a-difference), if \
         only this machine can reach the endpoint";
    STRICT = "CONTEXTPILOT_STRICT", Flag: flag(false),
        "`1`: exit with code 3, before the model is loaded, rather than run without the hook or without a file that \
         a setting names";
    ENGINE = "CONTEXTPILOT_ENGINE", Flag: flag(false),
        "`1`: also works in [programs with llama.cpp inside](docs/embedding.md) that are no llama-server; \
         `contextpilot-llama run` sets it";
    TRACE_FILE = "CONTEXTPILOT_TRACE_FILE", Text: text("none"),
        "file that gets every event and effect, one a line, for finding faults: ids, no prompts";
    HOOK_LIB = "CONTEXTPILOT_HOOK_LIB",
        Text: text("[the package's, else the built-in one](docs/packages.md#where-the-hook-library-is-taken-from)"),
        "another hook library";
    LLAMA_SERVER_BIN = "LLAMA_SERVER_BIN", Text: text("the one on `PATH`"),
        "the llama-server to run";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_setting_stands_there_once_and_those_that_engage_the_hook_come_first() {
        let names: BTreeSet<_> = ALL.iter().map(|setting| setting.name).collect();
        assert_eq!(names.len(), ALL.len());
        let engaging = ALL.iter().take_while(|setting| setting.engages()).count();
        assert!(engaging > 0);
        assert!(!ALL[engaging..].iter().any(Setting::engages));
    }

    /// These say which server runs, and when none does.
    const ALONE: [&str; 2] = [env::LLAMA_SERVER_BIN, env::STRICT];

    #[test]
    fn each_setting_does_something_by_itself_or_needs_another() {
        let needing: Vec<&str> = NEEDED.iter().flat_map(|(_, all)| *all).copied().collect();
        for setting in ALL {
            let alone = setting.engages() || ALONE.contains(&setting.name);
            let times = needing.iter().filter(|name| **name == setting.name).count();
            assert_eq!(times, usize::from(!alone), "{}", setting.name);
        }
        for name in NEEDED.iter().flat_map(|(needed, _)| *needed) {
            let mut all = ALL.iter();
            assert!(all.any(|setting| setting.name == *name && setting.engages()));
        }
    }

    #[test]
    fn a_default_is_a_value_that_is_accepted() {
        for setting in ALL {
            if let Kind::Number(number) = setting.kind {
                let range = number.least..=number.most;
                assert!(range.contains(&number.default), "{}", setting.name);
            }
        }
    }
}
