//! The command `why`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use contextpilot_testbed::Request;

use crate::support::{Watched, json, two_slots, until};

const SYSTEM: &str = "Today is Monday. You answer in one sentence, and you say so if you do not \
                      know. What you are asked about stands in the text below. ";

fn ask(text: &str) -> Request {
    Request::completion(text).slot(0).predict(2)
}

/// The last requests, once there are this many.
fn last(watched: &Watched, count: usize) -> Vec<serde_json::Value> {
    until("all are evaluated", || {
        let text = watched.text(&["why", "--last", "100", "--json"]);
        let all: Vec<_> = text.lines().map(json).collect();
        (all.len() == count).then_some(all)
    })
}

#[test]
fn a_changed_word_near_the_beginning_is_found() {
    let watched = Watched::start(two_slots());
    let nothing = watched.text(&["why"]);
    // For a moment the server may still count as loading.
    assert!(
        nothing.starts_with("No prompt was evaluated yet"),
        "{nothing}"
    );
    let first = watched.complete(ask(SYSTEM).id("monday"));
    let changed = SYSTEM.replace("Monday", "Sunday");
    let second = watched.complete(ask(&changed));
    let all = last(&watched, 2);
    let [_, evaluated] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(evaluated["id"], serde_json::Value::Null);
    let evaluation = &evaluated["evaluation"];
    assert_eq!(evaluation["reused"], second.cache_n);
    assert_eq!(evaluation["evaluated"], second.prompt_n);
    let diverged = &evaluation["diverged"];
    assert_eq!(diverged["at"], second.cache_n);
    assert_eq!(diverged["request"], "monday");
    assert_eq!(diverged["differing"], 2, "{diverged}");
    let rest = second.prompt_n - 2;
    assert_eq!(diverged["same_after"], rest);

    let text = watched.text(&["why", "--worth", "0"]);
    assert_eq!(text, watched.text(&["why", "--last", "--worth", "0"]));
    let number = evaluated["number"].as_u64().unwrap();
    let start = format!("slot 0  #{number}  {} tokens", second.prompt_tokens);
    assert!(text.contains(&start), "{text}");
    for part in [
        format!("it left monday's at token {}", second.cache_n),
        format!(
            "2 tokens differ, the {rest} behind are the same; all {} had",
            second.prompt_n
        ),
        format!("→ would have saved {rest} tokens, "),
        "ms: put what changes (a date, an id) behind what stays the same [replayed: ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in:\n{text}");
    }

    // `why` accepts an id, also of a request that was evicted.
    watched.wait_state("monday", "evicted");
    let gone = watched
        .command(&["where", "monday", "--json"])
        .output()
        .unwrap();
    let gone = json(&String::from_utf8_lossy(&gone.stdout));
    let named = watched.json(&["why", "monday"]);
    assert_eq!(named["id"], "monday");
    assert_eq!(named["evaluation"]["evaluated"], first.prompt_n);
    assert_eq!(named["evaluation"], gone["evaluation"]);
    // What it would reuse without a slot of its choice: it gets the empty one.
    let again = watched.complete(Request::completion(SYSTEM).predict(2));
    assert_eq!(gone["cached_tokens"], again.cache_n);
}

#[test]
fn a_request_is_found_by_the_number_that_lists_show_and_by_any_id() {
    let watched = Watched::start(two_slots());
    watched.complete(ask("A prompt of a request without an id."));
    watched.complete(ask("And one whose id is a word of our own.").id("last"));
    let all = last(&watched, 2);
    let number = all[0]["number"].as_u64().unwrap();
    let name = format!("#{number}");
    let text = watched.text(&["why", &name]);
    assert!(text.contains(&format!("slot 0  {name}  ")), "{text}");
    assert_eq!(watched.json(&["why", &name]), all[0]);
    let run = |words: &[&str]| {
        let output = watched.command(words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text)
    };
    // A shell takes #17 without quotes for a comment.
    let plain = number.to_string();
    assert_eq!(watched.text(&["why", &plain]), text);
    assert!(run(&["where", &plain]).1.starts_with(&format!("{name}  ")));
    // The prompt of the second request took its place.
    let (code, text) = run(&["where", &name]);
    let tokens = all[0]["evaluation"]["prompt_tokens"].as_u64().unwrap();
    assert!(text.starts_with(&format!("{name}  not cached  ")), "{text}");
    let left = format!(" of {tokens} tokens could be reused now; evaluated in slot 0, ");
    assert!(text.contains(&left), "{text}");
    assert_eq!(code, Some(1));
    let (code, text) = run(&["where"]);
    assert!(text.starts_with("last  cached  in slot 0, "), "{text}");
    assert_eq!(code, Some(0));
    watched.complete(ask("A prompt of a request without an id."));
    let third = last(&watched, 3)[2]["number"].as_u64().unwrap();
    let (code, text) = run(&["where"]);
    let most = tokens - 1;
    let there = format!("#{third}  cached  {most} of {tokens} tokens could be reused now; ");
    assert!(text.starts_with(&there), "{text}");
    assert_eq!(code, Some(0));
    // The number of one with an id leads to that.
    let second = all[1]["number"].as_u64().unwrap();
    let (_, text) = run(&["where", &format!("#{second}")]);
    assert!(text.starts_with("last  evicted  "), "{text}");
    let (_, text) = run(&["where", "#987"]);
    assert_eq!(text, "#987  is none of the last 1,000 prompts\n");
    let (code, text) = run(&["why", "#987"]);
    assert_eq!(text, "#987  is none of the last 1,000 prompts\n");
    assert_eq!(code, Some(1));
    // A shell takes #987 without quotes for a comment.
    for command in ["where", "why"] {
        let (code, text) = run(&[command, "987"]);
        let both = "987  is no request's id, and #987 is none of the last 1,000 prompts\n";
        assert_eq!((code, &*text), (Some(1), both), "{command}");
    }

    let named = watched.json(&["why", "last"]);
    assert_eq!(named["evaluation"], all[1]["evaluation"]);
}

