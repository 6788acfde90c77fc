use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::env;
use crate::kv_events::{At, DEFAULT_ROUTERS, Given, KvEventsError, KvEventsOf, MOST_ROUTERS};
use crate::listen::{Listen, ListenAddressError};
use crate::secret::Secret;
use crate::store::{LARGEST_GB, StoreAt, read_gigabytes};
use crate::url::{IndexUrl, IndexUrlError};

#[cfg(test)]
mod tests;

/// Default for [`Settings::connect_timeout`].
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Default for [`Settings::timeout`].
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Default for [`Settings::exit_drain`].
pub const DEFAULT_EXIT_DRAIN: Duration = Duration::from_secs(2);

/// Default for [`Settings::listen_connections`].
pub const DEFAULT_LISTEN_CONNECTIONS: usize = 16;
/// So many queries may wait for the hook's worker.
const MOST_LISTEN_CONNECTIONS: usize = 64;
/// Default for [`Settings::listen_timeout`].
pub const DEFAULT_LISTEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Default for [`Settings::log_file_limit`]: 64 MiB.
pub const DEFAULT_LOG_FILE_LIMIT: u64 = 64 << 20;
/// Default for [`TrafficFile::limit`]: 64 MiB.
pub const DEFAULT_TRAFFIC_FILE_LIMIT: u64 = 64 << 20;
/// Default for [`Settings::explain_limit`]: 32 MiB.
pub const DEFAULT_EXPLAIN_LIMIT: u64 = 32 << 20;
/// A TiB, in MiB.
const LARGEST_MB: u64 = 1 << 20;

/// An hour. A longer time is taken for a typing error. A `Duration` of this size can be
/// added to any clock without overflow.
const LONGEST_MS: u64 = 3_600_000;

/// The settings of the hook, from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Where evictions are reported; `None`: nowhere.
    pub index: Option<IndexUrl>,
    /// Bearer token for the index. Never together with credentials in the URL.
    pub token: Option<Secret>,
    /// PEM file that replaces the system's trust store. Not opened here.
    pub ca: Option<PathBuf>,
    /// Time for connecting to the index.
    pub connect_timeout: Duration,
    /// Time for one whole request to the index, connecting included.
    pub timeout: Duration,
    /// Time for reporting all live ids as evicted when the process
    /// ends; `None`: nothing is reported then.
    pub exit_drain: Option<Duration>,
    /// Whether live request ids are kept on disk, for the next start after a crash.
    pub journal: bool,
    /// Where the control endpoint listens; `None`: nowhere.
    pub listen: Option<Listen>,
    /// The index that stands in front of the server and asks the control endpoint; `None`: none
    /// is known of.
    pub index_in_front: Option<IndexUrl>,
    /// Bearer token that the control endpoint asks for. There is one if other machines can
    /// reach it.
    pub listen_token: Option<Secret>,
    /// Connections to the control endpoint at a time.
    pub listen_connections: usize,
    /// Time for a client of the control endpoint to send a request, to begin one, and to read some of an answer.
    pub listen_timeout: Duration,
    /// File that gets a line for each finished request. Not opened here.
    pub log_file: Option<PathBuf>,
    /// Bytes at which that file is renamed and a new one begins.
    pub log_file_limit: u64,
    /// KV cache events for routers; `None`: none are published.
    pub kv_events: Option<KvEventsOf>,
    /// Bytes for remembering what was in slots, to say why prompts are evaluated;
    /// `None`: this is turned off.
    pub explain_limit: Option<u64>,
    /// Whether some text of prompts is to be shown where they differ.
    pub explain_text: bool,
    /// The recording of traffic; `None`: there is none.
    pub traffic_file: Option<TrafficFile>,
    /// The prefix store; `None`: there is none.
    pub store: Option<StoreAt>,
    /// Whether the hook is to work in programs that are no llama-server.
    pub engine: bool,
    /// File that gets every event and effect. Not opened here.
    pub trace_file: Option<PathBuf>,
    /// Whether the server is to end if the hook, or a file that a setting names, cannot be used.
    pub strict: bool,
}

/// A recording of traffic, without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrafficFile {
    /// The file. Not opened here.
    pub path: PathBuf,
    /// Bytes at which the recording ends.
    pub limit: u64,
    /// Whether the file is to keep the key of its hashes.
    pub keep_key: bool,
}

