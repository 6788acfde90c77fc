//! Real processes under the real library, with an engine that does next to nothing.
#![cfg(target_os = "linux")]

mod support;

use std::process::Command;
use std::time::Duration;

use support::{Fixture, Index, Manner, finish, plain_program, preloaded, stderr, stdout};

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:9";

#[test]
fn exceptions_of_the_engine_reach_their_catch() {
    let fixture = Fixture::build(&[]);
    let (output, _) = finish(
        fixture
            .host("throw", NOWHERE)
            .env("CONTEXTPILOT_EXIT_DRAIN_MS", "100"),
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&output), "caught 31 of 31\n", "{}", stderr(&output));
    assert!(
        !stderr(&output).contains("internal error"),
        "{}",
        stderr(&output)
    );
    // After each of them, the next call was observed again.
    assert_eq!(fixture.trace().matches("source: 6, target: 7").count(), 31);
    // An evaluation that threw has no known outcome.
    assert!(fixture.trace().contains("Obscured"), "{}", fixture.trace());
}

#[test]
fn a_request_that_is_overwritten_is_told_at_once_and_the_rest_at_the_end() {
    let fixture = Fixture::build(&[]);
    let index = Index::start(Manner::Answers);
    let (output, _) = finish(&mut fixture.host("evict", &index.url));
    assert!(output.status.success(), "{output:?}");
    // The program's own, the worker and the sender.
    assert_eq!(stdout(&output), "threads 3\n");
    let banner = stderr(&output);
    assert!(
        banner.starts_with("[ContextPilot] Active: llama.cpp 0.0.0-fixture"),
        "{banner}"
    );
    assert_eq!(banner.lines().count(), 1, "{banner}");
    let heard = index.heard();
    assert!(
        heard.contains(r#""first""#) && heard.contains(r#""second""#),
        "{heard}"
    );
    let trace = fixture.trace();
    for expected in [
        r#"Posted { arrival: Arrival(1), task: 0, id: "first" }"#,
        "Launched { sequence: 0, task: 1 }",
        "entries: 8, seq 0: 0..=7!",
        r#"Answered { arrival: Arrival(2), id: "second" }"#,
        r#"Evicted { id: "first", reason: Overwritten"#,
        r#"Evicted { id: "second", reason: ContextFreed"#,
    ] {
        assert!(trace.contains(expected), "no {expected} in\n{trace}");
    }
}

#[test]
fn what_the_engine_calls_of_itself_is_not_told_twice() {
    let fixture = Fixture::build(&[]);
    let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    let trace = fixture.trace();
    let count = |what| trace.matches(what).count();
    assert_eq!(count("ContextCreated"), 2, "{trace}");
    assert_eq!(count("ContextFreed"), 2, "{trace}");
    assert_eq!(count("Submitted"), 2, "{trace}");
    // Without positions of its own, the batch goes on where the engine says: after 4.
    assert_eq!(count("entries: 1, seq 0: 5!"), 2, "{trace}");
    assert_eq!(count("failed: []"), 1, "{trace}");
    assert_eq!(count("failed: [(0, 4)]"), 1, "{trace}");
}

#[test]
fn host_buffers_are_followed_to_their_release() {
    let fixture = Fixture::build(&[]);
    let (output, _) = finish(&mut fixture.host("buffers", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    let trace = fixture.trace();
    let lines: Vec<&str> = trace
        .lines()
        .filter(|line| {
            ["Saved", "Restored", "Freed {", "Replaced", "Obscured"]
                .iter()
                .any(|w| line.contains(w))
        })
        .filter(|line| !line.contains("ContextFreed"))
        .collect();
    let [saved, restored, freed, replaced] = lines[..] else {
        panic!("four events, not {lines:#?}");
    };
    let buffer = |line: &str| {
        line.split("BufferId(")
            .nth(1)
            .map(|rest| rest.split(')').next().map(str::to_owned))
    };
    assert!(
        saved.contains("Saved") && saved.contains("sequence: 3"),
        "{saved}"
    );
    assert!(
        restored.contains("Restored") && restored.contains("sequence: 5"),
        "{restored}"
    );
    assert!(freed.contains("Freed"), "{freed}");
    assert_eq!(buffer(saved), buffer(restored));
    assert_eq!(buffer(saved), buffer(freed));
    assert!(
        replaced.contains("Replaced") && replaced.contains("sequence: 6, tokens: 5"),
        "{replaced}"
    );
}

#[test]
fn forked_children_are_left_alone() {
    let fixture = Fixture::build(&[]);
    let index = Index::start(Manner::Answers);
    let (output, _) = finish(&mut fixture.host("fork", &index.url));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    let heard = index.heard();
    assert!(
        heard.contains(r#""parent""#) && heard.contains(r#""after""#),
        "{heard}"
    );
    assert!(!heard.contains(r#""child""#), "{heard}");
}

#[test]
fn exit_from_another_thread_while_sending_keeps_its_code_and_its_time() {
    let fixture = Fixture::build(&[]);
    for manner in [Manner::Answers, Manner::Hangs] {
        let index = Index::start(manner);
        let mut host = fixture.host("exit", &index.url);
        let (output, time) = finish(host.env("CONTEXTPILOT_EXIT_DRAIN_MS", "500"));
        assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
        assert!(time < Duration::from_secs(3), "took {time:?}");
        if manner == Manner::Answers {
            assert!(index.heard().contains(r#""id-0""#), "{}", index.heard());
        }
    }
}

#[test]
fn errno_is_the_hosts() {
    let fixture = Fixture::build(&[]);
    let (output, _) = finish(&mut fixture.host("errno", NOWHERE));
    assert_eq!(stdout(&output), "kept\n", "{}", stderr(&output));
}

#[test]
fn a_server_without_a_context_has_no_threads_of_ours() {
    let fixture = Fixture::build(&[]);
    let (output, _) = finish(&mut fixture.host("idle", NOWHERE));
    assert_eq!(stdout(&output), "threads 1\n", "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(fixture.trace(), "");
}

#[test]
fn an_engine_that_lacks_a_function_runs_without_us() {
    let fixture = Fixture::build(&["WITHOUT_KEEP"]);
    let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        "[ContextPilot] Inactive: this llama.cpp lacks llama_memory_seq_keep; \
         nothing is reported to the index\n"
    );
    assert_eq!(fixture.trace(), "");
}

#[test]
fn an_engine_without_the_server_is_no_llama_server() {
    let fixture = Fixture::build(&["WITHOUT_SERVER"]);
    let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(fixture.trace(), "");
}

#[test]
fn an_unusable_setting_is_named() {
    let fixture = Fixture::build(&[]);
    let (output, _) = finish(&mut fixture.host("contexts", "ftp://host"));
    assert!(output.status.success(), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(
        message.starts_with("[ContextPilot] Inactive: CONTEXTPILOT_INDEX_URL"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn other_programs_do_not_notice() {
    let (_folder, program) = plain_program();
    let (output, _) = finish(&mut preloaded(&program, NOWHERE));
    assert!(output.status.success());
    assert_eq!(stdout(&output), "threads 1\n");
    assert_eq!(stderr(&output), "");

    let mut shell = preloaded("sh", NOWHERE);
    let (output, _) = finish(shell.args(["-c", "echo $(echo inside); exit 3"]));
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "inside\n");
    assert_eq!(stderr(&output), "");
}

#[test]
fn without_an_index_nothing_happens_in_a_llama_server_either() {
    let fixture = Fixture::build(&[]);
    let mut host: Command = fixture.host("contexts", "");
    let (output, _) = finish(&mut host);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(fixture.trace(), "");
}

/// `cargo test -p contextpilot-hook --release --test processes speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement: the numbers are for people"]
#[allow(clippy::disallowed_macros, reason = "a test may print")]
fn speed() {
    let fixture = Fixture::build(&[]);
    let index = Index::start(Manner::Answers);
    let (without, _) = finish(fixture.host("speed", "").env_remove("LD_PRELOAD"));
    let (with, _) = finish(&mut fixture.host("speed", &index.url));
    assert!(with.status.success(), "{}", stderr(&with));
    println!("without:\n{}with:\n{}", stdout(&without), stdout(&with));
}
