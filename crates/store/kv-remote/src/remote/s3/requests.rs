//! Requests to a bucket's server, one at a time.

use std::error::Error as _;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use rusty_s3::{Bucket, Credentials, S3Action};
use ureq::http::{Response, StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy, Timeout};

use super::address::Address;
use super::answers::{Page, code, page};
use crate::remote::holder::{RemoteError, Trouble, tls_advice};

const CONNECT: Duration = Duration::from_secs(5);
/// For the next bytes of a request or an answer. A test waits for it.
const STEP: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });
/// For a whole request, besides the time for its bytes.
const WHOLE: Duration = Duration::from_secs(20);
/// Bytes a second, at least.
const SLOWEST: u64 = 1 << 20;
/// How long a signature is good. The clocks may differ by as much.
const SIGNED: Duration = Duration::from_secs(900);
/// Bytes of a page of a list. It has a thousand objects.
const LARGEST_PAGE: u64 = 2 << 20;
/// Bytes of an error.
const LARGEST_ERROR: u64 = 64 << 10;

/// Asks a bucket's server.
pub(super) struct Requests {
    agent: Agent,
    address: Address,
}

/// What is at a key.
pub(super) enum ObjectAnswer {
    /// The object, and its version.
    Whole { bytes: Vec<u8>, version: String },
    /// It has the version that was named.
    Same,
    /// It is larger than was allowed.
    TooLarge,
    /// There is no object.
    Nothing,
}

type Got = Result<Response<Body>, ureq::Error>;

