//! How fast bodies of 10 MB stream past, in reads of 16 KiB as on the server.
//! `cargo bench -p contextpilot-request`

use contextpilot_request::{ConnectionReader, Identity, Step};
use std::time::{Duration, Instant};

const BODY_BYTES: usize = 10 << 20;
const READ_BYTES: usize = 16 << 10;
const ROUNDS: usize = 21;

fn main() {
    println!("{:28} {:>9} {:>9}", "body of 10 MiB", "ms", "GB/s");
    for (name, prefix, unit, suffix) in [
        (
            "one long string",
            r#"{"prompt":""#,
            "It was a dark night. ",
            r#""}"#,
        ),
        (
            "string, a \\n in 60 bytes",
            r#"{"prompt":""#,
            r"fn main() { let answer = 42; if answer > 41 { print; } } \n",
            r#""}"#,
        ),
        (
            "string, a \\\" in 20 bytes",
            r#"{"prompt":""#,
            r#"{\"name\": \"value\", "#,
            r#""}"#,
        ),
        (
            "string of nothing but \\n",
            r#"{"prompt":""#,
            r"\n",
            r#""}"#,
        ),
        (
            "string of nothing but \\\"",
            r#"{"prompt":""#,
            r#"\""#,
            r#""}"#,
        ),
        ("token array", r#"{"prompt":["#, "12345, 678, ", "1]}"),
        (
            "array of short strings",
            r#"{"input":["#,
            r#""word", "#,
            "1]}",
        ),
        (
            "chat messages",
            r#"{"messages":["#,
            r#"{"role":"user","content":"Tell me more about the sea, please, and do not hurry."},"#,
            "{}]}",
        ),
        ("an id of 10 MiB", r#"{"rid":""#, "x", r#""}"#),
        ("white space", "{", " ", "}"),
        ("open brackets", r#"{"x":"#, "[", ""),
    ] {
        let mut body = String::with_capacity(BODY_BYTES + 100);
        body.push_str(prefix);
        while body.len() < BODY_BYTES {
            body.push_str(unit);
        }
        body.push_str(suffix);
        let stream = format!(
            "POST /completion HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| time(stream.as_bytes())).collect();
        times.sort_unstable();
        let median = times[ROUNDS / 2].as_secs_f64();
        println!(
            "{name:28} {:9.2} {:9.2}",
            median * 1e3,
            stream.len() as f64 / median / 1e9
        );
    }
}

fn time(stream: &[u8]) -> Duration {
    let start = Instant::now();
    let mut reader = ConnectionReader::new();
    let last = stream
        .chunks(READ_BYTES)
        .map(|read| reader.received(read))
        .last();
    let spent = start.elapsed();
    assert!(
        matches!(last, Some(Step::Complete(request)) if !matches!(request.identity, Identity::Id(_))),
        "a complete request without a usable id"
    );
    spent
}
