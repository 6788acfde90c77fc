//! The request line, and what the header fields say about the body.

use crate::endpoint::{Endpoint, PathTail};
use crate::fields::{Fields, Short};
use crate::json;
use crate::loss::Loss;

/// cpp-httplib's `CPPHTTPLIB_MAX_LINE_LENGTH`: it closes the connection after more.
pub(crate) const MAX_LINE_BYTES: usize = 32768;
/// cpp-httplib's `CPPHTTPLIB_REQUEST_URI_MAX_LENGTH`: it answers 414 and closes the connection.
const MAX_TARGET_BYTES: usize = 8192;
/// No server accepts a length with more digits, and it might not fit a u64.
const MAX_LENGTH_DIGITS: usize = 18;

/// The methods that cpp-httplib routes. It answers 400 to others, also to the
/// three more that it knows (CONNECT, TRACE, PRI), and does not read their
/// bodies.
const METHODS: [&[u8]; 7] = [
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH",
];

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// `POST`, the one method whose body llama-server evaluates.
    Post,
    /// Any other method that cpp-httplib routes.
    Other,
}

/// The request line, byte by byte: three words between runs of spaces.
#[derive(Debug, Clone)]
pub(crate) struct RequestLine {
    state: State,
    line_bytes: usize,
    target_bytes: usize,
    /// The method, later the version.
    word: Short<8>,
    method: Method,
    takes_content: bool,
    path: PathTail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    BeforeMethod,
    Method,
    BeforeTarget,
    Target,
    BeforeVersion,
    Version,
    AfterVersion,
    End,
}

impl RequestLine {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::BeforeMethod,
            line_bytes: 0,
            target_bytes: 0,
            word: Short::new(),
            method: Method::Other,
            takes_content: false,
            path: PathTail::new(),
        }
    }

    /// Takes a byte. Returns the head if this byte ends the line.
    pub(crate) fn push(&mut self, byte: u8) -> Result<Option<Head>, Loss> {
        self.line_bytes += 1;
        if self.line_bytes > MAX_LINE_BYTES {
            return Err(Loss::RequestLine);
        }
        self.state = match (self.state, byte) {
            (State::BeforeMethod, b' ') => State::BeforeMethod,
            (State::BeforeMethod | State::Method, b'A'..=b'Z') => {
                self.word.push(byte);
                State::Method
            }
            (State::Method, b' ') => {
                self.end_method()?;
                State::BeforeTarget
            }
            (State::BeforeTarget, b' ') => State::BeforeTarget,
            (State::BeforeTarget | State::Target, 0x21..=0x7E | 0x80..) => {
                self.target_bytes += 1;
                if self.target_bytes > MAX_TARGET_BYTES {
                    return Err(Loss::RequestLine);
                }
                self.path.push(byte);
                State::Target
            }
            (State::Target, b' ') => State::BeforeVersion,
            (State::BeforeVersion, b' ') => State::BeforeVersion,
            (
                State::BeforeVersion | State::Version,
                b'H' | b'T' | b'P' | b'/' | b'1' | b'.' | b'0',
            ) => {
                self.word.push(byte);
                State::Version
            }
            (State::Version | State::AfterVersion, b' ') => State::AfterVersion,
            (State::Version | State::AfterVersion, b'\r') => State::End,
            (State::End, b'\n') => return self.end().map(Some),
            // This includes tabs and control characters: the server accepts some of them,
            // but no client sends them.
            _ => return Err(Loss::RequestLine),
        };
        Ok(None)
    }

    fn end_method(&mut self) -> Result<(), Loss> {
        let word = std::mem::replace(&mut self.word, Short::new());
        let method = word.get().unwrap_or_default();
        if !METHODS.contains(&method) {
            return Err(Loss::RequestLine);
        }
        if method == b"POST" {
            self.method = Method::Post;
        }
        self.takes_content = matches!(method, b"POST" | b"PUT" | b"PATCH" | b"DELETE");
        Ok(())
    }

    fn end(&self) -> Result<Head, Loss> {
        let closes = match self.word.get() {
            Some(b"HTTP/1.1") => false,
            Some(b"HTTP/1.0") => true,
            _ => return Err(Loss::RequestLine),
        };
        Ok(Head {
            method: self.method,
            endpoint: self.path.endpoint(),
            takes_content: self.takes_content,
            old_version: closes,
            ..Head::new()
        })
    }
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    /// There is neither a length nor a transfer coding, so there is no body.
    Unframed,
}

