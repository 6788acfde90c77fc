//! The gateway in front of a server that the test plays: what it makes of strange answers, and of large
//! requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use contextpilot_gateway::Gateway;
use contextpilot_proxy::{Account, Accounts, Asked, Response, Stabiliser, Upstream};

/// Gives the same answer to every request. Returns its URL and the number of requests.
fn server(answer: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            read(&mut stream);
            counter.fetch_add(1, Ordering::SeqCst);
            let length = answer.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            let _ = stream.write_all(format!("{head}{answer}").as_bytes());
        }
    });
    (url, asked)
}

/// Reads a request or an answer, and returns its first line and its body.
fn read(stream: &mut TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        line
    };
    let first = line();
    let mut length = 0;
    loop {
        let line = line().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    (first, String::from_utf8(body).expect("text"))
}

fn gateway(server: &str) -> SocketAddr {
    serving(Gateway::new(
        Upstream::new(server).expect("an address"),
        None,
    ))
}

fn serving(gateway: Gateway) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || gateway.run(listener));
    address
}

fn ask(gateway: SocketAddr, path: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(gateway).expect("it listens");
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).expect("a limit");
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .expect("sent");
    read(&mut stream)
}

const COMPLETION: &str = "/v1/completions/render";
const CHAT: &str = "/v1/chat/completions/render";

#[test]
fn an_answer_of_another_form_is_a_502() {
    for answer in [
        "[1]",
        "7",
        "null",
        "\"tokens\"",
        "{}",
        "{\"tokens\":{},\"prompt\":[]}",
        "not JSON",
    ] {
        let (server, _) = server(answer);
        let gateway = gateway(&server);
        for (path, body) in [
            (COMPLETION, r#"{"prompt":"a"}"#),
            (CHAT, r#"{"messages":[]}"#),
        ] {
            let (status, body) = ask(gateway, path, body);
            assert!(status.contains(" 502 "), "{answer}: {status}");
            assert!(body.contains("was not understood"), "{answer}: {body}");
        }
    }
}

#[test]
fn a_request_with_very_many_prompts_is_refused_before_the_server_is_asked() {
    let (server, asked) = server(r#"{"tokens":[1]}"#);
    let gateway = gateway(&server);
    let many = |prompts: usize| format!(r#"{{"prompt":[{}"a"]}}"#, r#""a","#.repeat(prompts - 1));
    let (status, body) = ask(gateway, COMPLETION, &many(200_000));
    assert!(status.contains(" 413 "), "{status}: {body}");
    assert!(body.contains("send several requests"), "{body}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let (status, body) = ask(gateway, COMPLETION, &many(256));
    assert!(status.contains(" 200 "), "{status}: {body}");
    assert_eq!(asked.load(Ordering::SeqCst), 256);
    // Token ids need no server.
    let ids = format!(r#"{{"prompt":[{}[1]]}}"#, "[1,2],".repeat(1000));
    assert!(ask(gateway, COMPLETION, &ids).0.contains(" 200 "));
}

#[test]
fn a_request_that_would_take_too_much_memory_is_refused_before_the_server_is_asked() {
    let (server, asked) = server(r#"{"tokens": [1]}"#);
    let gateway = Gateway::new(Upstream::new(&server).expect("an address"), None);
    let gateway = serving(gateway.with_bodies(1 << 20));
    let prompt = |bytes| serde_json::json!({"prompt": "x".repeat(bytes)}).to_string();
    let (status, body) = ask(gateway, COMPLETION, &prompt(20_000));
    assert!(status.contains(" 413 "), "{status}{body}");
    assert!(body.contains("takes 2 MiB of memory"), "{body}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let (status, body) = ask(gateway, COMPLETION, &prompt(10_000));
    assert!(status.contains(" 200 "), "{status}{body}");
}

/// Answers each request with its own body, whether that has a length or comes in chunks.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut reader = BufReader::new(&mut stream);
            let mut line = || {
                let mut line = String::new();
                reader.read_line(&mut line).expect("a line");
                line.trim().to_lowercase()
            };
            let head: Vec<_> =
                std::iter::from_fn(|| Some(line()).filter(|it| !it.is_empty())).collect();
            let length = head
                .iter()
                .find_map(|line| line.strip_prefix("content-length: "));
            let body = match length {
                Some(length) => {
                    let mut body = vec![0; length.parse().expect("a length")];
                    reader.read_exact(&mut body).expect("a body");
                    body
                }
                None => unchunked(&mut reader),
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            );
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&body);
        }
    });
    url
}

fn unchunked(reader: &mut impl BufRead) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a length");
        let length = usize::from_str_radix(line.trim(), 16).expect("a length");
        let mut chunk = vec![0; length + 2];
        reader.read_exact(&mut chunk).expect("a chunk");
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&chunk[..length]);
    }
}