impl Settings {
    /// Reads the settings through `lookup`, which is asked for the names in
    /// [`env`](mod@crate::env); `|name| std::env::var_os(name)` is the usual one.
    ///
    /// # Errors
    /// The first variable whose value cannot be used, and why.
    pub fn from(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let vars = Vars(lookup);
        let index = vars.index_url(env::INDEX_URL)?;
        let index_in_front = vars.index_url(env::INDEX_IN_FRONT)?;
        let token = vars.token(env::INDEX_TOKEN)?;
        if token.is_some() && index.as_ref().is_some_and(|u| u.basic_auth().is_some()) {
            return Err(Error::new(env::INDEX_TOKEN, Cause::TwoAuthorizations));
        }
        let ca = vars.get(env::INDEX_CA).map(PathBuf::from);
        let connect_timeout = vars
            .milliseconds(env::INDEX_CONNECT_TIMEOUT_MS, 1)?
            .unwrap_or(DEFAULT_CONNECT_TIMEOUT);
        let timeout = vars
            .milliseconds(env::INDEX_TIMEOUT_MS, 1)?
            .unwrap_or(DEFAULT_TIMEOUT);
        let exit_drain = vars
            .milliseconds(env::EXIT_DRAIN_MS, 0)?
            .unwrap_or(DEFAULT_EXIT_DRAIN);
        let journal = vars.flag(env::JOURNAL)?.unwrap_or(true);
        let listen = vars.listen()?;
        let listen_token = vars.token(env::LISTEN_TOKEN)?;
        if listen_token.is_none() && listen.as_ref().is_some_and(|at| !at.is_local()) {
            return Err(Error::new(env::LISTEN, Cause::OpenToAll));
        }
        let most = MOST_LISTEN_CONNECTIONS;
        let listen_connections = vars.connections(env::LISTEN_CONNECTIONS, most)?;
        let listen_timeout = vars.milliseconds(env::LISTEN_TIMEOUT_MS, 1)?;
        let log_file = vars.get(env::LOG_FILE).map(PathBuf::from);
        let log_file_limit = vars.megabytes(env::LOG_FILE_MB, 1)?;
        let kv_events = vars.kv_events()?;
        let explain_limit = vars.megabytes(env::EXPLAIN_MB, 0)?;
        let explain_limit = explain_limit.unwrap_or(DEFAULT_EXPLAIN_LIMIT);
        let explain_text = vars.flag(env::EXPLAIN_TEXT)?.unwrap_or(false);
        let traffic_file = vars.traffic_file()?;
        let store = vars.store()?;
        let trace_file = vars.get(env::TRACE_FILE).map(PathBuf::from);
        let engine = vars.flag(env::ENGINE)?.unwrap_or(false);
        let strict = vars.flag(env::STRICT)?.unwrap_or(false);
        Ok(Self {
            index,
            token,
            ca,
            connect_timeout,
            timeout,
            exit_drain: (!exit_drain.is_zero()).then_some(exit_drain),
            journal,
            listen,
            index_in_front,
            listen_token,
            listen_connections: listen_connections.unwrap_or(DEFAULT_LISTEN_CONNECTIONS),
            listen_timeout: listen_timeout.unwrap_or(DEFAULT_LISTEN_TIMEOUT),
            log_file,
            log_file_limit: log_file_limit.unwrap_or(DEFAULT_LOG_FILE_LIMIT),
            kv_events,
            traffic_file,
            store,
            trace_file,
            engine,
            strict,
            explain_limit: (explain_limit > 0).then_some(explain_limit),
            explain_text,
        })
    }

    /// Whether any setting gives the hook something to do.
    pub fn is_engaged(&self) -> bool {
        self.index.is_some() || self.observes() || self.kv_events.is_some() || self.store.is_some()
    }

    /// Whether there is a control endpoint, a log file or a recording.
    pub fn observes(&self) -> bool {
        self.listen.is_some() || self.log_file.is_some() || self.traffic_file.is_some()
    }
}

/// Whether the environment asks for the hook at all: one of the variables that give it something to do
/// is set, whether its value is right or wrong.
pub fn is_wanted(lookup: impl Fn(&str) -> Option<OsString>) -> bool {
    let vars = Vars(lookup);
    [
        env::INDEX_URL,
        env::LISTEN,
        env::LOG_FILE,
        env::KV_EVENTS,
        env::TRAFFIC_FILE,
        env::STORE,
    ]
    .iter()
    .any(|variable| vars.get(variable).is_some())
}

