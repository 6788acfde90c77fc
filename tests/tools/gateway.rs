//! `contextpilot-llama gateway`, in front of a real server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use contextpilot_testbed::{Connection, KillOnDrop, Response};
use serde_json::{Value, json};

use crate::support::{companion, fails, nowhere, two_slots};

const KEY: &str = "s3same";

struct Gateway {
    _process: KillOnDrop,
    address: SocketAddr,
}

impl Gateway {
    fn start(server: &str) -> Self {
        Self::trusting(server, None)
    }

    /// `authority`: a file of certificates to trust instead of the system's.
    fn trusting(server: &str, authority: Option<&Path>) -> Self {
        let mut command = companion(&["gateway", "--port", "0", "--server", server]);
        if let Some(authority) = authority {
            command.env("SSL_CERT_FILE", authority);
        }
        let mut child = KillOnDrop(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut said = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut said).unwrap();
        let address = said.split_once(" on http://").expect(&said).1;
        let address = address.split_once(';').expect(&said).0;
        assert!(said.contains("CONTEXTPILOT_KV_EVENTS is not set"), "{said}");
        Self {
            _process: child,
            address: address.parse().unwrap(),
        }
    }

    fn ask(&self, method: &str, path: &str, key: &str, body: &str) -> Response {
        let mut connection = Connection::open(self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write(head.as_bytes()).unwrap();
        connection.response().unwrap()
    }

    fn post(&self, path: &str, body: &Value) -> Response {
        self.ask("POST", path, KEY, &body.to_string())
    }
}

const COMPLETION: &str = "/v1/completions/render";
const CHAT: &str = "/v1/chat/completions/render";

#[test]
fn the_gateway_gives_the_token_ids_that_the_server_evaluates() {
    let server = two_slots().args(["--api-key", KEY]).spawn().unwrap();
    let gateway = Gateway::start(&format!("http://{}", server.address()));
    let rendered = |path, body: Value| {
        let response = gateway.post(path, &body);
        assert_eq!(response.status, 200, "{}", response.text());
        response.json().unwrap()
    };
    let tokens = |text: &str| {
        let body = json!({"content": text, "add_special": true});
        let response = gateway.post("/tokenize", &body);
        response.json().unwrap()["tokens"].clone()
    };
    let (tea, sea) = (tokens("tea"), tokens("the sea"));
    assert_eq!(
        rendered(COMPLETION, json!({"prompt": "tea"})),
        json!([{"token_ids": tea}])
    );
    assert_eq!(
        rendered(COMPLETION, json!({"prompt": ["tea", "the sea", [1, 2, 3]]})),
        json!([{"token_ids": tea}, {"token_ids": sea}, {"token_ids": [1, 2, 3]}])
    );
    let chat = json!({"messages": [{"role": "user", "content": "Which tea?"}], "max_tokens": 1});
    let of_chat = rendered(CHAT, chat.clone());
    let count = of_chat["token_ids"].as_array().unwrap().len();
    let answer = gateway.post("/v1/chat/completions", &chat).json().unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], count);
    // This server publishes no KV cache events.
    let sources = gateway.ask("GET", "/kv_event_sources", KEY, "");
    assert_eq!(sources.json().unwrap(), json!({}));
}

#[test]
fn the_gateway_refuses_media_and_what_the_server_refuses() {
    let server = two_slots().args(["--api-key", KEY]).spawn().unwrap();
    let gateway = Gateway::start(&format!("http://{}", server.address()));
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]});
    for (path, body, status, words) in [
        (COMPLETION, json!({}), 400, "must be a text"),
        (COMPLETION, json!({"prompt": [[]]}), 400, "must be a text"),
        (CHAT, image, 501, "have no token ids"),
        // The last field is a part of the server's own error message.
        (CHAT, json!({"messages": 1}), 400, "messages"),
    ] {
        let response = gateway.post(path, &body);
        assert_eq!(response.status, status, "{body}: {}", response.text());
        assert!(response.text().contains(words), "{}", response.text());
        let error = &response.json().unwrap()["error"];
        assert_eq!(error["code"], status);
    }
    let malformed = gateway.ask("POST", CHAT, KEY, "{");
    assert_eq!(malformed.status, 400);
    assert_eq!(gateway.ask("GET", CHAT, KEY, "").status, 405);
    // The server checks the API key, not the gateway.
    for key in ["", "other"] {
        let prompt = r#"{"prompt": "tea"}"#;
        assert_eq!(gateway.ask("POST", COMPLETION, key, prompt).status, 401);
        assert_eq!(gateway.ask("POST", "/completion", key, prompt).status, 401);
    }
}

#[test]
fn the_gateway_speaks_tls_to_a_server_with_tls() {
    let server = two_slots().tls().args(["--api-key", KEY]).spawn().unwrap();
    let port = server.address().port();
    let url = format!("https://localhost:{port}");
    let authority = server.certificate_file().unwrap();
    let gateway = Gateway::trusting(&url, Some(&authority));
    let prompt = json!({"prompt": "tea", "n_predict": 2});
    let rendered = gateway.post(COMPLETION, &prompt).json().unwrap();
    assert!(!rendered[0]["token_ids"].as_array().unwrap().is_empty());
    assert_eq!(gateway.post("/completion", &prompt).status, 200);
    assert_eq!(
        gateway
            .ask("POST", COMPLETION, "", "{\"prompt\": \"a\"}")
            .status,
        401
    );
    // A gateway without that file does not trust the certificate.
    let gateway = Gateway::start(&url);
    let refused = gateway.post(COMPLETION, &prompt);
    assert_eq!(refused.status, 502, "{}", refused.text());
    assert!(refused.text().contains("certificate"), "{}", refused.text());
}

#[test]
fn without_a_server_the_gateway_names_its_address() {
    let address = nowhere();
    let gateway = Gateway::start(&format!("http://{address}"));
    let response = gateway.post(COMPLETION, &json!({"prompt": "tea"}));
    assert_eq!(response.status, 502);
    assert!(response.text().contains(&address), "{}", response.text());
    let said = fails(companion(&["gateway", "--server", "127.0.0.1:8080"]));
    assert!(
        said.contains("--server") && said.contains("http://"),
        "{said}"
    );
}
