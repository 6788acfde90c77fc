//! The commands `stats`, `where`, `events` and `reset`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use contextpilot_testbed::Request;

use crate::support::{Watched, companion, fails, json, nowhere, two_slots};

const TEA: &str = "Tea is picked in spring, on slopes that face the morning sun.";
const SEA: &str = "The sea is salt because rivers carry minerals and only water leaves.";

fn ask(text: &str, id: &str) -> Request {
    Request::completion(text).id(id).slot(0)
}

#[test]
fn where_and_stats_show_what_is_cached() {
    let watched = Watched::start(two_slots());
    let tea = watched.complete(ask(TEA, "tea"));
    watched.wait_state("tea", "cached");
    let text = watched.text(&["where", "tea"]);
    let tokens = tea.prompt_tokens;
    let start = format!("tea  cached  in slot 0, {tokens} tokens, since ");
    assert!(text.starts_with(&start), "{text}");

    let text = watched.text(&["stats"]);
    assert!(text.starts_with("llama.cpp "), "{text}");
    let (text, json) = (text, watched.json(&["stats"]));
    assert_eq!(json["slots"][0]["requests"][0], "tea");
    assert_eq!(json["reuse"]["total"]["evaluated"], tea.prompt_n);
    let reuse = format!("(0 reused, {tokens} evaluated; prompts: 1)");
    for part in [
        "hook 0.1.0 observing",
        "CONTEXTPILOT_INDEX_URL is not set",
        &reuse,
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn evictions_are_printed_as_they_happen_and_afterwards() {
    let watched = Watched::start(two_slots());
    let mut events = watched
        .command(&["events", "--json", "--count", "3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Requests are repeated until a first event arrives. Then the command is connected.
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let (sender, first) = std::sync::mpsc::channel();
    let rest = std::thread::spawn(move || {
        sender.send(lines.next().unwrap().unwrap()).unwrap();
        lines.map(Result::unwrap).collect::<Vec<String>>()
    });
    let mut number = 0;
    let first = crate::support::until("an event arrives", || {
        number += 1;
        watched.complete(ask(TEA, &format!("tea-{number}")));
        first.try_recv().ok()
    });
    assert_eq!(json(&first)["change"], "cached", "{first}");
    for (text, id) in [(SEA, "sea"), (TEA, "tea")] {
        watched.complete(ask(text, id));
    }
    let rest = rest.join().unwrap();
    assert!(events.wait().unwrap().success());
    assert_eq!(rest.len(), 2, "{rest:?}");
    let (before, after) = (json(&first), json(&rest[0]));
    let sequence = |event: &serde_json::Value| event["sequence"].as_u64().unwrap();
    assert_eq!(sequence(&after), sequence(&before) + 1);

    watched.wait_state("sea", "evicted");
    let gone = watched.command(&["where", "sea", "tea"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(1), "one of them is not cached");
    let text = String::from_utf8_lossy(&gone.stdout).into_owned();
    let evicted = "sea  evicted  overwritten by tea; it was in slot 0, ";
    assert!(text.starts_with(evicted), "{text}");
    assert!(
        text.lines().nth(1).unwrap().starts_with("tea  cached"),
        "{text}"
    );
    let text = watched.text(&["stats"]);
    assert!(text.contains("overwritten "), "{text}");
}

#[test]
fn a_refused_request_is_called_that_and_no_eviction() {
    let watched = Watched::start(two_slots());
    watched.complete(ask(TEA, "tea"));
    watched.wait_state("tea", "cached");
    let too_long = Request::completion("word ".repeat(3000)).id("long");
    assert!(watched.server.complete(&too_long).is_err());
    watched.wait_state("long", "evicted");
    let words = "never cached: it was refused, or its client left before the prompt was evaluated";
    for command in ["where", "why"] {
        let output = watched.command(&[command, "long"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.starts_with(&format!("long  {words}")), "{text}");
    }
    let text = watched.text(&["stats"]);
    assert!(
        text.contains("\nids evicted  none; 1 never cached\n"),
        "{text}"
    );
}

#[test]
fn the_end_of_the_server_ends_the_events() {
    let mut watched = Watched::start(two_slots());
    let mut events = watched
        .command(&["events"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let (sender, line) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        sender.send(lines.next().unwrap().unwrap()).unwrap();
        lines.count()
    });
    let mut number = 0;
    let line = crate::support::until("an event arrives", || {
        number += 1;
        watched.complete(ask(TEA, &format!("tea-{number}")));
        line.try_recv().ok()
    });
    assert!(line.contains("  cached    tea-"), "{line}");
    watched.server.stop(libc::SIGTERM).unwrap();
    reader.join().unwrap();
    assert_eq!(events.wait().unwrap().code(), Some(1));
}

#[test]
fn a_reset_reports_and_forgets_everything() {
    let watched = Watched::start(two_slots());
    watched.complete(ask(TEA, "tea"));
    watched.wait_state("tea", "cached");
    assert_eq!(watched.json(&["reset"])["evicted"], 1);
    let text = watched.text(&["reset"]);
    assert!(
        text.starts_with("0 requests forgotten; no index is told"),
        "{text}"
    );
    let said = watched
        .command(&["where", "tea", "--json"])
        .output()
        .unwrap();
    let said = json(&String::from_utf8_lossy(&said.stdout));
    assert_ne!(said["state"], "cached");
}

#[test]
fn without_a_hook_the_message_says_what_to_do() {
    let nobody = nowhere();
    for command in ["stats", "events", "reset", "top"] {
        let said = fails(companion(&[command, "--control", &nobody]));
        let advice = format!("CONTEXTPILOT_LISTEN={nobody} contextpilot-llama-server");
        for part in ["nothing listens there", &advice, "--control"] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
    }
    // Which the launcher would refuse.
    let said = fails(companion(&["stats", "--control", "foo"]));
    assert!(
        said.contains("--control is \"foo\": no port; give one, as in 127.0.0.1:8890"),
        "{said}"
    );
    assert!(!said.contains("CONTEXTPILOT_LISTEN=foo"), "{said}");
    let mut by_variable = companion(&["where", "x"]);
    by_variable.env("CONTEXTPILOT_LISTEN", &nobody);
    assert!(fails(by_variable).contains(&nobody));
    let nonsense = fails(companion(&["stats", "--control", "ftp://x"]));
    assert!(nonsense.contains("--control"), "{nonsense}");
}

#[test]
fn the_token_of_the_endpoint_is_sent() {
    let builder = two_slots().env("CONTEXTPILOT_LISTEN_TOKEN", "sesame");
    let watched = Watched::start(builder);
    let said = fails(watched.command(&["stats"]));
    assert!(said.contains("set CONTEXTPILOT_LISTEN_TOKEN"), "{said}");
    let mut given = watched.command(&["stats", "--json"]);
    given.env("CONTEXTPILOT_LISTEN_TOKEN", "sesame");
    let stats = json(&crate::support::good(&given.output().unwrap()));
    assert_eq!(stats["mode"], "observing");
}

#[test]
fn the_control_endpoint_may_be_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("control.sock").display());
    let watched = Watched::listening(two_slots(), &address);
    assert_eq!(watched.control, address);
    watched.complete(ask(TEA, "tea"));
    watched.wait_state("tea", "cached");
    assert!(watched.text(&["stats"]).contains("1 with an id"));
}
