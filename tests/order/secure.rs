//! Which server certificates the index trusts, and which web pages it answers.

use contextpilot_testbed::Connection;
use serde_json::json;

use crate::support::{Index, companion, exchange};
use crate::{TEA, two_slots};

#[test]
fn the_index_uses_a_tls_server_only_if_its_certificate_is_trusted() {
    let server = two_slots().tls().spawn().unwrap();
    let port = server.address().port();
    let start = |authority: Option<std::path::PathBuf>| {
        let engine = format!("https://127.0.0.1:{port}");
        let mut command = companion(&["index", "--port", "0", "--engine", &engine]);
        if let Some(file) = authority {
            command.env("SSL_CERT_FILE", file);
        }
        Index::of(command)
    };
    let index = start(server.certificate());
    for _ in 0..2 {
        let (_, id, prompt) = index.order(&[TEA]);
        index.complete(&prompt, &id);
    }
    let stats = index.get("/stats");
    assert_eq!(stats["prediction"]["requests"], 2, "{stats}");

    // The certificate of another server is not trusted.
    let other = two_slots().tls().spawn().unwrap();
    let index = start(other.certificate());
    let body = json!({"prompt": TEA, "n_predict": 1});
    let response = index.post("/completion", &body);
    assert_eq!(response.status, 502);
    let text = response.text();
    assert!(text.contains("SSL_CERT_FILE"), "{text}");
}

#[test]
fn requests_by_web_pages_of_other_machines_are_refused() {
    let server = two_slots().spawn().unwrap();
    let index = Index::start(server.address(), &[]);
    let (_, id, _) = index.order(&[TEA]);
    let ask = |method: &str, path: &str, headers: &str, body: &str| {
        let mut connection = Connection::open(index.address).unwrap();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        connection.write(head.as_bytes()).unwrap();
        connection.response().unwrap()
    };
    let evict = json!({"request_ids": [id]}).to_string();
    let prompt = r#"{"prompt":"Tea","n_predict":1}"#;
    let page = "Host: 127.0.0.1\r\nOrigin: https://attacker.example\r\n";
    let rebound = "Host: attacker.example\r\nOrigin: http://attacker.example\r\n";
    for (path, body) in [
        ("/evict", &*evict),
        ("/reset", ""),
        ("/reorder", r#"{"contexts":[["a"]]}"#),
        ("/completion", prompt),
        ("/slots/0?action=erase", ""),
    ] {
        assert_eq!(ask("POST", path, page, body).status, 403, "{path}");
        assert_eq!(ask("POST", path, rebound, body).status, 421, "{path}");
    }
    assert_eq!(ask("GET", "/requests", rebound, "").status, 421);
    assert_eq!(index.get("/requests")["num_requests"], 1);
    // A page of llama-server itself, loaded through the index.
    let own = "Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n";
    assert_eq!(ask("POST", "/completion", own, prompt).status, 200);
    assert_eq!(ask("POST", "/evict", own, &evict).status, 200);
    assert_eq!(exchange(index.address, "GET", "/requests", b"").status, 200);
}
