//! When the control endpoint shows text of prompts (`CONTEXTPILOT_EXPLAIN_TEXT`).

use std::process::Command;

use contextpilot_testbed::{Builder, Connection, Request, Response, skip, test_name};
use serde_json::{Value, json};

use crate::support::{Watched, read, two_slots, until};

/// A text that occurs in prompts only.
const SECRET: &str = "the zebra crossing";
const TOKEN: &str = "s3same";
/// Set if the test runs inside the network namespace.
const INSIDE: &str = "TESTED_IN_A_NAMESPACE";

fn showing() -> Builder {
    two_slots().env("CONTEXTPILOT_EXPLAIN_TEXT", "1")
}

fn get(watched: &Watched, target: &str) -> Response {
    let at = watched.server.await_control().unwrap();
    let mut connection = Connection::open(at).unwrap();
    let bearer = format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    connection.write(bearer.as_bytes()).unwrap();
    connection.response().unwrap()
}

/// Two prompts that begin alike, in one slot; returns the evaluation of the second.
fn ask(watched: &Watched, first: &str, second: &str) -> Value {
    for (id, prompt) in [("first", first), ("second", second)] {
        watched.complete(Request::completion(prompt).slot(0).predict(1).id(id));
    }
    until("the second is evaluated", || {
        let state: Value = get(watched, "/requests/second").json().ok()?;
        Some(state["evaluation"].clone()).filter(|evaluation| !evaluation.is_null())
    })
}

#[test]
fn a_difference_is_shown_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("requests.jsonl");
    let watched = Watched::start(showing().env("CONTEXTPILOT_LOG_FILE", &log));
    let first = format!(
        "You go over {SECRET} on Monday, and back. {}",
        "x".repeat(40)
    );
    let second = first.replace("Monday", "Sunday");
    let evaluation = ask(&watched, &first, &second);
    let text = &evaluation["diverged"]["text"];
    // With this model, each character is a token.
    let shown = json!({
        "before": "bra crossing on ",
        "old": "Monday, and back. xxxxxx",
        "new": "Sunday, and back. xxxxxx",
        "old_differs": 2, "new_differs": 2,
    });
    assert_eq!(*text, shown);
    let said = watched.text(&["why", "second"]);
    let line = "behind “bra crossing on ” it was “Monday, and back. xxxxxx” and is “Sunday, and back. \
                xxxxxx”";
    assert!(said.contains(line), "{said}");
    let last = watched.text(&["why", "--last"]);
    assert!(last.contains(line), "{last}");
    assert!(watched.server.stderr().contains(
        "[ContextPilot] CONTEXTPILOT_EXPLAIN_TEXT: the control endpoint shows the first words of requests"
    ));
    // Only the endpoint shows text. The log does not.
    let lines = until("both are logged", || {
        let lines = std::fs::read_to_string(&log).ok()?;
        (lines.lines().count() == 2).then_some(lines)
    });
    assert!(
        !lines.contains("Monday") && !lines.contains("\"text\""),
        "{lines}"
    );
}

/// Sends a chat as an agent does, with parts that its user has not written.
fn chat(watched: &Watched, question: &str) {
    let reminder = "<reminder>Be short.</reminder>";
    let parts = [question, reminder].map(|text| json!({"type": "text", "text": text}));
    let body = json!({
        "messages": [{"role": "user", "content": parts}], "max_tokens": 1, "rid": "chat",
    });
    let body = body.to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nUser-Agent: agent/1.2 more\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = Connection::open(watched.server.address()).unwrap();
    connection.write((head + &body).as_bytes()).unwrap();
    assert_eq!(connection.response().unwrap().status, 200);
}