/// What is known of a request before its body.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) endpoint: Endpoint,
    /// A method for which the server reads a body even if none is announced.
    pub(crate) takes_content: bool,
    /// The body is compressed, so it cannot be read.
    pub(crate) compressed: bool,
    /// The server splits the body into form fields and does not parse it as JSON.
    pub(crate) multipart: bool,
    /// For how many seconds the prompt is to be kept.
    pub(crate) keep_seconds: Option<u32>,
    old_version: bool,
    close: bool,
    keep_alive: bool,
    typed: bool,
    chunked: bool,
    /// Number of digits, and value. The server compares lengths as texts.
    length: Option<(usize, u64)>,
}

impl Head {
    const fn new() -> Self {
        Self {
            method: Method::Other,
            endpoint: Endpoint::Other,
            takes_content: false,
            compressed: false,
            multipart: false,
            keep_seconds: None,
            old_version: false,
            close: false,
            keep_alive: false,
            typed: false,
            chunked: false,
            length: None,
        }
    }

    /// Takes the header field just completed.
    pub(crate) fn field(&mut self, fields: &Fields) -> Result<(), Loss> {
        match fields.name() {
            b"content-length" => {
                let length = fields.value().and_then(length).ok_or(Loss::Framing)?;
                // The server answers 400 to contradicting lengths.
                if self.length.is_some_and(|before| before != length) {
                    return Err(Loss::Framing);
                }
                self.length = Some(length);
            }
            b"transfer-encoding" => {
                // Versions differ in how they read lists of codings.
                let chunked = fields
                    .value()
                    .is_some_and(|v| v.eq_ignore_ascii_case(b"chunked"));
                if !chunked || self.chunked {
                    return Err(Loss::Framing);
                }
                self.chunked = true;
            }
            b"content-encoding" => {
                // The server ignores unknown codings. Versions differ in how strictly they
                // match the known ones.
                const KNOWN: [&[u8]; 5] = [b"gzip", b"deflate", b"br", b"zstd", b"compress"];
                self.compressed |= match fields.value() {
                    Some(value) => KNOWN.iter().any(|name| contains(value, name)),
                    None => true,
                };
            }
            b"content-type" if !self.typed => {
                self.typed = true;
                let media = fields.value_start().split(|&b| b == b';').next();
                self.multipart = media
                    .is_some_and(|m| m.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data"));
            }
            b"x-cache-control-ttl" => self.keep_seconds = fields.value().and_then(json::in_header),
            b"connection" => {
                for token in fields.value_start().split(|&b| b == b',') {
                    let token = token.trim_ascii();
                    self.close |= token.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// How the end of the body is found, once all fields are known.
    pub(crate) fn framing(&self) -> Result<Framing, Loss> {
        match (self.chunked, self.length) {
            // The server tolerates a length of zero, and reads the chunks.
            (true, None | Some((_, 0))) => Ok(Framing::Chunked),
            (true, Some(_)) => Err(Loss::Framing),
            (false, Some((_, length))) => Ok(Framing::Length(length)),
            (false, None) => Ok(Framing::Unframed),
        }
    }

    /// Whether the body can have a request id that we can read.
    pub(crate) fn scanned(&self) -> bool {
        self.method == Method::Post && !self.compressed && !self.multipart
    }

    /// Whether the server closes the connection after its answer.
    pub(crate) fn closes(&self) -> bool {
        self.close || (self.old_version && !self.keep_alive)
    }
}

fn length(value: &[u8]) -> Option<(usize, u64)> {
    let digits = value.len();
    if digits == 0 || digits > MAX_LENGTH_DIGITS || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = value.iter().fold(0, |n, b| n * 10 + u64::from(b - b'0'));
    Some((digits, number))
}

fn contains(value: &[u8], wanted: &[u8]) -> bool {
    value
        .windows(wanted.len())
        .any(|part| part.eq_ignore_ascii_case(wanted))
}
