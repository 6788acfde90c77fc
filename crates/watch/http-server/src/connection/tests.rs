use super::*;

/// A peer that has sent `input`, `step` bytes at a time. It closes its end then, or is silent.
struct Peer<'a> {
    input: &'a [u8],
    step: usize,
    output: Vec<u8>,
    silent: bool,
}

impl Read for Peer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.input.is_empty() && self.silent {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = self.step.min(self.input.len()).min(buffer.len());
        let (now, later) = self.input.split_at(n);
        buffer[..n].copy_from_slice(now);
        self.input = later;
        Ok(n)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const LIMITS: Limits = Limits {
    body: 8 << 20,
    patience: Duration::from_secs(60),
    whole_request: Duration::from_secs(60),
    connections: 1,
};

fn connection(input: &[u8], step: usize) -> Connection<'static, Peer<'_>> {
    let output = Vec::new();
    Connection {
        stream: Peer {
            input,
            step,
            output,
            silent: false,
        },
        unread: Vec::new(),
        limits: &LIMITS,
        begun: None,
        answered: false,
    }
}

fn status_of(input: &[u8]) -> u16 {
    match connection(input, usize::MAX).next_request().unwrap() {
        Next::Bad(status, _) => status,
        Next::Request(_) => 200,
        Next::End => 0,
    }
}

#[test]
fn requests_may_be_cut_anywhere_and_follow_each_other() {
    let input = b"POST /evict?x HTTP/1.1\r\nHost: h\r\ncontent-LENGTH: 3\r\n\r\nabc\
                  GET /health HTTP/1.1\r\nConnection: Close\r\n\r\n";
    for step in [1, 2, 3, 7, 50, usize::MAX] {
        let mut connection = connection(input, step);
        let Next::Request(first) = connection.next_request().unwrap() else {
            panic!("no first request at step {step}");
        };
        assert_eq!((first.method.as_str(), first.path()), ("POST", "/evict"));
        assert_eq!(
            (first.body.as_slice(), first.keep_alive),
            (&b"abc"[..], true)
        );
        assert_eq!(first.header("CONTENT-length").next(), Some(&b"3"[..]));
        let Next::Request(second) = connection.next_request().unwrap() else {
            panic!("no second request at step {step}");
        };
        assert_eq!((second.path(), second.keep_alive), ("/health", false));
        assert!(matches!(connection.next_request().unwrap(), Next::End));
    }
}

#[test]
fn a_client_that_expects_100_continue_gets_it() {
    let head = b"POST /evict HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    let mut waiting = connection(head, usize::MAX);
    assert!(matches!(waiting.next_request().unwrap(), Next::End));
    assert_eq!(waiting.stream.output, b"HTTP/1.1 100 Continue\r\n\r\n");

    let whole = [&head[..], b"abc"].concat();
    let mut impatient = connection(&whole, usize::MAX);
    assert!(matches!(
        impatient.next_request().unwrap(),
        Next::Request(_)
    ));
    assert_eq!(impatient.stream.output, b"");
}

#[test]
fn http_1_0_closes_unless_asked_not_to() {
    for (input, keep_alive) in [
        (&b"GET / HTTP/1.0\r\n\r\n"[..], false),
        (b"GET / HTTP/1.0\r\nConnection: x, keep-alive\r\n\r\n", true),
    ] {
        let Next::Request(request) = connection(input, 9).next_request().unwrap() else {
            panic!("no request");
        };
        assert_eq!(request.keep_alive, keep_alive);
    }
}

#[test]
fn a_malformed_request_gets_an_error() {
    for (input, status) in [
        (&b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"[..], 400),
        (b"GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length:\r\n\r\n", 400),
        (
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\n",
            400,
        ),
        (
            b"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
            413,
        ),
        (b"GET / HTTP/1.1\r\nContent-Length: 8388609\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc", 0),
        (b"GET / HT", 0),
    ] {
        assert_eq!(status_of(input), status, "{}", input.escape_ascii());
    }
    let long = [&b"GET /"[..], &[b'a'; LARGEST_HEAD]].concat();
    assert_eq!(status_of(&long), 431);
    let many = format!(
        "GET / HTTP/1.1\r\n{}\r\n",
        "a: b\r\n".repeat(MOST_HEADERS + 1)
    );
    assert_eq!(status_of(many.as_bytes()), 431);
}

#[test]
fn a_request_that_arrives_too_slowly_is_refused() {
    let limits = Limits {
        whole_request: Duration::ZERO,
        ..LIMITS
    };
    for input in [
        &b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"[..],
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab",
    ] {
        let mut slow = connection(input, 1);
        slow.limits = &limits;
        let Next::Bad(status, _) = slow.next_request().unwrap() else {
            panic!("it was waited for");
        };
        assert_eq!(status, 408);
    }
}

#[test]
fn silence_after_an_answer_is_the_end_of_a_connection_and_silence_before_is_an_error() {
    let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    for (input, answered, ends) in [
        (&b""[..], false, false),
        (b"", true, true),
        (b"GET", true, false),
        (&request[..9], false, false),
    ] {
        let mut peer = connection(input, usize::MAX);
        peer.stream.silent = true;
        peer.answered = answered;
        let next = peer.next_request();
        assert_eq!(
            matches!(next, Ok(Next::End)),
            ends,
            "{}",
            input.escape_ascii()
        );
    }
}
