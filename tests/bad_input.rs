//! Malformed and unusual requests: the server answers as without the hook, and a
//! request id is used exactly as sent or ignored.

use contextpilot_testbed::{Connection, Index, Outcome, Request, Response, Server};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use support::{PATIENCE, hooked};

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

/// The same server with the hook and without it.
struct Pair {
    index: Index,
    hooked: Server,
    plain: Server,
}

impl Pair {
    fn start() -> Self {
        let index = Index::start().unwrap();
        let server = Server::tiny().bare_slots(1);
        Self {
            hooked: hooked(&server.clone().observed(), &index),
            plain: server.spawn().unwrap(),
            index,
        }
    }

    /// Does the same with both servers, and compares their answers.
    fn both(&self, what: &str, act: impl Fn(&mut Connection) -> Option<Response>) {
        let [ours, theirs] = [&self.hooked, &self.plain].map(|server| {
            let answer = act(&mut server.connect().unwrap());
            server.wait_idle().unwrap();
            answer.map(|response| {
                let outcome = Outcome {
                    copied: false,
                    id: None,
                    completions: Vec::new(),
                    response,
                };
                (outcome.response.status, outcome.timeless())
            })
        });
        assert_eq!(ours, theirs, "{what}");
    }

    /// Sends a body in one piece to both servers.
    fn send(&self, what: &str, body: &[u8]) {
        self.both(what, |connection| {
            Some(connection.exchange("POST", "/completion", body).unwrap())
        });
    }

    /// Sends a prompt without an id. It overwrites what is in the only slot.
    fn overwrite(&self) {
        self.send("overwrite", &body(json!({"prompt": "zzzzzzzzzzzzzzzz"})));
    }

    /// Exactly these ids must be reported as evicted.
    fn evicted_are(&self, ids: &[&str]) {
        let wish: BTreeSet<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        self.index
            .wait_until(|evicted| evicted.is_superset(&wish), PATIENCE);
        self.hooked.come_to_rest().unwrap();
        assert_eq!(self.index.evicted(), wish, "{}", self.hooked.stderr());
    }
}

/// A body with parameters that make the answer reproducible.
fn body(mut fields: Value) -> Vec<u8> {
    for (name, value) in [("n_predict", 4), ("temperature", 0), ("seed", 1)] {
        fields[name] = value.into();
    }
    fields.to_string().into_bytes()
}

#[test]
fn an_id_is_used_exactly_as_given_or_not_at_all() {
    let pair = Pair::start();
    let quotes = "a \"quoted\"\nid\twith \\ and \u{1F980} \u{7f}";
    let longest = "x".repeat(512);
    let too_long = "x".repeat(513);
    let huge = "x".repeat(10 << 20);
    let ids = [
        json!(quotes),
        json!(longest),
        json!(" "),
        json!(too_long),
        json!(huge),
        json!(""),
        json!(17),
        json!({"rid": "inner"}),
        json!(["inner"]),
        json!(null),
        json!(true),
    ];
    for (n, id) in ids.iter().enumerate() {
        let prompt = format!("{}rompt number {n}", char::from(b'A' + n as u8));
        pair.send(
            &format!("id {n}"),
            &body(json!({"prompt": prompt, "rid": id, "request_id": id})),
        );
    }
    // `request_id` is used if `rid` is not a string.
    pair.send(
        "fallback",
        &body(json!({"prompt": "Xyz", "rid": 5, "request_id": "second"})),
    );
    pair.overwrite();
    pair.evicted_are(&[quotes, &longest, " ", "second"]);
}

#[test]
fn bodies_that_are_not_json_get_the_servers_own_answer() {
    let pair = Pair::start();
    let good = body(json!({"prompt": "Some prompt", "rid": "req-good"}));
    pair.send("good", &good);
    for bad in [
        &b""[..],
        b"not json",
        b"{",
        b"[]",
        b"\"rid\"",
        b"{\"prompt\": \"x\"} trailing",
        b"\x00\x01\x02\xff",
        b"{\"prompt\": \"\xff\xfe\"}",
    ] {
        pair.send(&format!("{:?}", String::from_utf8_lossy(bad)), bad);
    }
    pair.overwrite();
    pair.evicted_are(&["req-good"]);
}

#[test]
fn a_request_sent_byte_by_byte_is_read_as_a_whole() {
    let pair = Pair::start();
    for n in 0..2 {
        let body = body(json!({"prompt": format!("{n} is the number"), "rid": format!("req-{n}")}));
        let bytes = Connection::request_bytes("POST", "/completion", &body);
        pair.both("split", |connection| {
            for byte in &bytes {
                connection.write(std::slice::from_ref(byte)).unwrap();
            }
            Some(connection.response().unwrap())
        });
    }
    pair.overwrite();
    pair.evicted_are(&["req-0", "req-1"]);
}

