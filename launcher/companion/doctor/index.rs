//! Whether the index answers.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use contextpilot_settings::{IndexUrl, Scheme, Secret, Settings, env};
use serde_json::Value;

use super::{Finding, Grade};

const SUBJECT: &str = "index";
/// The time for connecting, and again for the whole answer. Short, because a user waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most bytes of an answer. The index's has a few hundred.
const MOST: u64 = 64 << 10;

pub(super) fn check(settings: &Settings) -> Finding {
    let Some(url) = &settings.index else {
        if settings.is_engaged() {
            let text = format!(
                "none, the hook only observes: set {} to have evictions told",
                env::INDEX_URL
            );
            return Finding::new(SUBJECT, Grade::Limited, text);
        }
        return Finding::new(
            SUBJECT,
            Grade::Limited,
            format!(
                "not checked, and the hook is not used: set {}",
                env::INDEX_URL
            ),
        );
    };
    // Shows no credentials.
    let shown = url.endpoint("");
    let shown = shown.trim_end_matches('/');
    if url.scheme() == Scheme::Https {
        return Finding::new(SUBJECT, Grade::Good, format!("{shown} not checked (https)"));
    }
    let token = settings.token.as_ref().map(Secret::expose);
    match ask(url, token) {
        Ok((200..=299, body)) if takes_evictions(&body) => Finding::new(
            SUBJECT,
            Grade::Good,
            format!("{shown} answers{}", description(&body)),
        ),
        Ok((200..=299, _)) => Finding::new(
            SUBJECT,
            Grade::Limited,
            format!("{shown} takes no evictions (it is stateless): start it with a cache to track"),
        ),
        // The index answers 503 until it is initialized.
        Ok((status, body)) => Finding::new(
            SUBJECT,
            Grade::Limited,
            format!(
                "{shown} answers GET /health with {status}{}: check that it is the index, and built",
                description(&body)
            ),
        ),
        Err(e) => Finding::new(
            SUBJECT,
            Grade::Limited,
            format!(
                "{shown} does not answer ({e}): start it, or correct {}; \
                 evictions wait until it does",
                env::INDEX_URL
            ),
        ),
    }
}

/// Status and body of `GET /health`.
fn ask(url: &IndexUrl, token: Option<&str>) -> io::Result<(u16, Vec<u8>)> {
    let target = url.target("health");
    let host = url.host();
    let mut stream = match url.socket() {
        Some(path) => Stream::Unix(contextpilot_unix_http::connect(path, Some(PATIENCE))?),
        None => {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            Stream::Tcp(connect(bare, url.port())?)
        }
    };
    stream.set_write_timeout(PATIENCE)?;
    // The limit is for the whole answer, so that a byte a second does not make this wait for ever.
    let end = Instant::now() + PATIENCE;
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {host}:{}\r\nAccept: application/json\r\n\
         User-Agent: contextpilot-llama-doctor\r\nConnection: close\r\n{}\r\n",
        url.port(),
        token.map_or_else(String::new, |token| format!(
            "Authorization: Bearer {token}\r\n"
        ))
    );
    stream.write_all(request.as_bytes())?;

    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some((status, body, complete)) = parse(&answer)? {
            if complete {
                return Ok((status, body.to_vec()));
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || answer.len() as u64 > MOST {
            return Err(io::Error::other("its answer does not end"));
        }
        stream.set_read_timeout(left)?;
        match stream.read(&mut chunk) {
            Ok(0) => {
                return match parse(&answer)? {
                    Some((status, body, _)) => Ok((status, body.to_vec())),
                    None => Err(io::Error::other("it hung up")),
                };
            }
            Ok(n) => answer.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::other("no answer in time"));
            }
            Err(e) => return Err(e),
        }
    }
}

/// A connection to the index.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_read_timeout(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(limit)),
            Self::Unix(stream) => stream.set_read_timeout(Some(limit)),
        }
    }

    fn set_write_timeout(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(Some(limit)),
            Self::Unix(stream) => stream.set_write_timeout(Some(limit)),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

/// Status, body so far, and whether the body is complete; `None` while the head is not complete.
fn parse(answer: &[u8]) -> io::Result<Option<(u16, &[u8], bool)>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let head = response
        .parse(answer)
        .map_err(|e| io::Error::other(format!("not HTTP: {e}")))?;
    let httparse::Status::Complete(head) = head else {
        return Ok(None);
    };
    let length = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    let body = &answer[head..];
    let complete = length.is_some_and(|length: usize| body.len() >= length);
    Ok(Some((response.code.unwrap_or_default(), body, complete)))
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("its name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// False only if the index says that it accepts none.
fn takes_evictions(body: &[u8]) -> bool {
    let body = serde_json::from_slice::<Value>(body).unwrap_or_default();
    body.get("eviction_enabled") != Some(&Value::Bool(false))
}

/// The index's version and state, if the answer has them.
fn description(body: &[u8]) -> String {
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return String::new();
    };
    let text = |name: &str| {
        let text: String = body.get(name)?.as_str()?.chars().take(64).collect();
        (!text.is_empty() && !text.contains(char::is_control)).then_some(text)
    };
    let parts = [
        text("version").map(|version| format!("version {version}")),
        text("status"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!(": {}", parts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_when_its_length_says_so() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(parse(whole).unwrap(), Some((200, &b"{}"[..], true)));
        let partial = &whole[..whole.len() - 1];
        assert_eq!(parse(partial).unwrap(), Some((200, &b"{"[..], false)));
        assert_eq!(parse(&whole[..20]).unwrap(), None);
        assert!(parse(b"SSH-2.0-OpenSSH\r\n").is_err());
    }

    #[test]
    fn the_version_and_state_of_the_index_are_shown() {
        let said = |body: &str| description(body.as_bytes());
        assert_eq!(said(r#"{"status": "ready"}"#), ": ready");
        assert_eq!(
            said(r#"{"status": "ready", "version": "0.5.0"}"#),
            ": version 0.5.0, ready"
        );
        assert_eq!(said("hello"), "");
        assert!(takes_evictions(b"hello") && takes_evictions(br#"{"status": "ready"}"#));
        assert!(!takes_evictions(br#"{"eviction_enabled": false}"#));
        assert_eq!(said(r#"{"status": "\u001b[2J"}"#), "");
    }
}
