use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::kv_events::{At, Given, KvEventsError, KvEventsOf};
use crate::listen::{Listen, ListenAddressError};
use crate::secret::Secret;
use crate::store::{LARGEST_GB, REMOTE_FORMS, StoreAt, is_remote, read_gigabytes, shown_remote};
use crate::table::{self, Flag, Number, Setting, env};
use crate::url::{IndexUrl, IndexUrlError};

#[cfg(test)]
mod tests;

/// Default for [`Settings::connect_timeout`].
pub const DEFAULT_CONNECT_TIMEOUT: Duration = table::INDEX_CONNECT_TIMEOUT_MS.default_time();
/// Default for [`Settings::timeout`].
pub const DEFAULT_TIMEOUT: Duration = table::INDEX_TIMEOUT_MS.default_time();
/// Default for [`Settings::listen_connections`].
pub const DEFAULT_LISTEN_CONNECTIONS: usize = table::LISTEN_CONNECTIONS.kind.default as usize;
/// Bytes for the last requests, unless `CONTEXTPILOT_RECENT_MB` says otherwise.
pub const DEFAULT_RECENT_BYTES: usize = (table::RECENT_MB.kind.default as usize) << 20;
/// Default for [`KvEvents::connections`](crate::KvEvents::connections).
pub const DEFAULT_ROUTERS: usize = table::KV_EVENTS_CONNECTIONS.kind.default as usize;

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
    /// The program that reports what a killed server held, as soon as it was killed; `None`: only the next start does.
    pub watcher: Option<Watcher>,
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
    /// Bytes for the last requests; `None`: they are not kept.
    pub recent_limit: Option<u64>,
    /// Whether some text of prompts is to be shown where they differ.
    pub explain_text: bool,
    /// The recording of traffic; `None`: there is none.
    pub traffic_file: Option<TrafficFile>,
    /// Whether prompts get the tokens of earlier answers where their text is the same.
    pub keep_tokens: bool,
    /// Also where JSON in an answer came back spelled otherwise, and is equal.
    pub keep_calls: bool,
    /// The prefix store; `None`: there is none.
    pub store: Option<StoreAt>,
    /// Whether the hook is to work in programs that are no llama-server.
    pub engine: bool,
    /// File that gets every event and effect. Not opened here.
    pub trace_file: Option<PathBuf>,
    /// Whether the server is to end if the hook, or a file that a setting names, cannot be used.
    pub strict: bool,
}

/// The program that runs beside a server until it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watcher {
    /// `contextpilot-llama`, wherever it is. The launcher finds it.
    Auto,
    /// An absolute path.
    At(PathBuf),
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

impl TrafficFile {
    /// Whether a file is one that was set aside for a newer one (`<file>.1`), and not the recording of a router's model
    /// (`<file>.<model>`). `behind`: its name behind that of the setting and a dot.
    #[must_use]
    pub fn is_aside(behind: &str) -> bool {
        behind == "1" || behind.ends_with(".1")
    }
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
        let connect_timeout = vars.time(&table::INDEX_CONNECT_TIMEOUT_MS)?;
        let timeout = vars.time(&table::INDEX_TIMEOUT_MS)?;
        let exit_drain = vars.time(&table::EXIT_DRAIN_MS)?;
        let journal = vars.flag(&table::JOURNAL)?;
        let listen = vars.listen()?;
        let listen_token = vars.token(env::LISTEN_TOKEN)?;
        if listen_token.is_none() && listen.as_ref().is_some_and(|at| !at.is_local()) {
            return Err(Error::new(env::LISTEN, Cause::OpenToAll));
        }
        let explain_limit = vars.bytes(&table::EXPLAIN_MB)?;
        let recent_limit = vars.bytes(&table::RECENT_MB)?;
        let (keep_tokens, keep_calls) = vars.keep_tokens()?;
        Ok(Self {
            index,
            token,
            ca: vars.path(env::INDEX_CA),
            connect_timeout,
            timeout,
            exit_drain: (!exit_drain.is_zero()).then_some(exit_drain),
            journal,
            watcher: vars.watcher()?,
            listen,
            index_in_front,
            listen_token,
            listen_connections: vars.count(&table::LISTEN_CONNECTIONS)?,
            listen_timeout: vars.time(&table::LISTEN_TIMEOUT_MS)?,
            log_file: vars.path(env::LOG_FILE),
            log_file_limit: vars.bytes(&table::LOG_FILE_MB)?,
            kv_events: vars.kv_events()?,
            explain_limit: (explain_limit > 0).then_some(explain_limit),
            recent_limit: (recent_limit > 0).then_some(recent_limit),
            explain_text: vars.flag(&table::EXPLAIN_TEXT)?,
            traffic_file: vars.traffic_file()?,
            keep_tokens,
            keep_calls,
            store: vars.store()?,
            trace_file: vars.path(env::TRACE_FILE),
            engine: vars.flag(&table::ENGINE)?,
            strict: vars.flag(&table::STRICT)?,
        })
    }

    /// Whether any setting gives the hook something to do.
    pub fn is_engaged(&self) -> bool {
        self.index.is_some()
            || self.observes()
            || self.kv_events.is_some()
            || self.store.is_some()
            || self.keep_tokens
    }

    /// Whether the hook needs to see prompts being tokenized: it keeps tokens, or counts them for the control endpoint.
    pub fn wants_tokens(&self) -> bool {
        self.keep_tokens || self.listen.is_some()
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
    let mut engaging = table::ALL.iter().filter(|setting| setting.engages());
    engaging.any(|setting| vars.get(setting.name).is_some())
}

