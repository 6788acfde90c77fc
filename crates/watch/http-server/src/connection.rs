//! Serves one connection.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::{Body, Limits, Request, Response, Stream};

/// Bytes of request line and headers.
pub const LARGEST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 64;
/// How often an endless answer checks whether the client is still connected.
const BEAT: Duration = Duration::from_secs(1);

pub(crate) fn serve(
    stream: &Stream,
    limits: &Limits,
    mut answer: impl FnMut(&Request) -> Response,
    refuse: impl Fn(u16, &str) -> Response,
) -> io::Result<()> {
    stream.set_timeouts(limits.patience)?;
    let mut connection = Connection {
        stream,
        unread: Vec::new(),
        limits,
        begun: None,
        answered: false,
    };
    loop {
        match connection.next_request()? {
            Next::End => return Ok(()),
            Next::Bad(status, why) => {
                refuse(status, &why).send(stream, true, false, BEAT)?;
                return connection.read_the_rest();
            }
            Next::Request(request) => {
                connection.answered = true;
                let mut response = answer(&request);
                let keep_alive = request.keep_alive && matches!(response.body, Body::Whole(_));
                response.send(stream, request.method != "HEAD", keep_alive, BEAT)?;
                if !keep_alive {
                    return Ok(());
                }
            }
        }
    }
}

enum Next {
    Request(Request),
    /// Not a request, with a status and a reason. It is not known where the next request
    /// begins.
    Bad(u16, String),
    /// The client has closed the connection, or is silent after an answer: it has no other request.
    End,
}

struct Connection<'a, S> {
    stream: S,
    /// Bytes that were received, and are not part of a request yet.
    unread: Vec<u8>,
    limits: &'a Limits,
    /// When the first bytes of the current request came.
    begun: Option<Instant>,
    /// Whether a request was answered before.
    answered: bool,
}

/// What the head of a request says.
struct Head {
    request: Request,
    expects_continue: bool,
    /// Bytes of the head itself.
    len: usize,
    body_len: usize,
}

type Refused = (u16, String);

impl<S: Read + Write> Connection<'_, S> {
    fn next_request(&mut self) -> io::Result<Next> {
        self.begun = (!self.unread.is_empty()).then(Instant::now);
        let mut head = loop {
            match head(&self.unread, self.limits.body) {
                Ok(Some(head)) => break head,
                Ok(None) if self.unread.len() > LARGEST_HEAD => {
                    let why = format!("the headers are longer than {LARGEST_HEAD} bytes");
                    return Ok(Next::Bad(431, why));
                }
                Ok(None) => match self.receive() {
                    // The client has closed the connection, between requests or within one.
                    Ok(0) => return Ok(Next::End),
                    Ok(_) if self.is_late() => return Ok(self.too_slow()),
                    Ok(_) => {}
                    Err(error) if self.is_idle() && is_silence(&error) => return Ok(Next::End),
                    Err(error) => return Err(error),
                },
                Err((status, why)) => return Ok(Next::Bad(status, why)),
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
            if self.is_late() && self.unread.len() < head.body_len {
                return Ok(self.too_slow());
            }
        }
        head.request.body = self.unread.drain(..head.body_len).collect();
        Ok(Next::Request(head.request))
    }

    /// Between two requests.
    fn is_idle(&self) -> bool {
        self.answered && self.begun.is_none()
    }

    fn is_late(&self) -> bool {
        self.begun
            .is_some_and(|begun| begun.elapsed() > self.limits.whole_request)
    }

    fn too_slow(&self) -> Next {
        let seconds = self.limits.whole_request.as_secs();
        Next::Bad(408, format!("the request took longer than {seconds} s"))
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 8192];
        loop {
            match self.stream.read(&mut chunk) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(n) => {
                    self.begun.get_or_insert_with(Instant::now);
                    self.unread.extend_from_slice(&chunk[..n]);
                    return Ok(n);
                }
            }
        }
    }
}

impl Connection<'_, &Stream> {
    /// Reads remaining bytes. Closing a socket with unread bytes resets the connection, and the client
    /// would lose the answer that says what it did wrong.
    fn read_the_rest(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.set_timeouts(Duration::from_secs(1))?;
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut left = self.limits.body;
        let mut chunk = [0; 8192];
        while left > 0 && Instant::now() < deadline {
            match self.stream.read(&mut chunk)? {
                0 => break,
                n => left = left.saturating_sub(n),
            }
        }
        Ok(())
    }
}

/// The client sent nothing for as long as it may.
fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
}

/// Reads the head of a request; `None` if it is not complete.
fn head(bytes: &[u8], largest_body: usize) -> Result<Option<Head>, Refused> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let len = match request.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err((431, format!("there are more than {MOST_HEADERS} headers")));
        }
        Err(httparse::Error::Version) => return Err((505, "speak HTTP/1.1".to_owned())),
        Err(e) => return Err((400, format!("not an HTTP request: {e}"))),
    };
    let mut keep_alive = request.version == Some(1);
    let mut expects_continue = false;
    let mut content_length = None;
    for header in request.headers.iter() {
        let value = header.value.trim_ascii();
        let name = |name: &str| header.name.eq_ignore_ascii_case(name);
        if name("content-length") {
            let length = body_length(value, largest_body)?;
            if content_length.replace(length).is_some_and(|l| l != length) {
                return Err((400, "two Content-Length headers disagree".to_owned()));
            }
        } else if name("transfer-encoding") {
            return Err((411, "send a Content-Length, not chunks".to_owned()));
        } else if name("connection") {
            for option in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
                if option.eq_ignore_ascii_case(b"close") {
                    keep_alive = false;
                } else if option.eq_ignore_ascii_case(b"keep-alive") {
                    keep_alive = true;
                }
            }
        } else if name("expect") {
            expects_continue = value.eq_ignore_ascii_case(b"100-continue");
        }
    }
    let headers = request.headers.iter();
    Ok(Some(Head {
        request: Request {
            method: request.method.unwrap_or_default().to_owned(),
            target: request.path.unwrap_or_default().to_owned(),
            keep_alive,
            headers: headers
                .map(|h| (h.name.to_owned(), h.value.trim_ascii().to_vec()))
                .collect(),
            body: Vec::new(),
        },
        expects_continue,
        len,
        body_len: content_length.unwrap_or(0),
    }))
}

fn body_length(value: &[u8], largest: usize) -> Result<usize, Refused> {
    // `parse` alone would accept a sign.
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits);
    let Some(text) = text else {
        return Err((400, "the Content-Length is not a number".to_owned()));
    };
    match text.parse() {
        Ok(length) if length <= largest => Ok(length),
        _ => Err((413, format!("the body is longer than {largest} bytes"))),
    }
}

#[cfg(test)]
mod tests;
