//! Follows one connection of the server: its requests, and how far the server has answered them.

use crate::loss::Loss;
use crate::reader::{RequestReader, Step};

/// Bytes that are kept behind a request. cpp-httplib reads at most 4 KiB ahead, so more are not expected.
pub const MOST_BEHIND: usize = 16 << 10;

/// How far the server is with the request that was received last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It is not complete, or there is none.
    Reading,
    /// It is complete, and nothing of its answer was sent.
    Serving,
    /// The head of an answer in chunks was sent, but not its end.
    Streaming,
    /// The head of a whole answer was sent, or the end of one in chunks. The rest of a whole answer may follow.
    Answered,
}

/// Follows the requests and answers of one connection.
///
/// A client may send requests before it has the answers to earlier ones (pipelining), so one read of
/// the server's may end within the next request or behind it. cpp-httplib of late 2026 keeps those bytes,
/// and serves the next request without another read. Older versions drop them. Which of them it is
/// shows only when the server goes on. So the bytes are kept, and they become a request with the first thing that the
/// server does for it: see [`Self::goes_on`] and [`Self::sending`]. If the server reads instead although a
/// whole request is kept, it has dropped them.
#[derive(Debug, Clone)]
pub struct ConnectionReader {
    reader: RequestReader,
    progress: Progress,
    /// What was received behind the last request.
    behind: Vec<u8>,
}

impl Default for ConnectionReader {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectionReader {
    /// For a connection on which nothing was received yet.
    pub const fn new() -> Self {
        Self {
            reader: RequestReader::new(),
            progress: Progress::Reading,
            behind: Vec::new(),
        }
    }

    /// The same, but also reads the prompts in the bodies, for [`Assembly`](crate::Assembly).
    pub fn with_prompts() -> Self {
        Self {
            reader: RequestReader::with_prompts(),
            ..Self::new()
        }
    }

    /// The same, but also says what requests are about.
    pub fn with_titles(self) -> Self {
        Self {
            reader: self.reader.with_titles(),
            ..self
        }
    }

    /// Takes what one successful `recv` or `SSL_read` of the server returned
    /// (not a `MSG_PEEK`, which takes nothing from the connection). An earlier request is over: the server
    /// reads only after it has answered.
    pub fn received(&mut self, bytes: &[u8]) -> Step {
        if !self.behind.is_empty() {
            match self.next() {
                Step::More => {}
                // The server would have served it before it reads again.
                Step::Complete(_) => {
                    self.behind = Vec::new();
                    self.reader = self.reader.renewed();
                }
                lost @ Step::Lost(_) => return lost,
            }
        }
        self.take(bytes)
    }

    /// The server works on this connection's thread, but does not send: it tokenizes, or draws a task number.
    /// `None`: it does so for the request that was received last. Otherwise that request has been answered,
    /// and this follows it: [`Step::Complete`] with the request that the server works for, if it is known.
    pub fn goes_on(&mut self) -> Option<Step> {
        let lost = self.lost().is_some_and(|loss| loss != Loss::Closed);
        let more = lost || !self.behind.is_empty();
        (self.progress == Progress::Answered && more).then(|| self.next())
    }

    /// The server is about to send these bytes. The result is as in [`Self::goes_on`].
    pub fn sending(&mut self, bytes: &[u8]) -> Option<Step> {
        let begins = bytes.starts_with(b"HTTP/") && !is_interim(bytes);
        // Behind the head of a whole answer, only its body follows.
        let step = if begins { self.goes_on() } else { None };
        self.progress = match self.progress {
            Progress::Serving if begins && is_head_of_chunks(bytes) => Progress::Streaming,
            Progress::Serving if begins => Progress::Answered,
            Progress::Streaming if bytes.starts_with(b"0\r\n") => Progress::Answered,
            same => same,
        };
        step
    }

    /// Why the reader ignores this connection; `None` if it does not.
    pub fn lost(&self) -> Option<Loss> {
        self.reader.lost()
    }

    fn next(&mut self) -> Step {
        let behind = std::mem::take(&mut self.behind);
        self.take(&behind)
    }

    fn take(&mut self, bytes: &[u8]) -> Step {
        self.progress = Progress::Reading;
        let (used, step) = self.reader.feed(bytes);
        let behind = &bytes[used..];
        if let Step::Complete(_) = step {
            self.progress = Progress::Serving;
            if behind.is_empty() || self.lost().is_some() {
                return step;
            }
            // If no body was announced, the server may take the bytes for a body that lasts until the end.
            if self.reader.is_unannounced() {
                return Step::Lost(self.reader.lose(Loss::Unannounced));
            }
            if behind.len() <= MOST_BEHIND {
                self.behind = behind.to_vec();
            } else {
                // The request itself is known. What the server does after its answer belongs to no known request.
                self.reader.lose(Loss::Behind);
            }
        }
        step
    }
}

/// Whether these bytes begin an interim answer, `100 Continue`: the answer proper follows.
pub fn is_interim(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.") && bytes.get(8..10) == Some(b" 1")
}

/// Whether these bytes begin an answer that is sent in chunks.
pub fn is_head_of_chunks(bytes: &[u8]) -> bool {
    const FIELD: &[u8] = b"transfer-encoding: chunked\r";
    let mut lines = bytes.split(|&byte| byte == b'\n');
    let is_answer = lines.next().is_some_and(|line| line.starts_with(b"HTTP/"));
    let mut fields = lines.take_while(|line| *line != b"\r");
    is_answer && fields.any(|field| field.eq_ignore_ascii_case(FIELD))
}