/// The settings that do nothing, as another one is not set, in the order of the table. What says the default is none of them.
pub fn idle(lookup: impl Fn(&str) -> Option<OsString>) -> Vec<Error> {
    let vars = Vars(&lookup);
    let is_wanted = is_wanted(&lookup);
    let is_idle = |setting: &&Setting| {
        let value = vars.get(setting.name);
        value.is_some_and(|value| !setting.has_default(&value))
    };
    let set = table::ALL.iter().filter(is_idle);
    let without = set.filter_map(|setting| {
        let needed = setting.needs()?;
        let is_there = match needed {
            [] => is_wanted,
            needed => needed.iter().any(|name| vars.get(name).is_some()),
        };
        (!is_there).then(|| Error::new(setting.name, Cause::Idle(needed)))
    });
    without.collect()
}

/// Reads an on/off setting: `0` is off, `1` is on, unset and empty are its default.
///
/// # Errors
/// Any other value. A wrong guess at the meaning of `no`, `off` or ` 1` could turn off a
/// safety that the user believes to be on.
pub fn flag(
    lookup: impl Fn(&str) -> Option<OsString>,
    setting: &Setting<Flag>,
) -> Result<bool, Error> {
    Vars(lookup).flag(setting)
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

    fn path(&self, variable: &str) -> Option<PathBuf> {
        self.get(variable).map(PathBuf::from)
    }

    fn flag(&self, setting: &Setting<Flag>) -> Result<bool, Error> {
        match self.text(setting.name)?.as_deref() {
            None => Ok(setting.kind.default),
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(Error::new(setting.name, Cause::NotAFlag(other.to_owned()))),
        }
    }

    /// Whether prompts get the tokens of earlier answers, and whether also where JSON is spelled otherwise.
    fn keep_tokens(&self) -> Result<(bool, bool), Error> {
        match self.text(env::KEEP_TOKENS)?.as_deref() {
            None | Some("0") => Ok((false, false)),
            Some("1") => Ok((true, false)),
            Some("calls") => Ok((true, true)),
            Some(other) => {
                let cause = Cause::NotKept(other.to_owned());
                Err(Error::new(env::KEEP_TOKENS, cause))
            }
        }
    }

    fn number(&self, setting: &Setting<Number>) -> Result<u64, Error> {
        let range = setting.kind;
        let Some(text) = self.text(setting.name)? else {
            return Ok(range.default);
        };
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits && (range.least..=range.most).contains(&number) => Ok(number),
            _ => Err(Error::new(setting.name, Cause::Number { text, range })),
        }
    }

    fn time(&self, setting: &Setting<Number>) -> Result<Duration, Error> {
        self.number(setting).map(Duration::from_millis)
    }

    fn bytes(&self, setting: &Setting<Number>) -> Result<u64, Error> {
        Ok(self.number(setting)? << 20)
    }

    /// The ranges of such settings are far within a `usize`.
    fn count(&self, setting: &Setting<Number>) -> Result<usize, Error> {
        Ok(self.number(setting)? as usize)
    }

    fn watcher(&self) -> Result<Option<Watcher>, Error> {
        match self.path(env::WATCHER) {
            None => Ok(None),
            Some(path) if path.as_os_str() == "auto" => Ok(Some(Watcher::Auto)),
            Some(path) if path.is_absolute() => Ok(Some(Watcher::At(path))),
            Some(_) => Err(Error::new(env::WATCHER, Cause::NoWatcher)),
        }
    }

    fn traffic_file(&self) -> Result<Option<TrafficFile>, Error> {
        let limit = self.bytes(&table::TRAFFIC_FILE_MB)?;
        let keep_key = self.flag(&table::TRAFFIC_KEEP_KEY)?;
        Ok(self.path(env::TRAFFIC_FILE).map(|path| TrafficFile {
            path,
            limit,
            keep_key,
        }))
    }

    fn store(&self) -> Result<Option<StoreAt>, Error> {
        let limit = self.text(env::STORE_GB)?.map(|text| {
            read_gigabytes(&text).ok_or_else(|| Error::new(env::STORE_GB, Cause::Gigabytes(text)))
        });
        let limit = limit.transpose()?;
        let bounded = self.flag(&table::STORE_BOUNDED)?;
        let usage = self.flag(&table::STORE_USAGE)?;
        let remote = self.remote()?;
        let Some(folder) = self.path(env::STORE) else {
            // What was meant is not known.
            let asking = [env::STORE_REMOTE, env::STORE_GB]
                .into_iter()
                .find(|name| self.get(name).is_some());
            let strict = self.flag(&table::STRICT)?;
            return match asking.filter(|_| strict) {
                Some(name) => Err(Error::new(name, Cause::Idle(&[env::STORE]))),
                None => Ok(None),
            };
        };
        if folder.is_absolute() {
            Ok(Some(StoreAt {
                folder,
                limit,
                remote,
                bounded,
                usage,
            }))
        } else {
            Err(Error::new(env::STORE, Cause::NotAbsolute))
        }
    }

    fn remote(&self) -> Result<Option<Secret>, Error> {
        match self.text(env::STORE_REMOTE)? {
            Some(text) if !is_remote(&text) => {
                let shown = shown_remote(&text);
                Err(Error::new(env::STORE_REMOTE, Cause::Remote(shown)))
            }
            remote => Ok(remote.map(Secret::new)),
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
        let connections = self.count(&table::KV_EVENTS_CONNECTIONS)?;
        let Some(publish) = self.text(env::KV_EVENTS)? else {
            return Ok(None);
        };
        let given = Given {
            publish,
            replay: self.text(env::KV_EVENTS_REPLAY)?,
            topic: self.text(env::KV_EVENTS_TOPIC)?,
            block_size: self.number(&table::KV_BLOCK_SIZE)? as u32,
            adapters: self.text(env::KV_LORA_NAMES)?,
            connections,
        };
        let read = KvEventsOf::read(given).map_err(|(at, error)| {
            let variable = match at {
                At::Publish => env::KV_EVENTS,
                At::Replay => env::KV_EVENTS_REPLAY,
                At::Topic => env::KV_EVENTS_TOPIC,
                At::Adapters => env::KV_LORA_NAMES,
            };
            Error::new(variable, Cause::KvEvents(error))
        });
        read.map(Some)
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
    Number {
        text: String,
        range: Number,
    },
    NotAFlag(String),
    NotKept(String),
    Listen {
        text: String,
        error: ListenAddressError,
    },
    OpenToAll,
    KvEvents(KvEventsError),
    Gigabytes(String),
    NotAbsolute,
    /// The address, as it may be shown.
    Remote(String),
    NoWatcher,
    /// None of these is set, or, without any, nothing that asks for the hook.
    Idle(&'static [&'static str]),
}

