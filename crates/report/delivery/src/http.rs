//! Sends a request over a kept-alive connection, and reads the answer.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::config::{Config as AgentConfig, ConfigBuilder};
use ureq::http::{HeaderValue, Uri, header};
use ureq::typestate::AgentScope;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body, Proxy, ProxyProtocol, RequestBuilder};

use crate::config::{Config, invalid};
use crate::redirect;
use crate::tls;
use crate::verdict::{IndexReply, Verdict, classify};

/// The most bytes that are read of an answer's body, besides what it repeats of the POST.
const MAX_BODY: u64 = 64 << 10;
/// An index lists the ids as it reads them, and again as those that it removed or does not know.
const REPEATED: u64 = 3;

const USER_AGENT: &str = concat!("contextpilot-llama/", env!("CARGO_PKG_VERSION"));

type Response = ureq::http::Response<Body>;

/// An answer, complete or as much of it as is needed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) status: u16,
    retry_after: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn verdict(&self) -> Verdict {
        classify(&IndexReply {
            status: self.status,
            retry_after: self.retry_after.as_deref(),
            body: &self.body,
        })
    }
}

/// No answer, or none that is HTTP.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    /// One line, fit to be shown.
    pub(crate) why: String,
    /// The connection was established, and ended before there was an answer. Some servers end it in
    /// this way if a body is too large for them.
    pub(crate) was_cut: bool,
}

/// Asks one endpoint.
pub(crate) struct Client {
    agent: Agent,
    endpoint: Uri,
    /// The endpoint is behind a Unix socket.
    is_unix: bool,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    connect_timeout: Duration,
}

impl Client {
    /// Reads the CA file, if one is set; opens no connection.
    pub(crate) fn new(config: &Config) -> io::Result<Self> {
        let url = match &config.socket {
            None => config.endpoint.clone(),
            // The host is for the `Host`.
            Some(socket) => format!("http://localhost{}", socket.target),
        };
        let endpoint: Uri = url
            .parse()
            .map_err(|e| invalid(format!("the index address cannot be used: {e}")))?;
        let authorization = config
            .authorization
            .as_deref()
            .map(|value| {
                let mut value = HeaderValue::from_str(value)
                    .map_err(|_| invalid("the index token has a character no header may carry"))?;
                value.set_sensitive(true);
                Ok::<_, io::Error>(value)
            })
            .transpose()?;
        let agent_config = agent_config(config)?;
        let agent = match &config.socket {
            None => Agent::with_parts(agent_config, DefaultConnector::new(), SameThread),
            Some(socket) => contextpilot_unix_http::agent(agent_config, &socket.path),
        };
        Ok(Client {
            agent,
            endpoint,
            is_unix: config.socket.is_some(),
            authorization,
            timeout: config.timeout,
            connect_timeout: config.connect_timeout,
        })
    }

    /// Posts `json` within `budget` (at most the configured timeout), following
    /// redirects to the same host.
    ///
    /// # Errors
    /// No answer, or none that is HTTP.
    pub(crate) fn post(&self, json: &[u8], budget: Duration) -> Result<Received, NoAnswer> {
        let most = MAX_BODY + REPEATED * json.len() as u64;
        self.follow(budget, most, |to, left| {
            let post = self.agent.post(to);
            let post = post.header(header::CONTENT_TYPE, "application/json");
            self.prepared(post, left).send(json)
        })
    }

    /// Asks with `GET`, as [`Self::post`] does.
    ///
    /// # Errors
    /// No answer, or none that is HTTP.
    pub(crate) fn get(&self) -> Result<Received, NoAnswer> {
        self.follow(self.timeout, MAX_BODY, |to, left| {
            self.prepared(self.agent.get(to), left).call()
        })
    }

    /// Sends, and sends again to where a redirect leads. Reads at most so many bytes of the body.
    fn follow(
        &self,
        budget: Duration,
        most: u64,
        send: impl Fn(&Uri, Duration) -> Result<Response, ureq::Error>,
    ) -> Result<Received, NoAnswer> {
        let start = Instant::now();
        let budget = budget.min(self.timeout);
        let mut to = self.endpoint.clone();
        let mut followed = 0;
        loop {
            let left = budget.saturating_sub(start.elapsed());
            let mut response = send(&to, left).map_err(no_answer)?;
            let status = response.status().as_u16();
            let header = |name| response.headers().get(name)?.to_str().ok();
            let next = header(header::LOCATION)
                .filter(|_| redirect::is_followable(status) && followed < redirect::MAX_REDIRECTS)
                .and_then(|location| redirect::target(&to, location))
                .filter(|next| !self.is_unix || redirect::is_same_server(&to, next));
            let retry_after = header(header::RETRY_AFTER).map(str::to_owned);
            let body = read_body(response.body_mut(), most);
            if let Some(next) = next {
                to = next;
                followed += 1;
                continue;
            }
            return Ok(Received {
                status,
                retry_after,
                body,
            });
        }
    }

    /// Adds the credentials, and limits the time to what is left.
    fn prepared<Any>(
        &self,
        mut request: RequestBuilder<Any>,
        left: Duration,
    ) -> RequestBuilder<Any> {
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        // ureq caches its TLS set-up only for requests that use the agent's own
        // configuration, so the limits are lowered only when they are lower.
        if left < self.timeout.saturating_sub(Duration::from_millis(1)) {
            let connect = left.min(self.connect_timeout);
            request = request
                .config()
                .timeout_global(Some(left))
                .timeout_connect(Some(connect))
                .build();
        }
        request
    }
}

