//! Whatever a client sends to the control endpoint's HTTP server, it is answered with whole answers, within the bounds,
//! and the bytes of a request's body are never read as another request.
#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use contextpilot_http_server::{LARGEST_HEAD, Limits, Request, Response, Stream, serve};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits {
    body: 512,
    patience: Duration::from_secs(10),
    whole_request: Duration::from_secs(10),
    connections: 1,
};

fuzz_target!(|data: &[u8]| {
    let (mut client, server) = UnixStream::pair().expect("a pair");
    client.write_all(data).expect("it fits in the buffer");
    client.shutdown(Shutdown::Write).expect("the end");
    let (mut requests, mut refused) = (0, 0);
    let mut seen = 0;
    let stream = Stream::Unix(server);
    let answer = |request: &Request| {
        assert!(request.body.len() <= LIMITS.body);
        assert!(request.headers.len() <= 64);
        assert!(request.target.len() <= LARGEST_HEAD && !request.method.is_empty());
        assert!(!request.path().contains('?'));
        for (name, value) in &request.headers {
            assert!(!name.is_empty() && !value.contains(&b'\n') && !value.contains(&b'\0'));
        }
        // Each request is made of bytes of its own.
        seen += request.method.len() + request.target.len() + request.body.len();
        requests += 1;
        Response::json(200, format!("{:?}", request.method))
    };
    let refusals = std::cell::Cell::new(0);
    let refuse = |status: u16, why: &str| {
        assert!([400, 408, 411, 413, 431, 505].contains(&status), "{status}");
        refusals.set(refusals.get() + 1);
        Response::json(status, format!("{why:?}"))
    };
    let ended = serve(&stream, &LIMITS, answer, refuse);
    refused += refusals.get();
    drop(stream);
    assert!(seen <= data.len(), "{seen} bytes of {}", data.len());
    assert!(refused <= 1, "after that nothing is read");
    let mut answers = Vec::new();
    let _ = client.read_to_end(&mut answers);
    if ended.is_ok() {
        let lines = answers
            .windows(9)
            .filter(|bytes| *bytes == b"HTTP/1.1 ")
            .count();
        let interim = answers
            .windows(12)
            .filter(|bytes| *bytes == b"HTTP/1.1 100")
            .count();
        // The method is in the answer, and may be anything that is a token.
        assert!(
            lines - interim >= requests + refused,
            "{lines} {interim} {requests}"
        );
    }
});
