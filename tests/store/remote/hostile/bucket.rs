//! A server of buckets that lies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// A byte every tenth of a second.
    Drip,
    Silence,
    /// A body without an end.
    EndlessBody,
    /// A head without an end.
    EndlessHead,
    /// One page after another, each with a thousand objects.
    EndlessPages,
    /// A page of many small elements.
    ManyElements,
    /// A page with more objects than were asked for.
    LargePage,
    /// Bytes that mean nothing.
    Nonsense,
    /// News of chunks that are not there, others each time.
    News,
    /// Objects that are larger than they are listed.
    LargeObjects,
    /// News of another bucket each time.
    Anew,
    /// Redirects to itself.
    Redirects,
}

struct State {
    attack: Attack,
    random: Mutex<Random>,
    requests: AtomicUsize,
}

const NEXT: &str = "<IsTruncated>true</IsTruncated><NextContinuationToken>";

impl State {
    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let lower = line.to_ascii_lowercase();
            if let Some(text) = lower.strip_prefix("content-length:") {
                length = text.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length])?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let target = first.split(' ').nth(1).unwrap_or_default();
        let body = self.body(target);
        let head = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"{}\"\r\nContent-Length: {}\r\n\r\n",
            self.requests.load(Ordering::Relaxed),
            body.len()
        );
        match self.attack {
            Attack::Silence => {
                reader.read_to_end(&mut Vec::new())?;
                Ok(())
            }
            Attack::Drip => {
                let answer = [head.as_bytes(), &body].concat();
                answer.iter().try_for_each(|byte| {
                    thread::sleep(Duration::from_millis(100));
                    stream.write_all(&[*byte])
                })
            }
            Attack::EndlessBody => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nETag: \"x\"\r\n\r\n")?;
                loop {
                    stream.write_all(&[b'a'; 1 << 16])?;
                }
            }
            Attack::EndlessHead => {
                stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
                loop {
                    stream.write_all(b"X-Tea: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n")?;
                }
            }
            Attack::Nonsense => {
                let mut random = self.random.lock().unwrap();
                let count = random.index(3000);
                let bytes = nonsense(&mut random, count);
                let head = if random.below(2) == 0 {
                    head.as_bytes()
                } else {
                    b""
                };
                let bytes = [head, &bytes].concat();
                drop(random);
                stream.write_all(&bytes)
            }
            Attack::Redirects => {
                let there =
                    format!("HTTP/1.1 307 Go\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(there.as_bytes())
            }
            _ => {
                stream.write_all(head.as_bytes())?;
                stream.write_all(&body)
            }
        }
    }

    fn name(&self) -> String {
        let mut random = self.random.lock().unwrap();
        format!("{:016x}{:016x}", random.draw(), random.draw())
    }

    fn body(&self, target: &str) -> Vec<u8> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if query.contains("list-type=2") {
            return self.page().into_bytes();
        }
        if path.ends_with("/news") {
            let epoch = match self.attack {
                Attack::Anew => self.name(),
                _ => "0".repeat(32),
            };
            let lines = (0..1000).map(|_| format!("{}:{}:4096\n", of(), self.name()));
            let lines: String = match self.attack {
                Attack::News => lines.collect(),
                _ => String::new(),
            };
            return format!("contextpilot:kv:2 {epoch}\n{lines}").into_bytes();
        }
        match self.attack {
            Attack::LargeObjects => vec![0; 256 << 20],
            _ => b"nothing of the kind".to_vec(),
        }
    }

    fn page(&self) -> String {
        let objects = match self.attack {
            Attack::EndlessPages => 1000,
            Attack::LargePage => 5000,
            Attack::LargeObjects => 20,
            Attack::ManyElements => {
                return format!(
                    "<ListBucketResult>{}</ListBucketResult>",
                    "<a/>".repeat(500_000)
                );
            }
            _ => 0,
        };
        let mut text = "<ListBucketResult>".to_owned();
        for _ in 0..objects {
            let key = format!("a/contextpilot/kv/1/{}/{}", of(), self.name());
            text += &format!("<Contents><Key>{key}</Key><Size>4096</Size></Contents>");
        }
        if self.attack == Attack::EndlessPages {
            text += &format!("{NEXT}{}</NextContinuationToken>", self.name());
        }
        text + "</ListBucketResult>"
    }
}

fn tried(attack: Attack, requests: usize) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    let state = Arc::new(State {
        attack,
        random: Mutex::new(Random(seed())),
        requests: AtomicUsize::new(0),
    });
    let ours = Arc::clone(&state);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&ours);
            // A client that has gone.
            thread::spawn(move || drop(state.serve(&stream)));
        }
    });
    let beside = Beside::start(
        "s3://tea/a",
        &[
            ("AWS_ENDPOINT_URL", &at),
            ("AWS_ACCESS_KEY_ID", "me"),
            ("AWS_SECRET_ACCESS_KEY", "me"),
        ],
    );
    until("it was asked", || {
        (state.requests.load(Ordering::Relaxed) >= requests).then_some(())
    });
    beside.owe();
    beside.end(&format!("bucket, {attack:?}"), &state.requests)
}

#[test]
fn a_bucket_without_an_end_takes_no_memory_and_no_process() {
    for attack in [
        Attack::EndlessBody,
        Attack::EndlessHead,
        Attack::ManyElements,
        Attack::LargePage,
        Attack::Nonsense,
        Attack::Redirects,
    ] {
        let said = tried(attack, 2);
        assert!(
            said.iter().any(|line| line.contains("is not kept alike")),
            "{attack:?}: {said:?}"
        );
    }
    tried(Attack::EndlessPages, REQUESTS);
}

#[test]
fn a_bucket_that_does_not_answer_keeps_nobody() {
    for attack in [Attack::Drip, Attack::Silence] {
        tried(attack, 1);
    }
}

#[test]
fn a_bucket_that_lies_takes_no_disk_and_what_is_good_stays() {
    for (attack, requests) in [
        (Attack::News, 20),
        (Attack::LargeObjects, 20),
        (Attack::Anew, 4),
    ] {
        tried(attack, requests);
    }
}