/// Knows every request's account.
struct Known;

impl Accounts for Known {
    fn are_needed(&self) -> bool {
        true
    }

    fn new_id(&self) -> String {
        "new".to_owned()
    }

    fn ask(&self, _: String, _: &Response) -> Option<Asked> {
        let account = Account {
            reused: 90,
            evaluated: 10,
            loaded: 86,
        };
        Some(Box::pin(async move { Some(account) }))
    }
}

#[test]
fn a_request_without_room_passes_as_it_is_and_so_does_its_answer() {
    let gateway = Gateway::new(Upstream::new(&echo()).expect("an address"), None)
        .with_usage(Arc::new(Known))
        .with_bodies(1 << 20);
    let gateway = serving(gateway);
    let body = |bytes| {
        let prompt = "x".repeat(bytes);
        format!(r#"{{"timings":{{"cache_n":4,"prompt_n":96}},"prompt":"{prompt}"}}"#)
    };
    let path = "/v1/completions";
    let (status, answer) = ask(gateway, path, &body(1));
    assert!(status.contains(" 200 "), "{status}");
    let right = r#"{"timings":{"cache_n":90,"prompt_n":10},"prompt":"x","rid":"new"}"#;
    assert_eq!(answer, right);
    // There is room for it, but none for its copy; for half of it.
    for bytes in [300_000, 1_000_000] {
        let body = body(bytes);
        let (status, answer) = ask(gateway, path, &body);
        assert!(status.contains(" 200 "), "{status}: {answer}");
        assert!(answer == body, "{} of {} bytes", answer.len(), body.len());
        // In chunks.
        let mut stream = TcpStream::connect(gateway).expect("it listens");
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        for chunk in body.as_bytes().chunks(100_000) {
            let length = format!("{:x}\r\n", chunk.len());
            let chunk = [length.as_bytes(), chunk, b"\r\n"].concat();
            stream.write_all(&chunk).expect("sent");
        }
        stream.write_all(b"0\r\n\r\n").expect("sent");
        let (status, answer) = read(&mut stream);
        assert!(status.contains(" 200 "), "{status}: {answer}");
        assert!(answer == body, "{} of {} bytes", answer.len(), body.len());
    }
    let mut stream = TcpStream::connect(gateway).expect("it listens");
    let asks = b"GET /gateway/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(asks).expect("sent");
    let metrics = read(&mut stream).1;
    assert!(metrics.contains("_bodies_refused_total 0\n"), "{metrics}");
}

/// A rule changes the text that it names, and what no rule touches passes byte for byte: other texts, JSON with blanks of
/// its own, and what is no JSON.
#[test]
fn a_request_that_no_rule_touches_keeps_every_byte() {
    let rules = "[[rule]]\nname = 'a'\nin = 'system'\nfind = '[0-9]+'\nreplace = '#'";
    let rules = Stabiliser::read(rules).expect("a rule");
    let gateway = Gateway::new(Upstream::new(&echo()).expect("an address"), None);
    let gateway = serving(gateway.with_rules(Arc::new(rules)).with_bodies(4 << 20));
    let large = format!(r#"{{"system":"1","user":"{}"}}"#, "x".repeat(2 << 20));
    for (path, body, right) in [
        (
            "/v1/messages",
            r#"{ "n":1.50, "system" : "at 17" }"#,
            Some(r#"{ "n":1.50, "system" : "at #" }"#),
        ),
        (
            "/v1/messages?beta=true",
            r#"{"system":"17"}"#,
            Some(r##"{"system":"#"}"##),
        ),
        (
            "/v1/messages",
            r#"{ "n":1.50, "system" : "a\u0062" ,"user":"17"}"#,
            None,
        ),
        ("/v1/messages", r#"{"system":"17""#, None),
        ("/v1/embeddings", r#"{"system":"17"}"#, None),
        // There is no room to read it.
        ("/v1/messages", &large, None),
    ] {
        let (status, answer) = ask(gateway, path, body);
        assert!(status.contains(" 200 "), "{status}: {answer}");
        let shown = &body[..body.len().min(99)];
        assert!(
            answer == right.unwrap_or(body),
            "{path} {shown}: {}",
            answer.len()
        );
    }
}
