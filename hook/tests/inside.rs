//! Engine and server in one executable, which calls its own functions directly, as static builds
//! of llama-server do: no symbol can be interposed, everything is hooked inline. And what is in
//! between: the engine in a library, but the server's own functions in the executable.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod support;

use std::time::Duration;

use support::{Fixture, Index, Manner, finish, stderr, stdout};

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:9";

/// A program of its own, linked as the flags say, of which the index hears everything.
fn evicts(flags: &[&str]) {
    let fixture = Fixture::build_in_one(flags);
    let index = Index::start(Manner::Answers);
    let (output, _) = finish(&mut fixture.host("evict", &index.url));
    assert!(output.status.success(), "{flags:?}: {output:?}");
    // The program's own, the worker and the sender.
    assert_eq!(stdout(&output), "threads 3\n");
    let banner = stderr(&output);
    assert!(
        banner.starts_with(
            "[ContextPilot] Active: llama.cpp 0.0.0-fixture, inside the executable, attached: \
             KV cache, host prompt cache, request ids, slot assignment; index "
        ),
        "{flags:?}: {banner}"
    );
    assert_eq!(banner.lines().count(), 1, "{banner}");
    let heard = index.heard();
    assert!(
        heard.contains(r#""first""#) && heard.contains(r#""second""#),
        "{flags:?}: {heard}"
    );
    let trace = fixture.trace();
    for expected in [
        r#"Posted { arrival: Arrival(1), task: 0, id: "first" }"#,
        "Launched { sequence: 0, task: 1 }",
        "entries: 8, seq 0: 0..=7!",
        r#"Evicted { id: "first", reason: Overwritten"#,
        r#"Evicted { id: "second", reason: ContextFreed"#,
    ] {
        assert!(
            trace.contains(expected),
            "{flags:?}: no {expected} in\n{trace}"
        );
    }
}

#[test]
fn a_request_that_is_overwritten_is_told_at_once_and_the_rest_at_the_end() {
    evicts(&[]);
}

#[test]
fn a_program_at_a_fixed_address_is_hooked() {
    evicts(&["-no-pie", "-fno-pie"]);
}

#[test]
fn a_program_that_exports_the_engine_does_not_get_itself_for_ours() {
    evicts(&["-rdynamic"]);
}

#[test]
fn a_server_with_its_engine_in_a_library_may_have_its_own_functions_inside() {
    let fixture = Fixture::build_with_own_server().called("llama-server");
    let index = Index::start(Manner::Answers);
    let (output, _) = finish(&mut fixture.host("evict", &index.url));
    assert!(output.status.success(), "{output:?}");
    let banner = stderr(&output);
    assert!(
        banner.starts_with(
            "[ContextPilot] Active: llama.cpp 0.0.0-fixture, attached: KV cache, \
             host prompt cache, request ids, slot assignment; index "
        ),
        "{banner}"
    );
    assert_eq!(banner.lines().count(), 1, "{banner}");
    let trace = fixture.trace();
    let evicted = r#"Evicted { id: "first", reason: Overwritten"#;
    assert!(trace.contains(evicted), "{trace}");
}

#[test]
fn exceptions_of_the_engine_reach_their_catch() {
    let fixture = Fixture::build_in_one(&[]);
    let (output, _) = finish(
        fixture
            .host("throw", NOWHERE)
            .env("CONTEXTPILOT_EXIT_DRAIN_MS", "100"),
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&output), "caught 31 of 31\n", "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    // After each of them, the next call was observed again.
    assert_eq!(fixture.trace().matches("source: 6, target: 7").count(), 31);
}

#[test]
fn what_the_engine_calls_of_itself_is_not_told_twice() {
    let fixture = Fixture::build_in_one(&[]);
    let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    let trace = fixture.trace();
    let count = |what| trace.matches(what).count();
    assert_eq!(count("ContextCreated"), 2, "{trace}");
    assert_eq!(count("ContextFreed"), 2, "{trace}");
    assert_eq!(count("Submitted"), 2, "{trace}");
    // Asked of the engine, through a function that is called but not hooked.
    assert_eq!(count("entries: 1, seq 0: 5!"), 2, "{trace}");
}

#[test]
fn host_buffers_are_followed_to_their_release_by_the_c_plus_plus_library() {
    let fixture = Fixture::build_in_one(&[]);
    let (output, _) = finish(&mut fixture.host("buffers", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    let trace = fixture.trace();
    for (event, count) in [("Saved {", 1), ("Restored {", 1), ("Freed {", 1)] {
        let events = trace.lines().filter(|line| {
            let event_line = line.contains(event);
            event_line && line.contains("BufferId(")
        });
        assert_eq!(events.count(), count, "{event} in\n{trace}");
    }
}

#[test]
fn a_forked_child_and_an_exit_from_another_thread_are_no_trouble() {
    let fixture = Fixture::build_in_one(&[]);
    let index = Index::start(Manner::Answers);
    let (output, _) = finish(&mut fixture.host("fork", &index.url));
    assert!(output.status.success(), "{}", stderr(&output));
    let heard = index.heard();
    assert!(
        heard.contains(r#""parent""#) && heard.contains(r#""after""#),
        "{heard}"
    );
    assert!(!heard.contains(r#""child""#), "{heard}");
    let (output, time) = finish(&mut fixture.host("exit", &index.url));
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(time < Duration::from_secs(10), "took {time:?}");
}

#[test]
fn a_server_without_a_context_has_no_threads_of_ours() {
    let fixture = Fixture::build_in_one(&[]);
    let (output, _) = finish(&mut fixture.host("idle", NOWHERE));
    assert_eq!(stdout(&output), "threads 1\n", "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

/// Runs as without us, and says `expected`.
fn stays_as_it_is(fixture: &Fixture, expected: &str) {
    let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), expected);
    assert_eq!(fixture.trace(), "");
}

#[test]
fn a_function_that_cannot_be_hooked_is_named() {
    // Without a mark for indirect branches, it is nothing but a return.
    let (flag, size) = match cfg!(target_arch = "x86_64") {
        true => ("-fcf-protection=none", 1),
        false => ("-mbranch-protection=none", 4),
    };
    stays_as_it_is(
        &Fixture::build_in_one(&["-DSHORT_KEEP", flag]),
        &format!(
            "[ContextPilot] Inactive: in this llama-server, llama_memory_seq_keep is too short \
             ({size} bytes); nothing is reported to the index, use a build with shared libraries\n"
        ),
    );
}

#[test]
fn a_function_that_is_missing_is_named() {
    stays_as_it_is(
        &Fixture::build_in_one(&["-DWITHOUT_KEEP", "-Wl,--unresolved-symbols=ignore-all"]),
        "[ContextPilot] Inactive: this llama.cpp lacks llama_memory_seq_keep; \
         nothing is reported to the index\n",
    );
}

#[test]
fn without_the_numbers_of_tasks_nothing_is_hooked() {
    stays_as_it_is(
        &Fixture::build_in_one(&["-DWITHOUT_IDS"]),
        "[ContextPilot] Inactive: in this llama-server, server_queue::get_new_id is no function \
         of its own, so requests cannot be told apart; nothing is reported to the index, use a \
         newer llama.cpp\n",
    );
}

#[test]
fn calls_that_do_not_come_by_are_missed_aloud() {
    let fixture = Fixture::build_in_one(&["-DINLINED_IDS"]);
    let index = Index::start(Manner::Answers);
    let (output, _) = finish(&mut fixture.host("evict", &index.url));
    assert!(output.status.success(), "{}", stderr(&output));
    let messages = stderr(&output);
    assert!(
        messages.lines().last().is_some_and(|line| line.starts_with(
            "[ContextPilot] This llama-server has copies of server_queue::get_new_id"
        )),
        "{messages}"
    );
}

#[test]
fn an_engine_without_the_server_is_a_llama_server_by_its_name_only() {
    let fixture = Fixture::build_in_one(&["-DWITHOUT_SERVER"]);
    stays_as_it_is(&fixture, "");
    let (output, _) = finish(&mut fixture.called("llama-server").host("idle", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).starts_with("[ContextPilot] Inactive: in this llama-server"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_was_stripped_runs_by_itself() {
    stays_as_it_is(&Fixture::build_in_one(&["-s"]), "");
}