/// A configuration that was begun before threads changed the environment: ureq reads variables whenever it begins a
/// configuration, also if all of them are replaced afterwards.
static BEGUN: Mutex<Option<ConfigBuilder<AgentScope>>> = Mutex::new(None);

/// Reads what the first [`Sender`](crate::Sender) with this configuration will need of the environment. For a process whose
/// threads change variables: to be called before there are any.
pub fn keep_environment(config: &Config) {
    tls::keep_systems(config);
    *BEGUN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Agent::config_builder());
}

/// What the index answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body, or the beginning of a long one.
    pub body: Vec<u8>,
}

/// Asks the endpoint of `config` with `GET`: by the same proxy, with the same trust, credentials and
/// redirects as a [`Sender`](crate::Sender) of this configuration.
///
/// # Errors
/// No answer, or a configuration that cannot be used: why, as a part of one line.
pub fn ask(config: &Config) -> Result<IndexAnswer, String> {
    let client = Client::new(config).map_err(|error| error.to_string())?;
    let received = client.get().map_err(|none| none.why)?;
    Ok(IndexAnswer {
        status: received.status,
        body: received.body,
    })
}

fn agent_config(config: &Config) -> io::Result<AgentConfig> {
    let begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner).take();
    let proxy = config.proxy.as_deref().and_then(|url| match proxy(url) {
        Ok(proxy) => Some(proxy),
        Err(why) => {
            (config.log)(&format!(
                "[ContextPilot] {why}; the index is asked directly. \
                 Name its host in no_proxy, or set an http:// proxy."
            ));
            None
        }
    });
    Ok(begun
        .unwrap_or_else(Agent::config_builder)
        .tls_config(tls::config(config)?)
        // Always set this: otherwise ureq would read the environment by itself.
        .proxy(proxy)
        .timeout_global(Some(config.timeout))
        .timeout_connect(Some(config.connect_timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(USER_AGENT)
        .accept("application/json")
        .accept_encoding("")
        .max_idle_connections(1)
        .build())
}

fn proxy(url: &str) -> Result<Proxy, &'static str> {
    // No part of the value is shown: it may hold a password.
    let proxy = Proxy::new(url).map_err(|_| "the proxy in the environment is not an address")?;
    if !matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) {
        return Err("the proxy in the environment is a SOCKS proxy, which is not supported");
    }
    Ok(proxy)
}

/// The beginning of the body, or as much of it as arrives. A truncated body never counts as one of the
/// index's own answers, and for other answers only the status matters.
fn read_body(body: &mut Body, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = body.as_reader().take(most).read_to_end(&mut bytes);
    bytes
}

fn no_answer(error: ureq::Error) -> NoAnswer {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let cut = |e: &io::Error| matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
    NoAnswer {
        why: describe(&error),
        was_cut: matches!(&error, ureq::Error::Io(e) if cut(e)),
    }
}

fn describe(error: &ureq::Error) -> String {
    use ureq::Error as E;
    let text = match error {
        // rustls reports a failed handshake as an I/O error.
        E::Io(e) => match e.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(tls) => describe_tls(tls),
            None => e.to_string(),
        },
        E::Rustls(e) => describe_tls(e),
        E::Timeout(ureq::Timeout::Connect) => {
            "timed out (connect): CONTEXTPILOT_INDEX_CONNECT_TIMEOUT_MS is how long that may take"
                .to_owned()
        }
        E::Timeout(_) => {
            "timed out: CONTEXTPILOT_INDEX_TIMEOUT_MS is how long an answer may take".to_owned()
        }
        E::HostNotFound => "its host name is not known".to_owned(),
        E::Protocol(e) => format!("the answer is not HTTP ({e})"),
        other => other.to_string(),
    };
    contextpilot_settings::one_line(&text, 200)
}

fn describe_tls(error: &rustls::Error) -> String {
    let advice = match error {
        rustls::Error::InvalidCertificate(_) => {
            "; if it is signed by an authority of your own, set CONTEXTPILOT_INDEX_CA to its PEM file"
        }
        _ => "",
    };
    format!("TLS: {error}{advice}")
}

/// Resolves names on the calling thread. ureq's own resolver starts a thread
/// for each look-up, which a library inside another process should not do. An
/// address needs no look-up.
#[derive(Debug)]
struct SameThread;

impl Resolver for SameThread {
    fn resolve(
        &self,
        uri: &Uri,
        config: &AgentConfig,
        _timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = uri.host().ok_or(ureq::Error::HostNotFound)?;
        let https = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let mut found = self.empty();
        if let Ok(address) = bare.parse::<IpAddr>() {
            found.push(SocketAddr::new(address, port));
            return Ok(found);
        }
        let family = config.ip_family();
        let addresses = family.keep_wanted((bare, port).to_socket_addrs()?);
        // 16 is the capacity of the collection.
        for address in addresses.take(16) {
            found.push(address);
        }
        if found.is_empty() {
            return Err(ureq::Error::HostNotFound);
        }
        Ok(found)
    }
}