/// Reads an on/off variable: unset, empty and `0` are off, `1` is on.
///
/// # Errors
/// Any other value. A wrong guess at the meaning of `no`, `off` or ` 1` could turn off a
/// safety that the user believes to be on.
pub fn flag(
    lookup: impl Fn(&str) -> Option<OsString>,
    variable: &'static str,
) -> Result<bool, Error> {
    Ok(Vars(lookup).flag(variable)?.unwrap_or(false))
}

struct Vars<F>(F);

impl<F: Fn(&str) -> Option<OsString>> Vars<F> {
    /// The value, with empty as unset.
    fn get(&self, variable: &str) -> Option<OsString> {
        (self.0)(variable).filter(|v| !v.is_empty())
    }

    fn text(&self, variable: &'static str) -> Result<Option<String>, Error> {
        self.get(variable)
            .map(OsString::into_string)
            .transpose()
            .map_err(|_| Error::new(variable, Cause::NotUtf8))
    }

    /// `None`: it is not set.
    fn flag(&self, variable: &'static str) -> Result<Option<bool>, Error> {
        match self.text(variable)?.as_deref() {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(other) => Err(Error::new(variable, Cause::NotAFlag(other.to_owned()))),
        }
    }

    fn traffic_file(&self) -> Result<Option<TrafficFile>, Error> {
        let limit = self.megabytes(env::TRAFFIC_FILE_MB, 1)?;
        let keep_key = self.flag(env::TRAFFIC_KEEP_KEY)?.unwrap_or(false);
        Ok(self.get(env::TRAFFIC_FILE).map(|path| TrafficFile {
            path: PathBuf::from(path),
            limit: limit.unwrap_or(DEFAULT_TRAFFIC_FILE_LIMIT),
            keep_key,
        }))
    }

    fn store(&self) -> Result<Option<StoreAt>, Error> {
        let limit = self.text(env::STORE_GB)?.map(|text| {
            read_gigabytes(&text).ok_or_else(|| Error::new(env::STORE_GB, Cause::Gigabytes(text)))
        });
        let limit = limit.transpose()?;
        let Some(folder) = self.get(env::STORE).map(PathBuf::from) else {
            return Ok(None);
        };
        match folder.is_absolute() {
            true => Ok(Some(StoreAt { folder, limit })),
            false => Err(Error::new(env::STORE, Cause::NotAbsolute)),
        }
    }

    fn index_url(&self, variable: &'static str) -> Result<Option<IndexUrl>, Error> {
        self.text(variable)?
            .map(|text| IndexUrl::parse(&text))
            .transpose()
            .map_err(|e| Error::new(variable, Cause::IndexUrl(e)))
    }

    fn token(&self, variable: &'static str) -> Result<Option<Secret>, Error> {
        let Some(token) = self.text(variable)? else {
            return Ok(None);
        };
        // The token becomes a header's value, which a newline would end.
        match token.chars().position(|c| !c.is_ascii_graphic()) {
            Some(at) => Err(Error::new(variable, Cause::TokenCharacter(at + 1))),
            None => Ok(Some(Secret::new(token))),
        }
    }

    fn listen(&self) -> Result<Option<Listen>, Error> {
        let text = self.text(env::LISTEN)?;
        text.map(|text| {
            text.parse()
                .map_err(|error| Error::new(env::LISTEN, Cause::Listen { text, error }))
        })
        .transpose()
    }

    fn kv_events(&self) -> Result<Option<KvEventsOf>, Error> {
        let connections = self.connections(env::KV_EVENTS_CONNECTIONS, MOST_ROUTERS)?;
        let Some(publish) = self.text(env::KV_EVENTS)? else {
            return Ok(None);
        };
        let given = Given {
            publish,
            replay: self.text(env::KV_EVENTS_REPLAY)?,
            topic: self.text(env::KV_EVENTS_TOPIC)?,
            block_size: self.text(env::KV_BLOCK_SIZE)?,
            adapters: self.text(env::KV_LORA_NAMES)?,
            connections: connections.unwrap_or(DEFAULT_ROUTERS),
        };
        let read = KvEventsOf::read(given).map_err(|(at, error)| {
            let variable = match at {
                At::Publish => env::KV_EVENTS,
                At::Replay => env::KV_EVENTS_REPLAY,
                At::Topic => env::KV_EVENTS_TOPIC,
                At::BlockSize => env::KV_BLOCK_SIZE,
                At::Adapters => env::KV_LORA_NAMES,
            };
            Error::new(variable, Cause::KvEvents(error))
        });
        read.map(Some)
    }