#[test]
fn for_an_evicted_prompt_why_names_the_request_that_took_its_place() {
    let watched = Watched::start(two_slots());
    watched.complete(ask(SYSTEM).id("first"));
    watched.complete(ask("Something else, to push it out.").id("other"));
    let again = watched.complete(ask(SYSTEM).id("again"));
    last(&watched, 3);
    let named = watched.json(&["why", "again"]);
    let evaluation = &named["evaluation"];
    assert_eq!(evaluation["causes"]["evicted"], again.prompt_n - 1);
    assert_eq!(evaluation["lost"]["reason"], "overwritten");
    assert_eq!(evaluation["lost"]["by"], "other");
    assert_eq!(evaluation["lost"]["tokens"], again.prompt_n - 1);
    assert_eq!(evaluation["lost"]["chosen_by"], "id");
    let text = watched.text(&["why", "again", "--worth", "0"]);
    assert!(text.contains("overwritten by other"), "{text}");
    let saved = format!("→ would have saved {} tokens, ", again.prompt_n - 1);
    assert!(text.contains(&saved), "{text}");
    assert!(
        text.contains(": start the server with CONTEXTPILOT_STORE=a folder"),
        "{text}"
    );
    // It took less than a tenth of a second.
    let quick = evaluation["seconds"].as_f64().unwrap() < 0.1;
    assert_eq!(watched.text(&["why", "again"]).contains('→'), !quick);
}

#[test]
fn watch_prints_requests_as_they_come() {
    let watched = Watched::start(two_slots());
    watched.complete(ask(SYSTEM).id("before"));
    last(&watched, 1);
    let mut watch = watched
        .command(&["why", "--watch", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let (sender, told) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let line = lines.next().and_then(Result::ok);
        let _ = sender.send(line);
    });
    // Requests from before the command has connected are not shown, so this is repeated.
    let line = until("a request is told", || {
        watched.complete(ask(SYSTEM).id("after"));
        told.try_recv().ok().flatten()
    });
    watch.kill().unwrap();
    watch.wait().unwrap();
    reader.join().unwrap();
    assert_eq!(json(&line)["id"], "after");
}

#[test]
fn why_says_if_a_request_is_not_known() {
    let watched = Watched::start(two_slots());
    let output = watched.command(&["why", "nobody"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("nobody  unknown  never seen"), "{text}");

    let off = two_slots().env("CONTEXTPILOT_EXPLAIN_MB", "0");
    let watched = Watched::start(off);
    watched.complete(ask(SYSTEM).id("one"));
    watched.wait_state("one", "cached");
    let output = watched.command(&["why", "one"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("CONTEXTPILOT_EXPLAIN_MB is 0"), "{text}");
}

/// `head` reads a line and goes. What is printed for ever notices with the next line.
#[test]
fn what_is_printed_for_ever_ends_when_nobody_reads() {
    let watched = Watched::start(two_slots());
    for arguments in [
        &["events"][..],
        &["events", "--json"],
        &["why", "--watch"],
        &["why", "--watch", "--json"],
    ] {
        let mut child = watched
            .command(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let head = std::thread::spawn(move || {
            let mut line = String::new();
            reader.read_line(&mut line).map(|_| line)
        });
        let mut nth = 0;
        // It may begin to listen after the first of them.
        let status = until("it has ended", || {
            nth += 1;
            watched.complete(ask(&format!("{nth} {}", arguments.join(" "))).id(format!("r{nth}")));
            child.try_wait().unwrap()
        });
        assert!(status.success(), "{arguments:?}");
        assert!(!head.join().unwrap().unwrap().is_empty(), "{arguments:?}");
    }
}
