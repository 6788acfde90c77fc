//! An endpoint that says of itself what would move a terminal's cursor.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use serde_json::json;

/// Answers every request with these statistics.
fn endpoint(version: &str) -> String {
    let body = json!({
        "at": "2026-01-02T03:04:05.000Z", "epoch": "e", "process": 1, "uptime_seconds": 1.0,
        "hook_version": version, "mode": "observing", "slots": [], "tokens": {}, "requests": {},
        "engine": {"name": version, "attached": [], "missing": [version]},
        "flags": {}, "host": {"bytes": 0, "limit_from": version},
        "kv": {}, "reuse": {"total": {}, "last_minute": {}, "causes": {}},
        "evictions": {}, "losses": {},
    });
    let body = body.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let _ = client.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _ = client.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn what_an_endpoint_says_moves_no_cursor() {
    let address = endpoint("\u{1b}[2J\u{202e}gnp");
    for command in ["stats", "top"] {
        let mut companion = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
        let output = companion
            .args([command, "--control", &address])
            .output()
            .unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains("\\u{1b}[2J\\u{202e}gnp"), "{command}: {said}");
        assert!(
            !said.contains(['\u{1b}', '\u{202e}']),
            "{command}: {said:?}"
        );
    }
}
