//! One exchange over a kept-alive connection, and what went wrong with it.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::{HeaderValue, StatusCode, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body};

use crate::error::one_line;
use crate::{Error, Result};

/// Most that is read of an answer that is read whole. A slot's state with a
/// prompt of a million tokens is some megabytes.
const MAX_BODY: u64 = 64 << 20;

const USER_AGENT: &str = concat!("contextpilot-llama/", env!("CARGO_PKG_VERSION"));

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// Longest silence within an answer without an end. The control endpoint says
/// something every five seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// Speaks to one address.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    agent: Agent,
    /// What paths are put behind; for a unix socket a name that nobody looks up.
    base: String,
    /// The address as it was given.
    shown: String,
    authorization: Option<HeaderValue>,
}

/// How long an exchange may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// In all.
    Whole(Duration),
    /// Until the answer begins; it need not end.
    Head(Duration),
}

impl Http {
    /// Reads the address: `http://host:port[/prefix]`, `https://…`, `host:port`
    /// or `unix:/path`. Opens no connection.
    pub(crate) fn new(address: &str) -> Result<Self> {
        let fail = |why: &str| Error::Address {
            given: one_line(address),
            why: why.to_owned(),
        };
        if let Some(path) = address.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(fail("the path of a socket begins with /"));
            }
            return Self::unix(path.into(), address);
        }
        let url = match address.contains("://") {
            true => address.to_owned(),
            false => format!("http://{address}"),
        };
        let url = url.trim_end_matches('/');
        let uri: Uri = url.parse().map_err(|e| fail(&format!("{e}")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(fail("only http, https and unix are spoken"));
        }
        if uri.query().is_some() || uri.authority().is_some_and(|a| a.as_str().contains('@')) {
            return Err(fail("it has more than host, port and path"));
        }
        Ok(Self {
            agent: agent_config().new_agent(),
            base: url.to_owned(),
            shown: address.to_owned(),
            authorization: None,
        })
    }

    #[cfg(unix)]
    fn unix(path: PathBuf, shown: &str) -> Result<Self> {
        let connector = crate::unix::UnixConnector(path);
        Ok(Self {
            agent: Agent::with_parts(agent_config(), connector, DefaultResolver::default()),
            base: "http://localhost".to_owned(),
            shown: shown.to_owned(),
            authorization: None,
        })
    }

    #[cfg(not(unix))]
    fn unix(_: PathBuf, shown: &str) -> Result<Self> {
        Err(Error::Address {
            given: one_line(shown),
            why: "there are no unix sockets here".to_owned(),
        })
    }

    /// Sends `Authorization: Bearer …` from now on.
    pub(crate) fn authorize(&mut self, token: &str) -> Result<()> {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| Error::Unauthorized {
                message: "the key has a character that no header may carry".to_owned(),
            })?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(())
    }

    /// The address as it was given.
    pub(crate) fn address(&self) -> &str {
        &self.shown
    }

    pub(crate) fn get(&self, path: &str, patience: Patience) -> Result<Answer> {
        self.get_with(path, &[], patience)
    }

    pub(crate) fn get_with(
        &self,
        path: &str,
        headers: &[(&str, String)],
        patience: Patience,
    ) -> Result<Answer> {
        let once = || {
            let mut request = self.agent.get(format!("{}{path}", self.base));
            for (name, value) in headers {
                request = request.header(*name, value);
            }
            self.prepared(request, patience).call()
        };
        let result = match once() {
            // A kept connection may be closed by the server just as it is used.
            Err(error) if is_broken(&error) => once(),
            result => result,
        };
        self.exchange(result)
    }

    pub(crate) fn post(&self, path: &str, body: &Value, patience: Patience) -> Result<Answer> {
        let request = self
            .agent
            .post(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            // Not to be repeated, so on no connection that may break: llama-server closes
            // one after a streamed answer without having said so.
            .header(header::CONNECTION, "close");
        self.exchange(self.prepared(request, patience).send(body.to_string()))
    }

    fn prepared<B>(
        &self,
        mut request: ureq::RequestBuilder<B>,
        patience: Patience,
    ) -> ureq::RequestBuilder<B> {
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let config = request.config().timeout_connect(Some(CONNECT));
        match patience {
            Patience::Whole(limit) => config.timeout_global(Some(limit)),
            Patience::Head(limit) => config
                .timeout_recv_response(Some(limit))
                .timeout_per_read(Some(SILENCE)),
        }
        .build()
    }

    fn exchange(
        &self,
        result: std::result::Result<ureq::http::Response<Body>, ureq::Error>,
    ) -> Result<Answer> {
        match result {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                Ok(Answer {
                    status: parts.status,
                    body,
                    address: self.shown.clone(),
                })
            }
            Err(error) => Err(self.told(&error)),
        }
    }

    fn told(&self, error: &ureq::Error) -> Error {
        use ureq::Error as E;
        let address = self.shown.clone();
        let why = match error {
            E::Timeout(ureq::Timeout::Connect) => "no connection in time".to_owned(),
            E::Timeout(_) => return Error::TimedOut { address },
            E::Protocol(e) => {
                let why = format!("not HTTP: {e}");
                return Error::Unexpected { address, why };
            }
            E::HostNotFound => "its host name is not known".to_owned(),
            // As the system puts it, without the number.
            E::Io(e) => match e.kind() {
                std::io::ErrorKind::ConnectionRefused => "nothing listens there".to_owned(),
                std::io::ErrorKind::NotFound => "there is no such socket".to_owned(),
                _ => one_line(&e.to_string()),
            },
            other => one_line(&other.to_string()),
        };
        Error::Unreachable { address, why }
    }
}

