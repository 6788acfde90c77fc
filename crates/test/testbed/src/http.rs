//! A small HTTP/1.1 client for tests. They send requests byte by byte, break off in the middle, and
//! read raw answers.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::SocketAddr,
    time::Duration,
};

use serde_json::Value;

use crate::{
    Error, Result,
    stream::{Certificate, Endpoint, Stream},
};

/// The timeout of a read. Most answers take milliseconds; six prompts of 16,000 tokens at once take minutes on
/// a small machine that is busy.
const SILENCE: Duration = Duration::from_secs(300);

/// One connection. Several requests may follow each other on it.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<Stream>,
}

impl Connection {
    /// Connects, with `TCP_NODELAY`: bytes go out as they are written.
    ///
    /// # Errors
    /// Those of connecting.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        Self::to(&Endpoint::Tcp(address), None)
    }

    /// Connects to an endpoint. With a certificate, by TLS, and trusts only that certificate.
    pub(crate) fn to(endpoint: &Endpoint, certificate: Option<&Certificate>) -> io::Result<Self> {
        let stream = Stream::open(endpoint, certificate, SILENCE)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Waits so long for each part of an answer, not the usual five minutes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn with_patience(self, patience: Duration) -> io::Result<Self> {
        self.stream.get_ref().set_read_timeout(patience)?;
        Ok(self)
    }

    /// The bytes of a request with a `Content-Length`. The connection stays open after the answer.
    pub fn request_bytes(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)?;
        self.stream.get_mut().flush()
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// Those of the connection, and an answer that is not HTTP.
    pub fn exchange(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Response> {
        self.write(&Self::request_bytes(method, path, body))?;
        self.response()
    }

    /// Reads a whole answer. Interim answers (100 Continue) are skipped.
    ///
    /// # Errors
    /// Those of the connection, and an answer that is not HTTP.
    pub fn response(&mut self) -> Result<Response> {
        let mut response = self.head()?;
        while response.status < 200 {
            response = self.head()?;
        }
        while let Some(part) = self.part(&response)? {
            response.body.extend_from_slice(&part);
            if !response.is_chunked() {
                break;
            }
        }
        Ok(response)
    }

    /// Reads the head of an answer. [`Self::part`] reads its body.
    ///
    /// # Errors
    /// Those of the connection, and an answer that is not HTTP.
    pub fn head(&mut self) -> Result<Response> {
        let first = self.line()?;
        let status = first
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1))
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| Error::new(format!("not an HTTP answer: {first:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| Error::new(format!("not a header: {line:?}")))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Response {
            status,
            headers,
            body: Vec::new(),
        })
    }

    /// Reads the next chunk of a chunked body; `None` after the last one. A body that is not chunked is
    /// read whole, so call this once for it.
    ///
    /// # Errors
    /// Those of the connection, and a truncated body.
    pub fn part(&mut self, head: &Response) -> Result<Option<Vec<u8>>> {
        if head.is_chunked() {
            let size = self.line()?;
            let size = usize::from_str_radix(size.split(';').next().unwrap_or("").trim(), 16)
                .map_err(|_| Error::new(format!("not a chunk size: {size:?}")))?;
            let mut part = vec![0; size];
            self.stream.read_exact(&mut part)?;
            let end = self.line()?;
            return match (size, end.as_str()) {
                (0, _) => Ok(None),
                (_, "") => Ok(Some(part)),
                _ => Err(Error::new(format!("{end:?} after a chunk"))),
            };
        }
        let mut body = Vec::new();
        match head.header("content-length") {
            Some(length) => {
                let length = length
                    .parse()
                    .map_err(|_| Error::new(format!("not a length: {length:?}")))?;
                body.resize(length, 0);
                self.stream.read_exact(&mut body)?;
            }
            None => {
                self.stream.read_to_end(&mut body)?;
            }
        }
        Ok(Some(body))
    }

    /// Whether the other side closes the connection. Waits up to `patience` for that, or for bytes.
    pub fn closed_within(&mut self, patience: Duration) -> bool {
        let stream = self.stream.get_ref();
        if stream.set_read_timeout(patience).is_err() {
            return true;
        }
        let closed = loop {
            match self.stream.fill_buf() {
                Ok(bytes) => break bytes.is_empty(),
                // A wait with a timeout is interrupted if the process was stopped meanwhile.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    break !matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    );
                }
            }
        };
        // If the long timeout cannot be set again, later reads only fail sooner.
        let _ = self.stream.get_ref().set_read_timeout(SILENCE);
        closed
    }

    /// Shuts down the writing side.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn finish_sending(&mut self) -> io::Result<()> {
        self.stream.get_mut().finish()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(Error::new("the connection was closed before the answer"));
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// The headers in the order of arrival, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without chunk framing.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of the first header of this name (in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text. Bytes that are not UTF-8 become replacement characters.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// If it is not JSON. The error shows the body.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::new(format!("{error} in {:?}", self.text())))
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// A connection to a listener that sends `answer` and closes.
    fn hearing(answer: &'static str) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.write_all(answer.as_bytes()).expect("a reader");
        });
        Connection::open(address).expect("a listener")
    }

    #[test]
    fn answers_with_a_length_are_read_one_after_the_other() {
        let mut connection = hearing(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi\
             HTTP/1.1 503 No\r\nX: y\r\n\r\nuntil the end",
        );
        let first = connection.response().expect("an answer");
        assert_eq!((first.status, first.text().as_str()), (200, "hi"));
        let second = connection.response().expect("an answer");
        assert_eq!(
            (second.status, second.text().as_str()),
            (503, "until the end")
        );
        assert_eq!(second.header("x"), Some("y"));
    }

    #[test]
    fn a_chunked_body_is_read_whole_or_chunk_by_chunk() {
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                      3\r\nabc\r\na;x=y\r\n0123456789\r\n0\r\n\r\n";
        let whole = hearing(answer).response().expect("an answer");
        assert_eq!(whole.text(), "abc0123456789");
        let mut connection = hearing(answer);
        let head = connection.head().expect("a head");
        let part = connection.part(&head).expect("a chunk");
        assert_eq!(part.as_deref(), Some(b"abc".as_slice()));
    }

    #[test]
    fn a_malformed_or_truncated_answer_is_an_error() {
        for answer in [
            "",
            "SMTP ready\r\n",
            "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ] {
            assert!(hearing(answer).response().is_err(), "{answer:?}");
        }
    }

    #[test]
    fn closed_within_sees_that_the_other_side_closes() {
        assert!(hearing("").closed_within(SILENCE));
        assert!(!hearing("x").closed_within(SILENCE));
    }
}
