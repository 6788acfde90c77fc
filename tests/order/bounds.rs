//! What clients can make the index take up.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Connection, Response, Server};
use serde_json::json;

use super::support::{Index, exchange, until};

/// Nothing listens there, and nothing here is passed on.
const NOBODY: ([u8; 4], u16) = ([127, 0, 0, 1], 1);

/// The most memory that the process had so far, in MiB; 0 where a system does not say.
fn peak(index: &Index) -> u64 {
    memory(index, "VmHWM:")
}

fn memory(index: &Index, which: &str) -> u64 {
    if !cfg!(target_os = "linux") {
        return 0;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", index.process())).unwrap();
    let line = status.lines().find(|line| line.starts_with(which));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    kib.parse::<u64>().unwrap() >> 10
}

/// Posts this eight times at once. A body that is too long is refused before it has arrived.
fn eight(address: SocketAddr, path: &str, body: &[u8]) -> Vec<Response> {
    let post = || {
        let mut connection = Connection::open(address).unwrap();
        let _ = connection.write(&Connection::request_bytes("POST", path, body));
        connection.response().unwrap()
    };
    thread::scope(|scope| {
        let posts: Vec<_> = (0..8).map(|_| scope.spawn(post)).collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect()
    })
}

#[test]
fn bodies_have_a_bound_for_each_and_for_all_together() {
    let index = Index::start(NOBODY.into(), &["--max-bodies", "64"]);
    let before = peak(&index);
    // A body holds four times its bytes until it is answered: one of these at a time.
    let documents: Vec<String> = (0..40)
        .map(|n| format!("{n}{}", "x".repeat(250_000)))
        .collect();
    let body = json!({"contexts": [documents]}).to_string();
    let answers = eight(index.address, "/reorder", body.as_bytes());
    let with = |status| answers.iter().filter(|one| one.status == status).count();
    assert!(with(200) >= 1, "the first has all the room");
    let statuses: Vec<u16> = answers.iter().map(|one| one.status).collect();
    assert_eq!(with(200) + with(429), 8, "{statuses:?}");
    for refused in answers.iter().filter(|one| one.status == 429) {
        let text = refused.text();
        assert!(text.contains("all of the 64 MiB of memory"), "{text}");
    }
    // Alone it is too much: eight million values in a body of 16 MB.
    let body = format!("{{\"request_ids\":[{}1]}}", "1,".repeat(8_000_000));
    let answer = exchange(index.address, "POST", "/evict", body.as_bytes());
    assert_eq!(answer.status, 413, "{}", answer.text());
    let text = answer.text();
    assert!(text.contains("of memory while it is worked on"), "{text}");
    // And this is more than an eviction may have at all.
    let body = json!({"request_ids": vec!["x".repeat(1000); 20_000]}).to_string();
    for answer in eight(index.address, "/evict", body.as_bytes()) {
        assert_eq!(answer.status, 413, "{}", answer.text());
    }
    let took = peak(&index) - before;
    assert!(took < 150, "{took} MiB");
    // What was refused is counted, and nothing is held any more.
    assert_eq!(
        index.post("/evict", &json!({"request_ids": ["a"]})).status,
        200
    );
    let bodies = index.get("/stats")["bodies"].take();
    assert_eq!(bodies["held_bytes"], 0);
    let refused = bodies["refused"].as_u64();
    assert!(refused >= Some(8), "{bodies}");
    // As is what has too much of something.
    let long = json!({"contexts": [["a"]], "hint_template": "h".repeat(2000)});
    assert_eq!(index.post("/reorder", &long).status, 413);
    let bodies = &index.get("/stats")["bodies"];
    assert_eq!(bodies["refused"].as_u64(), refused.map(|count| count + 1));
    let metrics = index.text("/metrics");
    let refused = format!(
        "\ncontextpilot_index_bodies_refused_total {}\n",
        bodies["refused"]
    );
    assert!(metrics.contains(&refused), "{metrics}");
}

/// The server would take it, so the index does not refuse it.
#[test]
fn a_completion_without_room_passes_as_it_is() {
    let server = Server::tiny();
    let server = server.bare_slots(1).spawn().unwrap();
    let index = Index::start(server.address(), &["--max-bodies", "1"]);
    // There is room for it; for it, but not for its copy; not for half of it.
    for bytes in [1, 300_000, 1_000_000] {
        let body = json!({"prompt": "a", "n_predict": 1, "user": "x".repeat(bytes)});
        for answer in eight(index.address, "/completion", body.to_string().as_bytes()) {
            assert_eq!(answer.status, 200, "{bytes}: {}", answer.text());
        }
    }
    let stats = exchange(index.address, "GET", "/stats", b"");
    let bodies = &stats.json().unwrap()["bodies"];
    assert_eq!(*bodies, json!({"held_bytes": 0, "refused": 0}));
}

#[test]
fn memory_of_large_bodies_is_given_back() {
    let index = Index::start(NOBODY.into(), &[]);
    let resident = || memory(&index, "VmRSS:");
    let before = resident();
    // Of different lengths, so that what one of them leaves does not suit the next.
    for length in [100, 10, 140, 60] {
        let body = json!({"request_ids": vec!["x".repeat(length); 99_999]}).to_string();
        let answers = eight(index.address, "/evict", body.as_bytes());
        assert!(answers.iter().any(|answer| answer.status != 429));
        let body = json!({"prompt": "x".repeat(200_000 * length)}).to_string();
        let answers = eight(index.address, "/v1/completions", body.as_bytes());
        assert!(answers.iter().any(|answer| answer.status == 502));
    }
    until("the index has given the memory back", || {
        (resident() < before + 100).then_some(())
    });
}

/// Far above what is right: some milliseconds.
const SOON: Duration = Duration::from_secs(2);

#[test]
fn unfinished_requests_hold_up_neither_health_checks_nor_evictions() {
    // One file for each connection, here and there.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit {
        current: files.maximum,
        ..files
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
    let index = Index::start(NOBODY.into(), &[]);
    index.post("/reorder", &json!({"contexts": [["a"]]}));
    let open = |path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n");
        let mut connection = Connection::open(index.address).unwrap();
        let rest = if path == "/slots" {
            "Content"
        } else {
            "\r\n{\""
        };
        connection
            .write(format!("{head}{rest}").as_bytes())
            .unwrap();
        connection
    };
    let paths = ["/evict", "/reorder", "/v1/completions", "/slots"];
    let unfinished: Vec<Connection> = (0..1100).map(|n| open(paths[n % 4])).collect();
    for _ in 0..50 {
        for (method, path, body) in [
            ("GET", "/ready", ""),
            ("GET", "/health", ""),
            ("POST", "/evict", r#"{"request_ids": ["a"]}"#),
        ] {
            let begun = Instant::now();
            let answer = exchange(index.address, method, path, body.as_bytes());
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            assert!(begun.elapsed() < SOON, "{path}: {:?}", begun.elapsed());
        }
    }
    let connections = &index.get("/stats")["connections"];
    assert!(
        connections["displaced"].as_u64() >= Some(76),
        "{connections}"
    );
    assert!(connections["open"].as_u64() <= Some(1088), "{connections}");
    drop(unfinished);
}
