//! Requests over a kept-alive connection, and their errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{HeaderValue, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::answer::HttpAnswer;
use crate::error::one_line;
use crate::{Error, Result};

const USER_AGENT: &str = concat!("contextpilot-llama/", env!("CARGO_PKG_VERSION"));

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// The longest silence within an endless answer. The control endpoint sends
/// something every five seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// A client for one address.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    agent: Agent,
    /// The URL before the path. For a Unix socket its host is a name that is never resolved.
    base: String,
    /// The address as it was given.
    shown: String,
    authorization: Option<HeaderValue>,
}

/// A time limit for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// For the whole exchange.
    Whole(Duration),
    /// Until the answer begins, which may be endless.
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
        // As a host it would be an old way to write an address of four numbers.
        if address.parse::<u16>().is_ok() {
            let why = format!("a port alone; as in http://127.0.0.1:{address}");
            return Err(fail(&why));
        }
        let url = if address.contains("://") {
            address.to_owned()
        } else {
            format!("http://{address}")
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
        Ok(Self {
            agent: contextpilot_unix_http::agent(agent_config(), &path),
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

    pub(crate) fn get(&self, path: &str, patience: Patience) -> Result<HttpAnswer> {
        self.get_with(path, &[], patience)
    }

    pub(crate) fn get_with(
        &self,
        path: &str,
        headers: &[(&str, String)],
        patience: Patience,
    ) -> Result<HttpAnswer> {
        let once = || {
            let mut request = self.agent.get(format!("{}{path}", self.base));
            for (name, value) in headers {
                request = request.header(*name, value);
            }
            self.prepared(request, patience).call()
        };
        let result = match once() {
            // The server may close a kept connection just when we use it.
            Err(error) if is_broken(&error) => once(),
            result => result,
        };
        self.exchange(result)
    }

    pub(crate) fn post(&self, path: &str, body: &Value, patience: Patience) -> Result<HttpAnswer> {
        let request = self
            .agent
            .post(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            // This must not be repeated, so it gets a new connection: llama-server closes
            // a connection after a streamed answer without announcing it.
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
    ) -> Result<HttpAnswer> {
        match result {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                Ok(HttpAnswer::new(parts.status, body, self.shown.clone()))
            }
            Err(error) => Err(self.told(&error)),
        }
    }

    fn told(&self, error: &ureq::Error) -> Error {
        use ureq::Error as E;
        let address = self.shown.clone();
        match tls_error(error) {
            Some(rustls::Error::InvalidCertificate(why)) => {
                let why = one_line(&why.to_string());
                return Error::Untrusted { address, why };
            }
            Some(rustls::Error::InvalidMessage(_)) => return Error::NoTls { address },
            _ => {}
        }
        let is_plain = self.base.starts_with("http:") && !address.starts_with("unix:");
        let why = match error {
            E::Timeout(ureq::Timeout::Connect) => "no connection in time".to_owned(),
            E::Timeout(_) => return Error::TimedOut { address },
            E::Protocol(e) => {
                let mut why = format!("not HTTP: {e}");
                if is_plain {
                    why += "; if it speaks TLS, write https://";
                }
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
        let why = if is_plain && is_broken(error) {
            format!("{why}; if it speaks TLS, write https://")
        } else {
            why
        };
        Error::Unreachable { address, why }
    }
}

/// What rustls says of a connection.
fn tls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

fn agent_config() -> ureq::config::Config {
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::PlatformVerifier);
    Agent::config_builder()
        .tls_config(tls.build())
        // The addresses are near, so proxies of the environment are not used.
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
            "8082",
        ] {
            assert!(matches!(base(wrong), Err(Error::Address { .. })), "{wrong}");
        }
    }
}