#[test]
fn the_id_of_a_chunked_request_is_read() {
    let pair = Pair::start();
    let body = body(json!({"prompt": "Chunks of text", "rid": "req-chunked"}));
    for size in [1, 7, 4096] {
        pair.both("chunked", |connection| {
            let mut bytes = b"POST /completion HTTP/1.1\r\nHost: x\r\n\
                Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec();
            for chunk in body.chunks(size) {
                bytes.extend(format!("{:x};name=value\r\n", chunk.len()).bytes());
                bytes.extend(chunk);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\n\r\n");
            connection.write(&bytes).unwrap();
            Some(connection.response().unwrap())
        });
    }
    pair.overwrite();
    pair.evicted_are(&["req-chunked"]);
}

#[test]
fn each_request_on_one_connection_has_its_own_id() {
    let pair = Pair::start();
    pair.both("keep-alive", |connection| {
        let mut last = None;
        for n in 0..5 {
            let body = body(json!({"prompt": format!("{n} and more"), "rid": format!("req-{n}")}));
            last = Some(connection.exchange("POST", "/completion", &body).unwrap());
            // Requests without an id on the same connection must not get the last id.
            connection.exchange("GET", "/health", b"").unwrap();
            let anonymous = crate::body(json!({"prompt": format!("anonymous {n}")}));
            connection
                .exchange("POST", "/completion", &anonymous)
                .unwrap();
        }
        last
    });
    pair.evicted_are(&["req-0", "req-1", "req-2", "req-3", "req-4"]);
}

/// The same bytes as a request in chunks of a few bytes.
fn in_chunks(body: &[u8]) -> Vec<u8> {
    let mut bytes = b"POST /completion HTTP/1.1\r\nHost: x\r\n\
        Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        .to_vec();
    for chunk in body.chunks(9) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

#[test]
fn requests_sent_before_the_answers_to_earlier_ones_have_their_own_ids() {
    let by_length = |body: &[u8]| Connection::request_bytes("POST", "/completion", body);
    let health = Connection::request_bytes("GET", "/health", b"");
    type Make<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let forms: [(Make<'_>, usize); 4] = [
        (&by_length, 2),
        (&by_length, 6),
        (&in_chunks, 2),
        (&in_chunks, 6),
    ];
    let index = Index::start().unwrap();
    let server = Server::tiny().bare_slots(1);
    let server = hooked(&server.observed(), &index);
    let mut sent = BTreeSet::new();
    for (form, (make, count)) in forms.into_iter().enumerate() {
        let mut bytes = Vec::new();
        for n in 0..count {
            let id = format!("req-{form}-{n}");
            // Each begins with another letter. One has no id. The server closes the connection after an
            // answer that it streams, so the last one does.
            let last = n + 1 == count;
            let letter = char::from(b'A' + (form * 6 + n) as u8);
            let prompt = format!("{letter} is {}", "what it begins with ".repeat(n + 1));
            let mut fields = json!({"prompt": prompt, "rid": id, "stream": last});
            if n == 4 {
                fields["rid"] = Value::Null;
            } else {
                sent.insert(id);
            }
            bytes.extend(make(&body(fields)));
            if !last {
                bytes.extend(&health);
            }
        }
        let mut connection = server.connect().unwrap();
        connection.write(&bytes).unwrap();
        let all = 2 * count - 1;
        let answers = std::iter::from_fn(|| connection.response().ok()).take(all);
        let answered = answers.filter(|answer| answer.status == 200).count();
        if form == 0 && answered == 1 {
            // Servers of early 2026 and before drop what comes behind a request in the same read.
            return;
        }
        assert_eq!(answered, all, "{}", server.stderr());
    }
    server
        .complete(&Request::completion("zzzzzzzzzzzzzzzz"))
        .unwrap();
    index.wait_until(|evicted| evicted.is_superset(&sent), PATIENCE);
    server.come_to_rest().unwrap();
    assert_eq!(index.evicted(), sent, "{}", server.stderr());
    assert_eq!(index.reports().len(), sent.len(), "each is reported once");
    let control = server.await_control().unwrap();
    let mut connection = Connection::open(control).unwrap();
    let stats = connection
        .exchange("GET", "/stats", b"")
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(stats["slots"][0]["busy"], false, "{stats}");
    assert_eq!(stats["losses"]["unreadable_connections"], 0, "{stats}");
}

#[test]
fn the_id_of_a_request_that_expects_100_continue_is_read() {
    let pair = Pair::start();
    let body = body(json!({"prompt": "Wait for it", "rid": "req-expect"}));
    pair.both("expect", |connection| {
        let head = format!(
            "POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
             Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        connection.write(head.as_bytes()).unwrap();
        assert_eq!(connection.head().unwrap().status, 100);
        connection.write(&body).unwrap();
        Some(connection.response().unwrap())
    });
    pair.overwrite();
    pair.evicted_are(&["req-expect"]);
}

#[test]
fn if_a_client_leaves_during_the_body_its_id_is_ignored() {
    let pair = Pair::start();
    let body = body(json!({"prompt": "Never sent whole", "rid": "req-torn"}));
    let bytes = Connection::request_bytes("POST", "/completion", &body);
    for end in [10, bytes.len() / 2, bytes.len() - 1] {
        pair.both("torn", |connection| {
            connection.write(&bytes[..end]).unwrap();
            None
        });
    }
    pair.send(
        "good",
        &crate::body(json!({"prompt": "A whole one", "rid": "req-whole"})),
    );
    pair.overwrite();
    pair.evicted_are(&["req-whole"]);
}

#[test]
fn an_id_in_the_prompt_or_in_a_nested_object_is_ignored() {
    let pair = Pair::start();
    let request = Request::completion("The id is in the prompt: {\"rid\": \"req-inside\"}").with(
        "metadata",
        json!({"rid": "req-nested", "request_id": "req-nested"}),
    );
    pair.send("nested", request.body().to_string().as_bytes());
    pair.overwrite();
    pair.evicted_are(&[]);
}