fn agent_config() -> ureq::config::Config {
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::PlatformVerifier);
    Agent::config_builder()
        .tls_config(tls.build())
        // What is asked here is near; the environment's proxies are for what is far.
        .proxy(None)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(USER_AGENT)
        .accept("application/json, */*")
        .accept_encoding("")
        // llama-server closes a connection that was quiet for five seconds.
        .max_idle_age(Duration::from_secs(2))
        .build()
}

fn is_broken(error: &ureq::Error) -> bool {
    use std::io::ErrorKind as K;
    let ureq::Error::Io(error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        K::UnexpectedEof | K::ConnectionReset | K::ConnectionAborted | K::BrokenPipe
    )
}

/// The head of an answer; the body stays to be read.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    body: Body,
    address: String,
}

impl Answer {
    /// The body of a success, as JSON.
    pub(crate) fn json<T: DeserializeOwned>(self) -> Result<T> {
        self.success()?.json_whatever_the_status()
    }

    /// The body as JSON, where the status only repeats what it says.
    pub(crate) fn json_whatever_the_status<T: DeserializeOwned>(self) -> Result<T> {
        let address = self.address.clone();
        let text = self.text()?;
        serde_json::from_str(&text).map_err(|e| Error::Unexpected {
            address,
            why: format!(
                "{e} in {:?}",
                one_line(&text.chars().take(80).collect::<String>())
            ),
        })
    }

    /// The body, whatever the status.
    pub(crate) fn text(mut self) -> Result<String> {
        let mut bytes = Vec::new();
        let read = self.body.as_reader().take(MAX_BODY).read_to_end(&mut bytes);
        match read {
            Ok(_) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(e) => Err(Error::Unreachable {
                address: self.address,
                why: one_line(&format!("the answer broke off: {e}")),
            }),
        }
    }

    /// The body as it arrives.
    pub(crate) fn reader(self) -> (impl Read + Send + 'static, String) {
        (self.body.into_reader(), self.address)
    }

    /// Itself, unless its status tells of an error.
    pub(crate) fn success(self) -> Result<Self> {
        let status = self.status;
        if status.is_success() {
            return Ok(self);
        }
        let text = self.text()?;
        Err(refused(status.as_u16(), &message(&text)))
    }
}

/// What an error's body says: llama-server and OpenAI put it into
/// `error.message`, the control endpoint and others into `error` or `detail`.
pub(crate) fn message(body: &str) -> String {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    let said = [
        &value["error"]["message"],
        &value["error"],
        &value["message"],
        &value["detail"],
    ]
    .into_iter()
    .find_map(Value::as_str)
    .map(str::to_owned);
    one_line(said.as_deref().unwrap_or(body).trim())
}

fn refused(status: u16, message: &str) -> Error {
    let message = message.to_owned();
    match status {
        401 | 403 => Error::Unauthorized { message },
        503 if message.to_ascii_lowercase().contains("loading model") => Error::Loading,
        501 => Error::Disabled {
            flag: match () {
                () if message.contains("--slot-save-path") => "--slot-save-path <folder>",
                () if message.contains("--metrics") => "--metrics",
                () if message.contains("--slots") => "--slots",
                () => return Error::Refused { status, message },
            },
        },
        400 if message.contains("exceed") && message.contains("context") => {
            Error::TooLong { message }
        }
        _ => Error::Refused { status, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let base = |address: &str| Http::new(address).map(|http| http.base);
        let url = "http://127.0.0.1:8080";
        for address in [url, "http://127.0.0.1:8080/", "127.0.0.1:8080"] {
            assert_eq!(base(address).as_deref(), Ok(url), "{address}");
        }
        let prefixed = base("https://example.org/llama/");
        assert_eq!(prefixed.as_deref(), Ok("https://example.org/llama"));
        assert_eq!(base("unix:/run/a.sock").as_deref(), Ok("http://localhost"));
        for wrong in [
            "",
            "ftp://host",
            "unix:relative",
            "http://user@host",
            "a b",
            "http://h/?q",
        ] {
            assert!(matches!(base(wrong), Err(Error::Address { .. })), "{wrong}");
        }
    }

    #[test]
    fn what_an_error_says_is_found() {
        for body in [
            r#"{"error":{"code":400,"message":"so"}}"#,
            r#"{"error":"so"}"#,
            r#"{"detail":"so"}"#,
            "so\n",
        ] {
            assert_eq!(message(body), "so", "{body}");
        }
        assert_eq!(message("a\u{1b}[2J\nb"), "a [2J b");
    }

    #[test]
    fn errors_name_what_to_do() {
        let loading = refused(503, "Loading model");
        assert_eq!(loading, Error::Loading);
        let metrics = refused(501, "Start it with `--metrics`").to_string();
        assert!(metrics.ends_with("start it with --metrics"), "{metrics}");
        let key = refused(401, "Invalid API Key").to_string();
        assert!(key.contains("give the key or token"), "{key}");
    }
}