#[test]
fn requests_are_named_by_their_first_words_and_their_program() {
    let folder = tempfile::tempdir().unwrap();
    let [log, traffic] = ["requests.jsonl", "traffic"].map(|name| folder.path().join(name));
    let builder = showing().env("CONTEXTPILOT_LOG_FILE", &log);
    let watched = Watched::start(builder.env("CONTEXTPILOT_TRAFFIC_FILE", &traffic));
    chat(&watched, &format!("Walk over\n{SECRET}\u{1b}[31m, please"));
    watched.wait_state("chat", "cached");
    let name = format!("“Walk over {SECRET}[31m, please”, from agent/1.2");
    let line = format!("\n    {name}\n");
    for arguments in [
        &["why", "chat"][..],
        &["why"],
        &["where", "chat"],
        &["where"],
    ] {
        let said = watched.text(arguments);
        assert!(said.contains(&line), "{arguments:?}: {said}");
    }
    let last: Value = get(&watched, "/requests/last").json().unwrap();
    let title = json!({"words": format!("Walk over {SECRET}[31m, please"), "agent": "agent/1.2"});
    assert_eq!(last["requests"][0]["evaluation"]["title"], title);
    let stats: Value = get(&watched, "/stats").json().unwrap();
    let slots = stats["slots"].as_array().unwrap();
    let titles: Vec<&Value> = slots.iter().map(|slot| &slot["last_title"]).collect();
    assert!(titles.contains(&&title), "{stats}");
    // Only the endpoint shows it. What others get does not have it.
    let lines = until("it is logged", || {
        Some(read(&log)).filter(|log| log.contains("chat"))
    });
    let report = folder.path().join("report.html");
    watched.text(&["report", "-o", report.to_str().unwrap()]);
    let recorded = String::from_utf8_lossy(&std::fs::read(&traffic).unwrap()).into_owned();
    for told in [lines, read(&report), recorded, watched.server.stderr()] {
        let ours = told.lines().filter(|line| line.contains("zebra"));
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
    }
}

/// A chat about the zebra crossing, which the server ends after a token.
fn asked(watched: &Watched, id: &str, system: &str) {
    let question = format!("What is {SECRET}, and who goes over it? ").repeat(8);
    let body = json!({
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "max_tokens": 1, "rid": id,
    });
    let answer = watched.server.post("/v1/chat/completions", &body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    watched.wait_state(id, "cached");
}

/// The time that the server's own template writes is told from one that a client sends.
#[test]
fn a_date_that_no_client_sent_is_named() {
    let template = |head: &str| {
        let messages = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        let builder = showing().args(["-np", "1", "--cache-ram", "0", "--jinja"]);
        Watched::start(builder.args(["--chat-template", &format!("{head}{messages}")]))
    };
    let client = |watched: &Watched| -> (Value, Vec<String>, String) {
        let named = watched.json(&["why", "second", "--worth", "0"]);
        let advice = named["advice"].as_array().expect("advice").iter();
        let client = advice.filter_map(|one| one["client"].as_str());
        let changes = client.map(str::to_owned).collect();
        let diverged = named["evaluation"]["diverged"].clone();
        (
            diverged,
            changes,
            watched.text(&["why", "second", "--worth", "0"]),
        )
    };
    let watched = template("It is {{ strftime_now('%d %b %Y %H:%M:%S') }}.\n\n");
    asked(&watched, "first", "You are brief.");
    // Until it is another second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    asked(&watched, "second", "You are brief.");
    let (diverged, changes, said) = client(&watched);
    assert_eq!(diverged["sent"], false, "{diverged}");
    assert_eq!(changes, ["same_date"], "{said}");
    assert!(said.contains(" (dated by the template): "), "{said}");
    assert!(
        said.contains("no client sent it, but the server's chat template wrote it"),
        "{said}"
    );

    let watched = template("");
    asked(
        &watched,
        "first",
        "You are brief. It is 30 Nov 2026, 17:01:05. The day is long.",
    );
    asked(
        &watched,
        "second",
        "You are brief. It is 30 Nov 2026, 17:01:06. The day is long.",
    );
    let (diverged, changes, said) = client(&watched);
    assert_eq!(diverged["sent"], true, "{diverged}");
    assert_eq!(changes, ["changes_last"], "{said}");
    assert!(!said.contains("template"), "{said}");
    // Of a prompt that is no chat, nothing is said: it may come as tokens.
    watched.complete(
        Request::completion("It is 7 o'clock")
            .predict(1)
            .id("third"),
    );
    watched.complete(
        Request::completion("It is 8 o'clock")
            .predict(1)
            .id("fourth"),
    );
    watched.wait_state("fourth", "cached");
    let fourth = watched.json(&["why", "fourth"]);
    assert_eq!(
        fourth["evaluation"]["diverged"]["text"]["new"], "8 o'clock",
        "{fourth}"
    );
    assert_eq!(
        fourth["evaluation"]["diverged"]["sent"],
        Value::Null,
        "{fourth}"
    );
}

#[test]
fn a_difference_is_shown_at_a_unix_socket_too() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("control").display());
    let watched = Watched::listening(showing(), &socket);
    for (id, prompt) in [("first", "a cup of tea"), ("second", "a cup of milk")] {
        watched.complete(Request::completion(prompt).slot(0).predict(1).id(id));
    }
    watched.wait_state("second", "cached");
    let named = watched.json(&["why", "second"]);
    let shown = json!({ "before": "<s>a cup of ", "old": "tea", "new": "milk", "old_differs": 3, "new_differs": 4 });
    assert_eq!(named["evaluation"]["diverged"]["text"], shown);
}

