//! Requests and answers.

use std::io::{self, Write};
use std::time::Duration;

/// A complete request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, as it was sent.
    pub method: String,
    /// Path and query, as they were sent.
    pub target: String,
    /// The client wants to send another one afterwards.
    pub keep_alive: bool,
    /// Names and values, in the order in which they came.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Empty if there is none.
    pub body: Vec<u8>,
}

impl Request {
    /// The target without its query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The first value of a parameter in the query, as it was sent.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(given, value)| (given == name).then_some(value))
    }

    /// Whether it carries this token (`Authorization: Bearer …`). Takes the same time for every wrong token of
    /// the same length.
    #[must_use]
    pub fn bears(&self, token: &str) -> bool {
        const SCHEME: &[u8] = b"bearer ";
        let token = token.as_bytes();
        self.header("Authorization").any(|value| {
            let Some((scheme, given)) = value.split_at_checked(SCHEME.len()) else {
                return false;
            };
            let mut difference = given.len() ^ token.len();
            for (byte, wanted) in given.iter().zip(token.iter().cycle()) {
                difference |= usize::from(byte ^ wanted);
            }
            scheme.eq_ignore_ascii_case(SCHEME) & (difference == 0)
        })
    }

    /// The values of a header, in whatever case its name was written.
    pub fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.headers
            .iter()
            .filter(move |(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_slice())
    }
}

/// An answer.
pub struct Response {
    /// The status code, such as 200.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// More headers, each a name and a value without line ends.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Body,
}

/// The body of an answer.
pub enum Body {
    /// These bytes. The next answer may follow them on the same connection.
    Whole(Vec<u8>),
    /// A stream, until it ends or the client leaves. The connection is closed after it.
    Endless(Box<dyn Follow>),
}

/// The source of a streamed answer.
pub trait Follow {
    /// The next piece. If it is empty, this is called again. Waits for `longest` at most.
    /// `None` ends the answer.
    fn next(&mut self, longest: Duration) -> Option<Vec<u8>>;
}

impl Response {
    /// An answer of JSON.
    #[must_use]
    pub fn json(status: u16, body: String) -> Self {
        Self::whole(status, "application/json", body.into_bytes())
    }

    /// An answer of any type.
    #[must_use]
    pub fn whole(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self {
            status,
            content_type,
            headers: Vec::new(),
            body: Body::Whole(body),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn head(&self, keep_alive: bool) -> Vec<u8> {
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\n",
            self.status,
            phrase(self.status),
            self.content_type
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Body::Whole(body) = &self.body {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        let connection = if keep_alive { "keep-alive" } else { "close" };
        head.push_str(&format!("Connection: {connection}\r\n\r\n"));
        head.into_bytes()
    }

    /// Writes an answer with an end in one write, so that it takes one packet.
    pub(crate) fn send(
        &mut self,
        mut to: impl Write,
        with_body: bool,
        keep_alive: bool,
        beat: Duration,
    ) -> io::Result<()> {
        let mut bytes = self.head(keep_alive);
        match &mut self.body {
            Body::Whole(body) if with_body => bytes.extend_from_slice(body),
            Body::Endless(source) if with_body => {
                to.write_all(&bytes)?;
                while let Some(piece) = source.next(beat) {
                    to.write_all(&piece)?;
                }
                return Ok(());
            }
            _ => {}
        }
        to.write_all(&bytes)?;
        to.flush()
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Bad Request",
    }
}
