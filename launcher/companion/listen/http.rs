//! As much HTTP/1.1 as a receiver of small JSON bodies needs: kept-alive
//! connections, `Content-Length`, `Expect: 100-continue`, and limits on
//! everything. Chunked bodies are refused (411): no client of `/evict` sends
//! them, and each feature is one more thing to get wrong.
//!
//! `tiny_http` was considered: it neither limits its threads nor times out.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use super::api;

/// Bytes of request line and headers.
const LARGEST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 64;
/// Bytes of a body: 1,000 ids of 512 bytes, each byte escaped, are 3 MB.
const LARGEST_BODY: usize = 8 << 20;
/// How long to wait for a client to go on, or to begin the next request.
const PATIENCE: Duration = Duration::from_secs(75);

pub(super) struct Request {
    pub(super) method: String,
    target: String,
    keep_alive: bool,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// The target without its query.
    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

pub(super) struct Response {
    status: u16,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn new(status: u16, body: &Value) -> Self {
        Self {
            status,
            body: body.to_string().into_bytes(),
        }
    }

    /// One write, so that one packet carries it.
    fn send(&self, mut to: impl Write, with_body: bool, keep_alive: bool) -> io::Result<()> {
        let reason = match self.status {
            200 => "OK",
            404 => "Not Found",
            411 => "Length Required",
            413 => "Content Too Large",
            431 => "Request Header Fields Too Large",
            505 => "HTTP Version Not Supported",
            _ => "Bad Request",
        };
        let mut bytes = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: {}\r\n\r\n",
            self.status,
            self.body.len(),
            if keep_alive { "keep-alive" } else { "close" },
        )
        .into_bytes();
        if with_body {
            bytes.extend_from_slice(&self.body);
        }
        to.write_all(&bytes)?;
        to.flush()
    }
}

/// Answers the requests of one connection, until either side has had enough.
pub(super) fn serve(
    stream: &TcpStream,
    mut answer: impl FnMut(&Request) -> Response,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut connection = Connection {
        stream,
        unread: Vec::new(),
    };
    loop {
        match connection.next_request()? {
            Next::End => return Ok(()),
            Next::Bad(response) => {
                response.send(stream, true, false)?;
                return connection.part_in_peace();
            }
            Next::Request(request) => {
                let with_body = request.method != "HEAD";
                answer(&request).send(stream, with_body, request.keep_alive)?;
                if !request.keep_alive {
                    return Ok(());
                }
            }
        }
    }
}

enum Next {
    Request(Request),
    /// Not a request; after it there is no telling where the next begins.
    Bad(Response),
    /// The client has closed the connection between two requests.
    End,
}

struct Connection<S> {
    stream: S,
    /// Received, and not yet part of a request.
    unread: Vec<u8>,
}

/// What the head of a request says.
struct Head {
    method: String,
    target: String,
    keep_alive: bool,
    expects_continue: bool,
    /// Bytes of the head itself.
    len: usize,
    body_len: usize,
}

impl<S: Read + Write> Connection<S> {
    fn next_request(&mut self) -> io::Result<Next> {
        let head = loop {
            match head(&self.unread) {
                Ok(Some(head)) => break head,
                Ok(None) if self.unread.len() > LARGEST_HEAD => {
                    let why = format!("the headers are longer than {LARGEST_HEAD} bytes");
                    return Ok(Next::Bad(api::error(431, &why)));
                }
                Ok(None) if self.receive()? == 0 => {
                    // Between requests or in the middle of one: nobody is left
                    // to be told.
                    return Ok(Next::End);
                }
                Ok(None) => {}
                Err(response) => return Ok(Next::Bad(response)),
            }
        };
        self.unread.drain(..head.len);
        if head.expects_continue && self.unread.len() < head.body_len {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        while self.unread.len() < head.body_len {
            if self.receive()? == 0 {
                return Ok(Next::End);
            }
        }
        Ok(Next::Request(Request {
            method: head.method,
            target: head.target,
            keep_alive: head.keep_alive,
            body: self.unread.drain(..head.body_len).collect(),
        }))
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 8192];
        loop {
            match self.stream.read(&mut chunk) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(n) => {
                    self.unread.extend_from_slice(&chunk[..n]);
                    return Ok(n);
                }
            }
        }
    }
}

impl Connection<&TcpStream> {
    /// Closing a socket with unread bytes resets the connection, and the client
    /// loses the answer that says what it did wrong.
    fn part_in_peace(&mut self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)?;
        self.stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut left = LARGEST_BODY;
        let mut chunk = [0; 8192];
        while left > 0 {
            match self.stream.read(&mut chunk)? {
                0 => break,
                n => left = left.saturating_sub(n),
            }
        }
        Ok(())
    }
}

/// Reads the head of a request; `None` if it is not all there.
fn head(bytes: &[u8]) -> Result<Option<Head>, Response> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let len = match request.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            let why = format!("there are more than {MOST_HEADERS} headers");
            return Err(api::error(431, &why));
        }
        Err(httparse::Error::Version) => return Err(api::error(505, "speak HTTP/1.1")),
        Err(e) => return Err(api::error(400, &format!("not an HTTP request: {e}"))),
    };
    let mut head = Head {
        method: request.method.unwrap_or_default().to_owned(),
        target: request.path.unwrap_or_default().to_owned(),
        keep_alive: request.version == Some(1),
        expects_continue: false,
        len,
        body_len: 0,
    };
    let mut content_length = None;
    for header in request.headers.iter() {
        let value = header.value.trim_ascii();
        let name = |name: &str| header.name.eq_ignore_ascii_case(name);
        if name("content-length") {
            let length = body_length(value)?;
            if content_length.replace(length).is_some_and(|l| l != length) {
                return Err(api::error(400, "two Content-Length headers disagree"));
            }
        } else if name("transfer-encoding") {
            return Err(api::error(411, "send a Content-Length, not chunks"));
        } else if name("connection") {
            for option in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
                if option.eq_ignore_ascii_case(b"close") {
                    head.keep_alive = false;
                } else if option.eq_ignore_ascii_case(b"keep-alive") {
                    head.keep_alive = true;
                }
            }
        } else if name("expect") {
            head.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
        }
    }
    head.body_len = content_length.unwrap_or(0);
    Ok(Some(head))
}

fn body_length(value: &[u8]) -> Result<usize, Response> {
    // `parse` alone would take a sign.
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits);
    let Some(text) = text else {
        return Err(api::error(400, "the Content-Length is not a number"));
    };
    match text.parse() {
        Ok(length) if length <= LARGEST_BODY => Ok(length),
        _ => {
            let why = format!("the body is longer than {LARGEST_BODY} bytes");
            Err(api::error(413, &why))
        }
    }
}

#[cfg(test)]
mod tests;