/// With this model, a character of two bytes is two tokens. Here only the second token differs.
#[test]
fn half_a_character_is_shown_whole() {
    let watched = Watched::start(showing());
    let first = "We met at the caf\u{e9}, \u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}".repeat(2);
    let second = first.replacen('\u{e9}', "\u{e8}", 1);
    let evaluation = ask(&watched, &first, &second);
    let text = &evaluation["diverged"]["text"];
    assert_eq!(evaluation["diverged"]["differing"], 1, "{evaluation}");
    assert_eq!(text["before"], " met at the caf", "{text}");
    // The text ends before a character of which only some bytes fit.
    let smiles = "\u{1f600}".repeat(5);
    assert_eq!(text["old"], format!("\u{e9}, {smiles}W"), "{text}");
    assert_eq!(text["new"], format!("\u{e8}, {smiles}W"), "{text}");
}

/// The shown text equals the answer of the server's `/detokenize`, also for tokens that make no
/// readable text.
#[test]
fn the_text_is_that_of_the_servers_own_detokenizer() {
    let watched = Watched::start(showing());
    // From 259 on, after the tokens for single bytes: letters, signs, and control tokens.
    let tokens = |seed: i32| -> Vec<i32> {
        let token = |place: i32| 259 + (place * 89 + seed * (place / 20) * 31) % 98;
        (0..60).map(token).collect()
    };
    let (first, second) = (tokens(0), tokens(1));
    let at = first
        .iter()
        .zip(&second)
        .take_while(|(a, b)| a == b)
        .count();
    for (id, prompt) in [("first", &first), ("second", &second)] {
        let request = Request::completion(prompt.clone()).slot(0).predict(1);
        watched.complete(request.id(id));
    }
    let evaluation = until("the second is evaluated", || {
        let state: Value = get(&watched, "/requests/second").json().ok()?;
        Some(state["evaluation"].clone()).filter(|evaluation| !evaluation.is_null())
    });
    assert_eq!(evaluation["diverged"]["at"], at);
    let detokenized = |tokens: &[i32]| {
        let body = json!({ "tokens": tokens });
        let answer = watched.server.post("/detokenize", &body).unwrap();
        answer.json().unwrap()["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let text = &evaluation["diverged"]["text"];
    assert_eq!(text["before"], detokenized(&first[at - 16..at]));
    assert_eq!(text["old"], detokenized(&first[at..at + 24]));
    assert_eq!(text["new"], detokenized(&second[at..at + 24]));
}

/// Everything that the hook shows of requests: all endpoints, its lines on stderr, and the log file.
fn all_that_is_told(watched: &Watched, log: &std::path::Path) -> String {
    let mut all = String::new();
    for target in [
        "/",
        "/stats",
        "/metrics",
        "/requests/first",
        "/requests/second",
        "/requests/last?n=100",
        "/ready",
    ] {
        let answer = get(watched, target);
        assert_eq!(answer.status, 200, "{target}");
        all += &answer.text();
    }
    let ours = watched.server.stderr();
    let ours = ours.lines().filter(|line| line.contains("[ContextPilot]"));
    all += &ours.collect::<Vec<_>>().join("\n");
    all + &read(log)
}

#[track_caller]
fn has_no_text(all: &str) {
    for part in [
        "\"text\"",
        "\"title\"",
        "\"last_title\"",
        "zebra",
        "crossing",
        "Monday",
        "Sunday",
    ] {
        assert!(!all.contains(part), "{part}: {all}");
    }
}

/// Runs a server that must not show text, and looks for text everywhere. Returns all that the hook
/// showed.
fn shows_none(builder: Builder, address: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("requests.jsonl");
    let builder = builder.env("CONTEXTPILOT_LOG_FILE", &log);
    let watched = Watched::listening(builder, address);
    let first = format!("You go over {SECRET} on Monday, and back.");
    let evaluation = ask(&watched, &first, &first.replace("Monday", "Sunday"));
    assert_eq!(evaluation["diverged"]["differing"], 2, "{evaluation}");
    until("both are logged", || {
        let lines = std::fs::read_to_string(&log).ok()?;
        (lines.lines().count() == 2).then_some(())
    });
    let all = all_that_is_told(&watched, &log);
    has_no_text(&all);
    all
}

#[test]
fn without_the_setting_no_text_is_shown() {
    for set in [None, Some("0")] {
        let builder = match set {
            None => two_slots(),
            Some(set) => two_slots().env("CONTEXTPILOT_EXPLAIN_TEXT", set),
        };
        let said = shows_none(builder, "127.0.0.1:0");
        assert!(!said.contains("EXPLAIN_TEXT"), "{said}");
    }
}

/// Runs in a new network namespace, where no other machine can really connect.
#[test]
fn if_other_machines_can_reach_the_endpoint_no_text_is_shown() {
    if std::env::var_os(INSIDE).is_some() {
        let builder = showing().env("CONTEXTPILOT_LISTEN_TOKEN", TOKEN);
        let said = shows_none(builder, "0.0.0.0:0");
        let line = "CONTEXTPILOT_EXPLAIN_TEXT is not followed, no text is shown: other machines \
                    can reach the control endpoint; set CONTEXTPILOT_LISTEN to 127.0.0.1, [::1] or \
                    a Unix socket";
        assert_eq!(said.matches("EXPLAIN_TEXT").count(), 1, "{said}");
        assert!(said.contains(line), "{said}");
        return;
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-rn", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        command.args(arguments).env(INSIDE, "1");
        command.output()
    };
    if !run(&["true"]).is_ok_and(|probe| probe.status.success()) {
        return skip("no network namespace can be made here (unshare -rn, of util-linux, and ip)");
    }
    let program = std::env::current_exe().unwrap();
    let name = test_name!();
    let output = run(&[program.to_str().unwrap(), "--exact", name, "--nocapture"]).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{output:?}"
    );
}

/// While the server sleeps, there is no model that could turn tokens into text.
#[test]
fn a_sleeping_server_shows_positions_and_counts() {
    let watched = Watched::start(showing().args(["--sleep-idle-seconds", "1"]));
    let first = "You go over the bridge on Monday, and back.";
    let evaluation = ask(&watched, first, &first.replace("Monday", "Sunday"));
    let text = &evaluation["diverged"]["text"];
    assert!(
        text["old"].as_str().unwrap().starts_with("Monday"),
        "{text}"
    );
    let asleep = until("the model is gone", || {
        let state: Value = get(&watched, "/requests/second").json().unwrap();
        let diverged = state["evaluation"]["diverged"].clone();
        (diverged["text"].is_null()).then_some(diverged)
    });
    assert_eq!(asleep["at"], evaluation["diverged"]["at"]);
    // After the server woke up, the text is shown again.
    watched.complete(Request::completion("Anything.").predict(1).id("third"));
    let state: Value = get(&watched, "/requests/second").json().unwrap();
    assert_eq!(state["evaluation"]["diverged"]["text"], *text);
}
