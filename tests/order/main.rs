//! `contextpilot-llama index` and `up`, in front of a real llama-server.

mod bounds;
mod clients;
mod foreseen;
mod learning;

#[path = "../index/python.rs"]
mod python;
mod secure;
mod soak;
mod stabilise;
#[path = "../support/store.rs"]
mod store;
mod stored;
mod support;
mod usage;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use contextpilot_client::control::RequestState;
use contextpilot_testbed::{Arch, Builder, Connection, Request, Server, or_return};
use python::python;
use serde_json::json;
use support::{Index, companion, control, exchange, said_address, until, watched};
use tempfile::TempDir;

const TEA: &str = "Tea is picked by hand in the early morning, then rolled and dried.";
const SEA: &str = "Waves carry energy across an ocean, but hardly any of the water.";
const OWL: &str = "Owls turn their heads because their eyes cannot turn in them.";
const ELM: &str = "Elms line the avenue; a beetle brings the fungus that kills them.";
const ICE: &str = "Ice floats, which keeps the lakes below it alive in winter.";

fn two_slots() -> Builder {
    Server::tiny().bare_slots(2)
}

/// A server with two slots, and an index in front of it that knows what is cached there.
struct Told {
    index: Index,
    server: Server,
    socket: PathBuf,
    _folder: TempDir,
}

impl Told {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let server = watched(&two_slots(), &socket);
        Self {
            index: Index::told(server.address(), &socket),
            server,
            socket,
            _folder: folder,
        }
    }
}

#[test]
fn contexts_are_ordered_by_what_is_cached_and_the_forecast_is_right() {
    let Told { index, socket, .. } = &Told::start();
    let control = control(socket);
    let mut sent = Vec::new();
    for context in [
        &[TEA, SEA, OWL][..],
        &[SEA, TEA, ELM],
        &[ICE, OWL],
        &[ELM, SEA, TEA],
        &[OWL, ICE, SEA],
        &[ICE, TEA, SEA],
    ] {
        let (answer, id, prompt) = index.order(context);
        let reused = index.complete(&prompt, &id);
        sent.push(id);
        index.agrees(&control, &sent);
        let expected = answer["expected_cached_tokens"][0].as_u64().unwrap();
        let blocks = answer["matched_count"] == 1;
        assert_eq!(blocks, reused > 50, "{answer}: {reused} tokens");
        // An estimate, by the lengths of blocks: never more than is reused, and hardly less.
        assert!(
            expected <= reused && reused - expected <= reused / 16,
            "{expected} tokens were foreseen, {reused} were reused: {answer}"
        );
    }
    let stats = index.get("/stats");
    assert_eq!(stats["prediction"]["requests"], 6, "{stats}");
    assert_eq!(stats["cache_truth"], "engine");
}

#[test]
fn after_a_restart_of_the_server_or_the_index_their_live_sets_agree() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let builder = two_slots();
    let mut server = watched(&builder, &socket);
    let mut sent = Vec::new();
    let mut ask = |index: &Index, context: &[&str]| {
        let (_, id, prompt) = index.order(context);
        index.complete(&prompt, &id);
        sent.push(id);
        sent.clone()
    };
    let index = Index::told(server.address(), &socket);
    for context in [&[TEA, SEA][..], &[OWL, SEA], &[ELM]] {
        index.agrees(&control(&socket), &ask(&index, context));
    }
    let before = index.get("/requests");
    assert_ne!(before["num_requests"], 0);

    // A new server at the same socket. Nothing is cached.
    let port = server.address().port();
    server.stop(15).unwrap();
    index.wait_truth("own guess");
    let again = builder
        .clone()
        .args(["--port".to_owned(), port.to_string()]);
    server = watched(&again, &socket);
    assert_eq!(server.address().port(), port);
    index.wait_truth("engine");
    let sent = ask(&index, &[ICE, TEA]);
    index.agrees(&control(&socket), &sent);
    assert_eq!(index.get("/requests")["num_requests"], 1);

    // A new index tracks requests from its start on.
    drop(index);
    let index = Index::told(server.address(), &socket);
    let (_, id, prompt) = index.order(&[ICE, OWL]);
    index.complete(&prompt, &id);
    index.agrees(&control(&socket), &[id]);
}

