//! All commands that say what would have helped ask the same adviser, which replays.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contextpilot_testbed::Connection;

use super::*;
use crate::support::read;

/// What is inside a report.
fn inside(report: &str) -> Value {
    let (_, rest) = report.split_once("id=\"data\">").expect("data");
    let packed = rest.split('<').next().expect("a part");
    let packed = STANDARD.decode(packed).expect("base64");
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).expect("packed");
    json(&String::from_utf8(bytes).expect("text"))
}

/// The changes, and what would have been evaluated with each.
fn gist(advised: &Value) -> Vec<[Value; 3]> {
    let changes = ["changes", "alone"].map(|list| advised[list].as_array().expect("a list"));
    let of = |one: &Value| {
        let evaluated = &one["point"]["evaluated_tokens"];
        [&one["flags"], &one["setting"], evaluated].map(Value::clone)
    };
    changes.into_iter().flatten().map(of).collect()
}

/// Two conversations in one slot.
#[test]
fn the_report_the_page_and_top_say_what_advise_says() {
    say_the_same(None);
}

/// The file lacks the last request until its slot is used again: none of them asks it.
#[test]
fn they_say_the_same_while_the_server_records() {
    let folder = tempfile::tempdir().unwrap();
    say_the_same(Some(&folder.path().join("traffic")));
}

/// A file has a request when its slot is used again; the last requests have it at once, and before that there is none.
#[test]
fn before_the_first_prompt_they_wait_for_one_and_after_it_they_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .env("CONTEXTPILOT_TRAFFIC_FILE", folder.path().join("traffic"))
        .args(["--parallel", "1", "--cache-ram", "0"]);
    let watched = Watched::start(builder);
    let said = until("the recording is under way", || {
        let said = crate::support::fails(watched.command(&["advise"]));
        let is_loading = said.contains("records no traffic") || said.contains("loading");
        (!is_loading).then_some(said)
    });
    assert!(said.contains("No prompt was evaluated yet"), "{said}");
    assert!(!said.contains("traffic"), "{said}");
    watched.complete(Request::completion(tokens(1, 300)).predict(2));
    until("it is advised", || {
        let output = watched.command(&["advise", "--json"]).output().unwrap();
        let advised = output
            .status
            .success()
            .then(|| json(&String::from_utf8_lossy(&output.stdout)))?;
        (advised["recorded"]["prompt_tokens"] == 300).then_some(())
    });
}

/// Their prompts are kept when the server has been silent for a while: right after them, none is.
#[test]
fn right_after_embeddings_advise_waits_for_them() {
    let builder = Server::builder().model(&Model::tiny(Arch::Llama));
    let watched = Watched::start(builder.args(["--embeddings", "--pooling", "mean"]));
    let body = object!({"input": "a prompt of which an embedding is made"});
    for _ in 0..3 {
        let answer = watched.server.post("/v1/embeddings", &body).unwrap();
        assert_eq!(answer.status, 200);
    }
    let advised = watched.json(&["advise"]);
    assert!(
        advised["recorded"]["prompt_tokens"].as_u64() > Some(0),
        "{advised}"
    );
}

fn say_the_same(recording: Option<&Path>) {
    let mut builder = Server::builder().model(&Model::tiny(Arch::Llama));
    if let Some(file) = recording {
        builder = builder.env("CONTEXTPILOT_TRAFFIC_FILE", file);
    }
    let watched = Watched::start(builder.args(["--parallel", "1", "--cache-ram", "0"]));
    for seed in [1, 2, 1, 2] {
        watched.complete(Request::completion(tokens(seed, 300)).predict(2));
    }
    let advised = until("it is advised", || {
        let advised = watched.json(&["advise"]);
        let is_all = advised["recorded"]["prompt_tokens"] == 1200;
        is_all.then_some(advised)
    });
    assert!(!gist(&advised).is_empty(), "{advised}");

    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html");
    watched.text(&["report", "-o", report.to_str().unwrap()]);
    let data = inside(&read(&report));
    assert_eq!(gist(&data["advice"]), gist(&advised));
    assert!(data["grid"].as_array().is_some_and(|grid| grid.len() > 4));

    let open = watched.open();
    let (address, token) = (open.address, &open.token);
    let mut connection = Connection::open(address).unwrap();
    let asked =
        format!("GET /advice HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
    connection.write(asked.as_bytes()).unwrap();
    let answer = connection.response().unwrap();
    assert_eq!(gist(&json(&answer.text())), gist(&advised));

    let picture = folder.path().join("top.svg");
    let words = until("top has replayed", || {
        watched.text(&[
            "top",
            "--watch",
            "1",
            "--picture",
            picture.to_str().unwrap(),
        ]);
        let drawn = read(&picture);
        drawn.find("Try").map(|at| drawn[at..].to_owned())
    });
    let flags = advised["changes"][0]["flags"].as_array().expect("a list");
    let flags: Vec<&str> = flags.iter().filter_map(Value::as_str).collect();
    assert!(words.contains(&flags.join(" ")), "{flags:?}: {words}");
}