impl Error {
    fn new(variable: &'static str, cause: Cause) -> Self {
        Self { variable, cause }
    }

    /// It does nothing, as no setting asks for the hook.
    pub fn lacks_hook(&self) -> bool {
        matches!(self.cause, Cause::Idle([]))
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
            Cause::Number { text, range } => write!(
                f,
                "{name} is {:?}: give {}, from {} to {} ({} if it is not set)",
                Shortened(text),
                range.unit,
                range.least,
                range.most,
                range.default
            ),
            Cause::NotAFlag(text) => write!(
                f,
                "{name} is {:?}: 1 turns it on, 0 turns it off",
                Shortened(text)
            ),
            Cause::NotKept(text) => write!(
                f,
                "{name} is {:?}: 1 turns it on, 0 turns it off, and calls turns it on for JSON that came back spelled otherwise, \
                 too",
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
            Cause::Remote(shown) => write!(f, "{name} is {:?}: {REMOTE_FORMS}", Shortened(shown)),
            Cause::NoWatcher => write!(
                f,
                "{name} is neither auto nor a path that begins with /: auto is right for contextpilot-llama-server and \
                 contextpilot-llama run"
            ),
            Cause::Idle([]) => write!(
                f,
                "{name} does nothing, as no setting asks for the hook: to see what is in the cache, set {}=auto, too",
                env::LISTEN
            ),
            Cause::Idle(needed) => {
                let which = match needed {
                    [_] => "it",
                    _ => "one of them",
                };
                write!(
                    f,
                    "{name} does nothing without {}: set {which}, too",
                    needed.join(" or ")
                )
            }
        }
    }
}

/// Its text says what caused it.
impl std::error::Error for Error {}

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
