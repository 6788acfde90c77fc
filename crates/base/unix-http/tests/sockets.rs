//! ureq over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use contextpilot_unix_http::connect;
use ureq::Agent;

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sock");
    (folder, path)
}

fn agent(path: &Path) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(60)))
        .build();
    contextpilot_unix_http::agent(config, path)
}

/// Answers each request with its body, on so many connections of so many requests. Reports each
/// connection that is closed.
fn echo(path: &Path, connections: usize, requests: usize) -> (JoinHandle<()>, Receiver<()>) {
    let listener = UnixListener::bind(path).expect("a socket");
    let (closed, is_closed) = channel();
    let server = thread::spawn(move || {
        for _ in 0..connections {
            let (stream, _) = listener.accept().expect("a connection");
            let mut stream = BufReader::new(stream);
            for _ in 0..requests {
                let body = request(&mut stream);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                let stream = stream.get_mut();
                stream.write_all(head.as_bytes()).expect("a reader");
                stream.write_all(&body).expect("a reader");
            }
            drop(stream);
            closed.send(()).expect("somebody who waits");
        }
    });
    (server, is_closed)
}

fn request(stream: &mut BufReader<UnixStream>) -> Vec<u8> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a line");
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().expect("a length");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("the body");
    body
}

#[test]
fn bodies_of_all_sizes_pass_on_one_connection() {
    let (_folder, path) = place();
    let (server, _is_closed) = echo(&path, 1, 4);
    let agent = agent(&path);
    for length in [0, 1, 100_000, 5_000_000] {
        let body: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let mut answer = agent
            .post("http://any.example/x")
            .send(&body[..])
            .expect("an answer");
        let mut echoed = Vec::new();
        answer
            .body_mut()
            .as_reader()
            .read_to_end(&mut echoed)
            .expect("a body");
        assert!(echoed == body, "{length}");
    }
    server.join().expect("it was asked four times");
}

#[test]
fn a_closed_connection_is_not_used_again() {
    let (_folder, path) = place();
    let (server, is_closed) = echo(&path, 3, 1);
    let agent = agent(&path);
    for n in 0..3 {
        let mut answer = agent
            .post("http://localhost/")
            .send("text")
            .expect("an answer");
        assert_eq!(
            answer.body_mut().read_to_string().expect("text"),
            "text",
            "{n}"
        );
        drop(answer);
        is_closed.recv().expect("a close");
    }
    server.join().expect("it was asked three times");
}

#[test]
fn errors_say_what_is_wrong() {
    let (_folder, path) = place();
    let said = || {
        agent(&path)
            .get("http://localhost/")
            .call()
            .expect_err("nobody")
            .to_string()
    };
    assert!(said().contains("there is no such socket"), "{}", said());
    drop(UnixListener::bind(&path).expect("a socket"));
    assert!(
        said().contains("nobody listens at the socket"),
        "{}",
        said()
    );
    std::fs::remove_file(&path).expect("it is there");
    std::fs::write(&path, "").expect("a file");
    assert!(
        said().contains("nobody listens at the socket"),
        "{}",
        said()
    );
    let long = Path::new("/").join("x".repeat(200));
    connect(&long, None).expect_err("no room for such a path");
}

#[test]
fn a_silent_server_takes_no_longer_than_the_timeout() {
    let (_folder, path) = place();
    let _listener = UnixListener::bind(&path).expect("a socket");
    let config = Agent::config_builder()
        .timeout_global(Some(Duration::from_millis(200)))
        .build();
    let agent = contextpilot_unix_http::agent(config, &path);
    let error = agent
        .get("http://localhost/")
        .call()
        .expect_err("no answer");
    assert!(matches!(error, ureq::Error::Timeout(_)), "{error}");
}