    fn megabytes(&self, variable: &'static str, least: u64) -> Result<Option<u64>, Error> {
        let Some(text) = self.text(variable)? else {
            return Ok(None);
        };
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(mb) if digits && (least..=LARGEST_MB).contains(&mb) => Ok(Some(mb << 20)),
            _ => Err(Error::new(variable, Cause::Megabytes { text, least })),
        }
    }

    fn connections(&self, variable: &'static str, most: usize) -> Result<Option<usize>, Error> {
        let Some(text) = self.text(variable)? else {
            return Ok(None);
        };
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits && (1..=most).contains(&number) => Ok(Some(number)),
            _ => Err(Error::new(variable, Cause::Connections { text, most })),
        }
    }

    fn milliseconds(&self, variable: &'static str, least: u64) -> Result<Option<Duration>, Error> {
        let Some(text) = self.text(variable)? else {
            return Ok(None);
        };
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(ms) if digits && (least..=LONGEST_MS).contains(&ms) => {
                Ok(Some(Duration::from_millis(ms)))
            }
            _ => Err(Error::new(variable, Cause::Milliseconds { text, least })),
        }
    }
}

/// An environment variable whose value cannot be used: its name, the reason, and what to
/// do. Shows no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    variable: &'static str,
    cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    NotUtf8,
    IndexUrl(IndexUrlError),
    TokenCharacter(usize),
    TwoAuthorizations,
    Milliseconds {
        text: String,
        least: u64,
    },
    Connections {
        text: String,
        most: usize,
    },
    NotAFlag(String),
    Listen {
        text: String,
        error: ListenAddressError,
    },
    OpenToAll,
    Megabytes {
        text: String,
        least: u64,
    },
    KvEvents(KvEventsError),
    Gigabytes(String),
    NotAbsolute,
}

impl Error {
    fn new(variable: &'static str, cause: Cause) -> Self {
        Self { variable, cause }
    }

    /// The variable at fault, one of [`env`](mod@crate::env).
    pub fn variable(&self) -> &'static str {
        self.variable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.variable;
        match &self.cause {
            Cause::NotUtf8 => write!(
                f,
                "{name} is not valid UTF-8: set it again, in plain characters"
            ),
            Cause::IndexUrl(error) => write!(f, "{name} cannot be used: {error}"),
            Cause::TokenCharacter(at) => write!(
                f,
                "{name} has a character at position {at} that no HTTP header may carry: \
                 a token is visible ASCII, without spaces or line ends"
            ),
            Cause::TwoAuthorizations => write!(
                f,
                "{name} is set, and {} has a user in it: both want the Authorization header, \
                 so remove one of them",
                env::INDEX_URL
            ),
            Cause::Milliseconds { text, least } => write!(
                f,
                "{name} is {:?}: give whole milliseconds, from {least} to {LONGEST_MS}",
                Shortened(text)
            ),
            Cause::Connections { text, most } => write!(
                f,
                "{name} is {:?}: give how many connections, from 1 to {most}",
                Shortened(text)
            ),
            Cause::NotAFlag(text) => write!(
                f,
                "{name} is {:?}: 1 turns it on, 0 turns it off",
                Shortened(text)
            ),
            Cause::Listen { text, error } => {
                write!(f, "{name} is {:?}: {error}", Shortened(text))
            }
            Cause::OpenToAll => write!(
                f,
                "{name} can be reached from other machines: set {} to a secret of your own, or \
                 listen on 127.0.0.1",
                env::LISTEN_TOKEN
            ),
            Cause::KvEvents(error) => {
                write!(f, "{name} ")?;
                error.show(f, |text| format!("{:?}", Shortened(text)))
            }
            Cause::Gigabytes(text) => write!(
                f,
                "{name} is {:?}: give a size in 10⁹ bytes, such as 20 or 0.5, up to {LARGEST_GB}",
                Shortened(text)
            ),
            Cause::NotAbsolute => {
                write!(f, "{name} is a relative path: give one that begins with /")
            }
            Cause::Megabytes { text, least } => write!(
                f,
                "{name} is {:?}: give whole MiB, from {least} to {LARGEST_MB}",
                Shortened(text)
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::IndexUrl(error) => Some(error),
            Cause::Listen { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A value for a message: escaped, and at most 64 characters of it.
struct Shortened<'a>(&'a str);

impl fmt::Debug for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(64) {
            Some((end, _)) => write!(f, "\"{}…\"", self.0[..end].escape_debug()),
            None => write!(f, "{:?}", self.0),
        }
    }
}