#[test]
fn requests_without_an_id_get_one_and_are_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let server = watched(&two_slots().args(["--api-key", "secret"]), &socket);
    let index = Index::told(server.address(), &socket);
    let body = r#"{"prompt":"Tea","n_predict":2}"#;
    let post = |more: &str, body: &str| {
        let mut connection = Connection::open(index.address).unwrap();
        let head = format!(
            "POST /completion HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write(head.as_bytes()).unwrap();
        connection.response().unwrap()
    };
    assert_eq!(post("", body).status, 401, "the server asks for its key");
    let answer = post("Authorization: Bearer secret\r\n", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The index added an id, and the hook has read it.
    let control = control(&socket);
    until("the request has an id", || {
        let requests = control.stats().unwrap().requests;
        (requests.with_id > 0 && requests.without_id == 0).then_some(())
    });
    // So has one that comes in chunks.
    let chunks = "Transfer-Encoding: chunked\r\n\r\n21\r\n{\"prompt\":\"Sea\",\"n_predict\":2}   \r\n0\r\n\r\n";
    let head = "POST /completion HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n";
    let mut connection = Connection::open(index.address).unwrap();
    connection
        .write(format!("{head}{chunks}").as_bytes())
        .unwrap();
    assert_eq!(connection.response().unwrap().status, 200);
    until("it has an id, too", || {
        let requests = control.stats().unwrap().requests;
        assert_eq!(requests.without_id, 0);
        (requests.with_id > 1).then_some(())
    });
    let body = r#"{"prompt":"Tea is","n_predict":2,"rid":"mine"}"#;
    post("Authorization: Bearer secret\r\n", body);
    until("a client's id is kept", || {
        let state = control.request("mine").unwrap();
        matches!(state, RequestState::Cached { .. }).then_some(())
    });
    // The server's routes are passed on, the index's routes are not.
    assert_eq!(exchange(index.address, "GET", "/props", b"").status, 401);
    assert_eq!(exchange(index.address, "GET", "/reorder", b"").status, 405);
    assert_eq!(exchange(index.address, "GET", "/metrics", b"").status, 200);
}

#[test]
fn streams_pass_through_event_by_event_and_end_when_the_client_leaves() {
    let Told { index, server, .. } = &Told::start();
    let (_, id, prompt) = index.order(&[TEA]);
    let request = Request::completion(prompt).id(id).predict(4).streamed();
    let mut connection = Connection::open(index.address).unwrap();
    let answer = connection
        .exchange("POST", request.path(), request.wire_body().as_bytes())
        .unwrap();
    let text = answer.text();
    assert!(text.matches("data: ").count() >= 4, "{text}");
    assert_eq!(index.get("/stats")["prediction"]["requests"], 1, "{text}");

    let endless = Request::completion("On and on")
        .predict(1_000_000)
        .streamed();
    let mut connection = Connection::open(index.address).unwrap();
    let bytes = endless.wire_body();
    connection
        .write(&Connection::request_bytes(
            "POST",
            endless.path(),
            bytes.as_bytes(),
        ))
        .unwrap();
    let head = connection.head().unwrap();
    connection.part(&head).unwrap();
    drop(connection);
    server.wait_idle().unwrap();
}

#[test]
fn during_a_large_batch_other_requests_are_answered() {
    let Told { index, .. } = &Told::start();
    let contexts: Vec<Vec<usize>> = (0..600)
        .map(|at: usize| (0..12).map(|n| (at * 7 + n * n * 13) % 90).collect())
        .collect();
    let body = json!({"contexts": contexts});
    let batch = std::thread::scope(|scope| {
        let batch = scope.spawn(|| index.post("/reorder", &body));
        let mut asked = 0;
        while !batch.is_finished() {
            assert_eq!(exchange(index.address, "GET", "/ready", b"").status, 200);
            asked += 1;
        }
        assert!(asked > 0);
        batch.join().unwrap()
    });
    assert_eq!(batch.status, 200);
    let answer = batch.json().unwrap();
    assert_eq!(answer["num_contexts"], 600);
    let refused = json!({"contexts": vec![[1]; 10_001]});
    assert_eq!(index.post("/reorder", &refused).status, 413);
}

#[test]
fn contextpilots_own_client_works_with_this_index() {
    let python = or_return!(python());
    let Told { index, .. } = &Told::start();
    let output = Command::new(python)
        .args([
            "-c",
            include_str!("client.py"),
            &index.address.port().to_string(),
        ])
        .env_remove("CONTEXTPILOT_INDEX_URL")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn up_runs_server_hook_and_index_and_ends_with_the_server() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let model = contextpilot_testbed::Model::tiny(Arch::Llama);
    let mut command = companion(&["up", "--index-port", "0", "-m"]);
    command
        .arg(model.path())
        .args(["--port", &port, "--parallel", "2", "--threads", "1"]);
    command.env("LLAMA_SERVER_BIN", contextpilot_testbed::llama_server());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let (address, log) = said_address(&mut process);
    until("all three run", || {
        let ready = exchange(address, "GET", "/ready", b"").json().ok()?;
        // The hook answers before the model is loaded.
        let loaded = exchange(address, "GET", "/props", b"").status == 200;
        (ready["cache_truth"] == "engine" && loaded).then_some(())
    });
    let answer = exchange(
        address,
        "POST",
        "/completion",
        br#"{"prompt":"Tea","n_predict":1}"#,
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = process.wait().unwrap();
    let log = log.join().unwrap();
    assert!(status.code().is_some(), "{status}: {log}");
    let connection = || Connection::open(format!("127.0.0.1:{port}").parse().unwrap());
    assert!(connection().is_err(), "the server has ended as well: {log}");
}