impl Requests {
    pub(super) fn new(address: Address) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::PlatformVerifier);
        let proxy = if address.is_near {
            None
        } else {
            Proxy::try_from_env()
        };
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .proxy(proxy)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(STEP))
            .timeout_per_write(Some(STEP))
            .user_agent(concat!("contextpilot-llama/", env!("CARGO_PKG_VERSION")))
            .accept("*/*")
            .accept_encoding("");
        Self {
            agent: config.build().into(),
            address,
        }
    }

    pub(super) fn shown(&self) -> &str {
        &self.address.shown
    }

    fn bucket(&self) -> (&Bucket, Option<&Credentials>) {
        (&self.address.bucket, Some(&self.address.credentials))
    }

    /// Returns the object's version.
    pub(super) fn put(&self, key: &str, bytes: &[u8]) -> Result<String, RemoteError> {
        let (bucket, credentials) = self.bucket();
        let url = bucket.put_object(credentials, key).sign(SIGNED);
        let request = self
            .agent
            .put(url.as_str())
            .config()
            .timeout_global(time_for(bytes.len() as u64));
        let mut answer = self.answer(request.build().send(bytes))?;
        match answer.status() {
            StatusCode::OK => self.version(&answer),
            _ => Err(self.refusal(&mut answer)),
        }
    }

    /// What is at a key, unless it still is of this version, or larger than that.
    pub(super) fn get(
        &self,
        key: &str,
        version: Option<&str>,
        largest: u64,
    ) -> Result<ObjectAnswer, RemoteError> {
        let (bucket, credentials) = self.bucket();
        let url = bucket.get_object(credentials, key).sign(SIGNED);
        let mut request = self.agent.get(url.as_str());
        if let Some(version) = version {
            request = request.header(header::IF_NONE_MATCH, version);
        }
        let request = request.config().timeout_global(time_for(largest));
        let mut answer = self.answer(request.build().call())?;
        match answer.status() {
            StatusCode::OK => {
                let version = self.version(&answer)?;
                Ok(match self.body(&mut answer, largest)? {
                    Some(bytes) => ObjectAnswer::Whole { bytes, version },
                    None => ObjectAnswer::TooLarge,
                })
            }
            StatusCode::NOT_MODIFIED if version.is_some() => Ok(ObjectAnswer::Same),
            StatusCode::NOT_FOUND => self.no_such_key(&mut answer, ObjectAnswer::Nothing),
            _ => Err(self.refusal(&mut answer)),
        }
    }

    /// The first bytes of an object. `None`: there is none.
    pub(super) fn head(&self, key: &str, bytes: u64) -> Result<Option<Vec<u8>>, RemoteError> {
        let (bucket, credentials) = self.bucket();
        let url = bucket.get_object(credentials, key).sign(SIGNED);
        let last = bytes.saturating_sub(1);
        let request = self
            .agent
            .get(url.as_str())
            .header(header::RANGE, format!("bytes=0-{last}"))
            .config()
            .timeout_global(time_for(bytes));
        let mut answer = self.answer(request.build().call())?;
        match answer.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
                let mut some = answer.body_mut().as_reader().take(bytes);
                let mut head = Vec::new();
                let read = some.read_to_end(&mut head);
                read.map_err(|error| self.trouble(&error.into()))?;
                Ok(Some(head))
            }
            StatusCode::NOT_FOUND => self.no_such_key(&mut answer, None),
            _ => Err(self.refusal(&mut answer)),
        }
    }

    /// Removes an object. A refusal (403) counts as done: the object is only there for nothing.
    pub(super) fn delete(&self, key: &str) -> Result<(), RemoteError> {
        let (bucket, credentials) = self.bucket();
        let url = bucket.delete_object(credentials, key).sign(SIGNED);
        let request = self
            .agent
            .delete(url.as_str())
            .config()
            .timeout_global(time_for(0));
        let mut answer = self.answer(request.build().call())?;
        match answer.status() {
            StatusCode::OK | StatusCode::NO_CONTENT => Ok(()),
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => Ok(()),
            _ => Err(self.refusal(&mut answer)),
        }
    }

    /// A page of the list of what begins with this.
    pub(super) fn list(&self, begin: &str, from: Option<&str>) -> Result<Page, RemoteError> {
        let (bucket, credentials) = self.bucket();
        // A list is what is at the bucket itself. rusty-s3 has an action for it only together with a reader of XML
        // that insists on a namespace.
        let mut list = bucket.get_object(credentials, "");
        list.query_mut().insert("list-type", "2");
        list.query_mut().insert("max-keys", "1000");
        list.query_mut().insert("prefix", begin.to_owned());
        if let Some(from) = from {
            list.query_mut()
                .insert("continuation-token", from.to_owned());
        }
        let request = self
            .agent
            .get(list.sign(SIGNED).as_str())
            .config()
            .timeout_global(time_for(LARGEST_PAGE));
        let mut answer = self.answer(request.build().call())?;
        if answer.status() != StatusCode::OK {
            return Err(self.refusal(&mut answer));
        }
        let body = self.body(&mut answer, LARGEST_PAGE)?.unwrap_or_default();
        let text = std::str::from_utf8(&body).ok();
        text.and_then(page).ok_or_else(|| self.nonsense())
    }

    fn answer(&self, got: Got) -> Result<Response<Body>, RemoteError> {
        got.map_err(|error| self.trouble(&error))
    }

    /// `None`: it is larger than that.
    fn body(
        &self,
        answer: &mut Response<Body>,
        largest: u64,
    ) -> Result<Option<Vec<u8>>, RemoteError> {
        // ureq refuses a body that is as long as the limit.
        let limit = largest.saturating_add(1);
        let body = answer.body_mut().with_config().limit(limit).read_to_vec();
        match body {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ureq::Error::BodyExceedsLimit(_)) => Ok(None),
            Err(error) => Err(self.trouble(&error)),
        }
    }

    /// Each object has one: a server that answers without it is no such server.
    fn version(&self, answer: &Response<Body>) -> Result<String, RemoteError> {
        let header = answer.headers().get(header::ETAG);
        let version = header.and_then(|header| header.to_str().ok());
        Ok(version.ok_or_else(|| self.nonsense())?.to_owned())
    }

    fn nonsense(&self) -> RemoteError {
        self.error(Trouble::Refused, "it does not answer as S3 does")
    }

    fn refusal(&self, answer: &mut Response<Body>) -> RemoteError {
        self.refusal_with_code(answer).0
    }

    /// What that means if only the object is not there.
    fn no_such_key<T>(&self, answer: &mut Response<Body>, means: T) -> Result<T, RemoteError> {
        match self.refusal_with_code(answer) {
            (_, Some(code)) if code == "NoSuchKey" => Ok(means),
            (error, _) => Err(error),
        }
    }

    fn refusal_with_code(&self, answer: &mut Response<Body>) -> (RemoteError, Option<String>) {
        let status = answer.status();
        let header = answer.headers().get("x-amz-bucket-region");
        let region = header
            .and_then(|header| header.to_str().ok())
            .filter(|region| *region != self.address.bucket.region())
            .map(str::to_owned);
        let body = answer.body_mut().with_config().limit(LARGEST_ERROR);
        let code = body.read_to_string().ok().and_then(|text| code(&text));
        let named = code.as_deref().unwrap_or_default();
        let is_full = status == StatusCode::INSUFFICIENT_STORAGE
            || named.contains("StorageFull")
            || named.contains("QuotaExceeded");
        let trouble = match status {
            _ if is_full => Trouble::Full,
            StatusCode::TOO_MANY_REQUESTS => Trouble::Away,
            status if status.is_server_error() => Trouble::Away,
            _ => Trouble::Refused,
        };
        let advice = match (named, region) {
            _ if is_full => "; remove something there, or let old objects expire".to_owned(),
            ("AccessDenied", _) => {
                "; s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject are needed"
                    .to_owned()
            }
            ("ExpiredToken", _) => "; start the server again with new credentials".to_owned(),
            ("RequestTimeTooSkewed", _) => "; set this machine's clock".to_owned(),
            ("InvalidAccessKeyId" | "SignatureDoesNotMatch", None) => {
                "; are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION right?".to_owned()
            }
            (_, Some(region))
                if region
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || c == b'-') =>
            {
                format!("; the bucket is elsewhere: set AWS_REGION={region}")
            }
            _ => String::new(),
        };
        let comma = if named.is_empty() { "" } else { ", " };
        let text = format!("it answers {}{comma}{named}{advice}", status.as_u16());
        (self.error(trouble, &text), code)
    }

    fn trouble(&self, error: &ureq::Error) -> RemoteError {
        use ureq::Error as E;
        let io = match error {
            E::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
            _ => None,
        };
        let tls: Option<&rustls::Error> = match error {
            E::Rustls(error) => Some(error),
            _ => io,
        };
        let trouble = match error {
            _ if tls.is_some() => Trouble::Refused,
            E::Protocol(_) => Trouble::Refused,
            _ => Trouble::Away,
        };
        let what = match error {
            E::Timeout(Timeout::Connect) => "no connection in time".to_owned(),
            E::Timeout(_) => "no answer in time".to_owned(),
            E::HostNotFound => "its host name is not known".to_owned(),
            E::Protocol(error) => format!("not HTTP: {error}"),
            E::Io(error) => match error.source() {
                Some(inner) if tls.is_some() => inner.to_string(),
                _ => error.to_string(),
            },
            other => other.to_string(),
        };
        let advice = tls.map_or("", tls_advice);
        self.error(trouble, &format!("{what}{advice}"))
    }

    fn error(&self, trouble: Trouble, what: &str) -> RemoteError {
        RemoteError::new(trouble, format!("{}: {what}", self.shown()))
    }
}

fn time_for(bytes: u64) -> Option<Duration> {
    Some(WHOLE + Duration::from_secs(bytes / SLOWEST))
}
