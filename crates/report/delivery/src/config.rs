use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contextpilot_settings::{Credentials, IndexUrl, Settings};

use crate::outbox::Limits;
use crate::proxy;
use crate::retry::RetryPolicy;

/// The endpoint of an index that takes evictions.
const EVICT: &str = "evict";

/// Gets one-line messages for people, without a newline. Called on the
/// sender thread only, and never while a lock is held.
pub type LogSink = Arc<dyn Fn(&str) + Send + Sync>;

/// An endpoint behind a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The path of the socket.
    pub path: PathBuf,
    /// The path to post to, such as `/evict`.
    pub target: String,
}

/// What a [`Sender`](crate::Sender) needs to know. `Debug` shows no secret.
#[derive(Clone)]
pub struct Config {
    /// The URL that evictions are posted to, without user info, so that it may be shown. If there is a
    /// `socket`, this is only for messages.
    pub endpoint: String,
    /// The Unix socket that `endpoint` names.
    pub socket: Option<Socket>,
    /// The value of the `Authorization` header.
    pub authorization: Option<String>,
    /// A PEM file of certificate authorities that replaces the system's.
    pub ca: Option<PathBuf>,
    /// The HTTP proxy, as a URL; see [`proxy::from_environment`].
    pub proxy: Option<String>,
    /// Time for connecting, name resolution excluded.
    pub connect_timeout: Duration,
    /// Time for one whole POST with its answer, redirects included.
    pub timeout: Duration,
    /// How failures are retried.
    pub retry: RetryPolicy,
    /// How much may wait.
    pub limits: Limits,
    /// Whether [`Sender::take_settled`](crate::Sender::take_settled) is going to be called.
    pub keep_settled: bool,
    /// Called before ids are sent that have waited, so that whatever [withdraws](crate::Sender::withdraw) one of them is not still
    /// on its way. On the sender thread, never while a lock is held, and not during a [drain](crate::Sender::drain).
    pub catch_up: fn(),
    /// Where messages go.
    pub log: LogSink,
}

impl Config {
    /// Posts to this URL with default timeouts, directly, without authorization.
    #[must_use]
    pub fn new(endpoint: impl Into<String>, log: LogSink) -> Self {
        Config {
            endpoint: endpoint.into(),
            socket: None,
            authorization: None,
            ca: None,
            proxy: None,
            connect_timeout: contextpilot_settings::DEFAULT_CONNECT_TIMEOUT,
            timeout: contextpilot_settings::DEFAULT_TIMEOUT,
            retry: RetryPolicy::default(),
            limits: Limits::default(),
            keep_settled: false,
            catch_up: || {},
            log,
        }
    }

    /// The configuration by the settings, or `None` if they name no index. `lookup` returns
    /// the usual proxy variables (see [`proxy::from_environment`]).
    #[must_use]
    pub fn from_settings(
        settings: &Settings,
        lookup: impl Fn(&str) -> Option<String>,
        log: LogSink,
    ) -> Option<Self> {
        Self::for_endpoint(EVICT, settings, lookup, log)
    }

    /// The same for another endpoint of the index, to [`ask`](crate::ask()).
    #[must_use]
    pub fn for_endpoint(
        endpoint: &str,
        settings: &Settings,
        lookup: impl Fn(&str) -> Option<String>,
        log: LogSink,
    ) -> Option<Self> {
        let index = settings.index.as_ref()?;
        Some(Config {
            socket: index.socket().map(|path| Socket {
                path: path.to_owned(),
                target: index.target(endpoint),
            }),
            authorization: match &settings.token {
                Some(token) => Some(format!("Bearer {}", token.expose())),
                None => index.basic_auth().map(basic),
            },
            ca: settings.ca.clone(),
            proxy: proxy_for(index, lookup),
            connect_timeout: settings.connect_timeout,
            timeout: settings.timeout,
            ..Config::new(index.endpoint(endpoint), log)
        })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("endpoint", &self.endpoint)
            .field("socket", &self.socket)
            .field("authorization", &self.authorization.as_ref().map(|_| "***"))
            .field("ca", &self.ca)
            .field("proxy", &self.proxy.as_ref().map(|_| "***"))
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("retry", &self.retry)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

fn proxy_for(index: &IndexUrl, lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    if index.is_loopback() {
        return None;
    }
    let scheme = index.scheme().to_string();
    proxy::from_environment(&scheme, &index.host(), index.port(), lookup)
}

/// RFC 7617.
fn basic(credentials: &Credentials) -> String {
    let password = credentials.password().map_or("", |p| p.expose());
    let pair = format!("{}:{password}", credentials.user());
    format!("Basic {}", STANDARD.encode(pair))
}

/// Something in the configuration that cannot be used.
pub(crate) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}
