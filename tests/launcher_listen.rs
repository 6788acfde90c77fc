//! `contextpilot-llama listen`, over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use contextpilot_testbed::KillOnDrop;
use serde_json::{Value, json};

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
/// How long to wait for something that must happen. Only a failure takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

struct Listener {
    process: KillOnDrop,
    address: String,
    /// `None` after [`Listener::lines`] took it, or after a test closed it.
    stdout: Option<ChildStdout>,
}

impl Listener {
    fn start(options: &[&str]) -> Self {
        let mut process = Command::new(COMPANION)
            .args(["listen", "--port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut greeting = String::new();
        stderr.read_line(&mut greeting).unwrap();
        let address = greeting.split("http://").nth(1).unwrap_or_default();
        let address = address.split(';').next().unwrap_or_default().to_owned();
        assert!(!address.is_empty(), "{greeting}");
        let stdout = process.stdout.take();
        Self {
            process: KillOnDrop(process),
            address,
            stdout,
        }
    }

    /// The printed lines, as they arrive.
    fn lines(&mut self) -> Receiver<String> {
        let stdout = BufReader::new(self.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        lines
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn post(&mut self, path: &str, body: &str) -> (u16, Value) {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
        self.send(format!("{head}{body}").as_bytes());
        self.answer()
    }

    fn answer(&mut self) -> (u16, Value) {
        let (status, length) = self.head();
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn head(&mut self) -> (u16, usize) {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            assert_ne!(
                self.0.read_line(&mut line).unwrap(),
                0,
                "closed in the headers"
            );
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        (status.unwrap(), length)
    }
}

fn evict(ids: &[&str]) -> String {
    json!({ "request_ids": ids }).to_string()
}

fn listen(options: &[&str]) -> Output {
    Command::new(COMPANION)
        .arg("listen")
        .args(options)
        .output()
        .unwrap()
}

#[test]
fn evictions_are_printed_as_they_arrive() {
    let mut listener = Listener::start(&[]);
    let lines = listener.lines();
    let mut client = listener.connect();
    let (status, answer) = client.post("/evict", &evict(&["req-1", "cmpl-2", "req-1"]));
    assert_eq!(status, 200);
    assert_eq!(answer["status"], "success");
    assert_eq!(answer["removed_count"], 2);
    for id in ["req-1", "cmpl-2", "req-1"] {
        let line = lines.recv_timeout(PATIENCE).unwrap();
        let (time, rest) = line.split_at("00:00:00.000".len());
        assert!(
            time.bytes()
                .zip(b"00:00:00.000")
                .all(|(b, form)| match form {
                    b'0' => b.is_ascii_digit(),
                    _ => b == *form,
                }),
            "{line}"
        );
        assert_eq!(rest, format!("  evicted  {id}"));
    }

    // Another request on the same connection, then a second connection.
    assert_eq!(client.post("/evict", &evict(&["a\u{1b}\nb"])).0, 200);
    assert!(
        lines
            .recv_timeout(PATIENCE)
            .unwrap()
            .ends_with("a\\u{1b}\\nb")
    );
    assert_eq!(listener.connect().post("/evict", &evict(&["c"])).0, 200);
    assert!(lines.recv_timeout(PATIENCE).unwrap().ends_with("  c"));
}

#[test]
fn json_lines_hold_ids_exactly() {
    let mut listener = Listener::start(&["--json"]);
    let lines = listener.lines();
    let ids = ["plain", "\"quo\\ted\"\n\u{1b}", "é", ""];
    assert_eq!(listener.connect().post("/evict", &evict(&ids)).0, 200);
    for id in ids {
        let line: Value = serde_json::from_str(&lines.recv_timeout(PATIENCE).unwrap()).unwrap();
        assert_eq!(line["request_id"], id);
        let time = line["time"].as_str().unwrap();
        assert_eq!(time.len(), "2026-11-21T07:25:03.123+01:00".len(), "{time}");
    }
}

#[test]
fn bad_requests_are_answered_with_the_reason() {
    let mut listener = Listener::start(&[]);
    let lines = listener.lines();
    let mut client = listener.connect();
    for (body, why) in [
        ("", "not JSON"),
        ("{\"request_ids\": [", "not JSON"),
        ("{}", "request_ids"),
        ("{\"request_ids\": \"a\"}", "not a list"),
        ("{\"request_ids\": [\"a\", 7]}", "not a string"),
    ] {
        let (status, answer) = client.post("/evict", body);
        assert_eq!(status, 400, "{body}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.contains(why), "{detail}");
    }
    assert_eq!(client.post("/reorder", "{}").0, 404);
    client.send(b"GET /evict HTTP/1.1\r\n\r\n");
    assert_eq!(client.answer().0, 404);
    client.send(b"GET /health HTTP/1.1\r\n\r\n");
    let (status, answer) = client.answer();
    assert_eq!((status, &answer["status"]), (200, &json!("ready")));
    client.send(b"HEAD /health HTTP/1.1\r\n\r\n");
    assert_eq!(client.head().0, 200);
    assert_eq!(client.post("/evict", &evict(&["last"])).0, 200);
    // For the bad requests before, nothing was printed.
    assert!(lines.recv_timeout(PATIENCE).unwrap().ends_with("last"));
}

#[test]
fn a_body_that_is_too_long_is_refused_and_the_answer_arrives() {
    let listener = Listener::start(&[]);
    let mut client = listener.connect();
    client.send(b"POST /evict HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n");
    client.send(&[b' '; 100_000]);
    assert_eq!(client.answer().0, 413);
    assert_eq!(listener.connect().post("/evict", &evict(&[])).0, 200);
}

#[test]
fn idle_and_broken_connections_do_not_delay_others() {
    let mut listener = Listener::start(&[]);
    let lines = listener.lines();
    let idle: Vec<Client> = (0..20).map(|_| listener.connect()).collect();
    let mut cut = listener.connect();
    cut.send(b"POST /evict HTTP/1.1\r\nContent-Length: 50\r\n\r\n{\"request_ids\"");
    drop(cut);
    assert_eq!(listener.connect().post("/evict", &evict(&["x"])).0, 200);
    assert!(lines.recv_timeout(PATIENCE).unwrap().ends_with("x"));
    drop(idle);
}

#[test]
fn if_nobody_reads_its_output_listen_ends_with_0() {
    let mut listener = Listener::start(&[]);
    drop(listener.stdout.take());
    let body = evict(&["x"]);
    let head = format!(
        "POST /evict HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let deadline = Instant::now() + PATIENCE;
    // One attempt is not enough: a process that another test starts at this moment has a copy of
    // our end of the pipe until it calls `exec`.
    let status = loop {
        if let Ok(mut stream) = TcpStream::connect(&listener.address) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
            let _ = stream.read(&mut [0]);
        }
        if let Some(status) = listener.process.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it goes on");
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn if_the_port_is_in_use_listen_fails_and_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = listen(&["--port", &port]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.starts_with("[ContextPilot] Port "), "{message}");
    assert!(
        message.contains("in use") && message.contains("--port"),
        "{message}"
    );

    let output = listen(&["--host", "192.0.2.1"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("192.0.2.1"), "{message}");
}

#[test]
fn listen_accepts_a_unix_socket_and_prints_its_url() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.sock");
    let start = || {
        let mut process = Command::new(COMPANION)
            .args(["listen", "--unix", "index.sock"])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut greeting = String::new();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        stderr.read_line(&mut greeting).unwrap();
        let address = format!("unix:{}", path.display());
        let variable = format!("CONTEXTPILOT_INDEX_URL={address}\n");
        assert!(greeting.ends_with(&variable), "{greeting}");
        let stdout = process.stdout.take();
        Listener {
            process: KillOnDrop(process),
            address,
            stdout,
        }
    };
    let post = |ids: &[&str]| {
        let mut stream = UnixStream::connect(&path).unwrap();
        let body = evict(ids);
        let length = body.len();
        let head = format!("POST /evict HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n");
        write!(stream, "{head}Connection: close\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    // The first listener is killed and leaves its socket file. The second one replaces the file.
    for id in ["one", "two"] {
        let mut listener = start();
        let lines = listener.lines();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        post(&[id]);
        assert!(lines.recv_timeout(PATIENCE).unwrap().ends_with(id));
        let second = listen(&["--unix", path.to_str().unwrap()]);
        let message = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(1), "{message}");
        assert!(message.contains("Something listens"), "{message}");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "kept").unwrap();
    for (at, why) in [
        (path.to_str().unwrap(), "no socket"),
        ("/nonexistent/index.sock", "--unix"),
        ("/a:/b", "cannot name"),
    ] {
        let output = listen(&["--unix", at]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(why) && message.contains(at), "{message}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

#[test]
fn the_help_contains_an_example() {
    for arguments in [
        &["--help"][..],
        &["listen", "--help"],
        &["hook-path", "--help"],
    ] {
        let output = Command::new(COMPANION).args(arguments).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && help.contains("Example:"),
            "{help}"
        );
    }
}
