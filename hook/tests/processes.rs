//! Real processes under the real library, with an engine that does next to nothing: what a server
//! does, in all generations of the engine and all ways of linking it. Nothing that is told may
//! depend on either.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod support;

use std::process::Command;
use std::time::Duration;

use contextpilot_testbed::Behaviour;
use support::{
    Fixture, Generation, Linking, finish, heard, hook_library, index, plain_program, preloaded,
    stderr, stdout,
};

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:9";

fn latest() -> Fixture {
    Fixture::new(Generation::Extended, Linking::Library)
}

#[test]
fn exceptions_of_the_engine_reach_their_catch() {
    for fixture in Fixture::all() {
        let name = fixture.name();
        let (output, _) = finish(
            fixture
                .host("throw", NOWHERE)
                .env("CONTEXTPILOT_EXIT_DRAIN_MS", "100"),
        );
        assert!(output.status.success(), "{name}: {output:?}");
        let functions = match fixture.generation {
            Generation::Extended => 32,
            Generation::Memory => 20,
            Generation::KvSelf | Generation::KvCache => 17,
        };
        let caught = format!("caught {functions} of {functions}\n");
        assert_eq!(stdout(&output), caught, "{name}: {}", stderr(&output));
        assert_eq!(
            stderr(&output).lines().count(),
            1,
            "{name}: {}",
            stderr(&output)
        );
        // After each of them, the next call was observed again.
        let trace = fixture.trace();
        assert_eq!(
            trace.matches("source: 6, target: 7").count(),
            functions,
            "{name}"
        );
        // An evaluation that threw has no known outcome.
        assert!(trace.contains("Obscured"), "{name}: {trace}");
    }
}

#[test]
fn an_allocator_is_called_as_it_would_be_without_us() {
    let fixture = latest();
    let allocator = fixture.allocator();
    let asked = |preload: &str| {
        let (output, _) = finish(
            fixture
                .host("evict", NOWHERE)
                .env("LD_PRELOAD", preload)
                .env("CONTEXTPILOT_EXIT_DRAIN_MS", "0"),
        );
        assert!(output.status.success(), "{output:?}");
        let stderr = stderr(&output);
        let line = stderr.lines().find(|line| line.starts_with("sized "));
        line.expect("the allocator speaks").to_owned()
    };
    let allocator = allocator.display();
    let without = asked(&allocator.to_string());
    let with = asked(&format!("{}:{allocator}", hook_library().display()));
    assert_eq!(with, without);
    assert!(!with.starts_with("sized 0,"), "{with}");
    assert!(!with.ends_with("unsized 0"), "{with}");
}

#[test]
fn a_request_that_is_overwritten_is_told_at_once_and_the_rest_at_the_end() {
    for fixture in Fixture::all() {
        let name = fixture.name();
        let index = index();
        let (output, _) = finish(&mut fixture.told("evict", &index));
        assert!(output.status.success(), "{name}: {output:?}");
        // The program's own, the worker and the sender.
        assert_eq!(stdout(&output), "threads 3\n", "{name}");
        let banner = stderr(&output);
        let engine = match fixture.generation {
            Generation::Extended => "0.0.0-fixture",
            _ => "(version unknown)",
        };
        let place = match fixture.linking {
            Linking::Inside => ", inside the executable",
            Linking::Library | Linking::Own => "",
        };
        let host_cache = match fixture.generation {
            Generation::Extended => "host prompt cache, ",
            Generation::Memory | Generation::KvSelf | Generation::KvCache => "",
        };
        let expected = format!(
            "[ContextPilot] Active: llama.cpp {engine}{place}, hooked: KV cache, {host_cache}\
             request ids, slot assignment ("
        );
        assert!(banner.starts_with(&expected), "{name}: {banner}");
        let places = banner.split(" functions in ").nth(1);
        let places = places.and_then(|text| text.split_once(" places); index "));
        let places: Option<u32> = places.and_then(|(count, _)| count.parse().ok());
        assert!(places.is_some_and(|count| count > 20), "{name}: {banner}");
        assert_eq!(banner.lines().count(), 1, "{name}: {banner}");
        let heard = heard(&index);
        assert!(
            heard.contains(r#""first""#) && heard.contains(r#""second""#),
            "{name}: {heard}"
        );
        let trace = fixture.trace();
        for expected in [
            r#"Posted { arrival: Arrival(1), task: 0, id: "first" }"#,
            "Launched { sequence: 0, task: 1 }",
            "sequence: 0, from: 0, to: -1",
            "entries: 8, seq 0: 0..=7!",
            r#"Answered { arrival: Arrival(2), id: "second" }"#,
            r#"Evicted { id: "first", reason: Overwritten"#,
            r#"Evicted { id: "second", reason: ContextFreed"#,
        ] {
            assert!(
                trace.contains(expected),
                "{name}: no {expected} in\n{trace}"
            );
        }
    }
}

/// All prompts are the same, two of them with `"cache_prompt": false`, and the calls to the engine
/// are the same in all generations. What they mean is not.
#[test]
fn a_prompt_that_the_server_forgets_without_a_call_is_gone() {
    for fixture in Fixture::all() {
        let name = fixture.name();
        let (output, _) = finish(&mut fixture.host("uncached", NOWHERE));
        assert!(output.status.success(), "{name}: {output:?}");
        let trace = fixture.trace();
        let evicted: Vec<(&str, &str)> = trace
            .lines()
            .filter_map(|line| {
                let (id, rest) = line
                    .split_once("Evicted { id: \"")?
                    .1
                    .split_once("\", reason: ")?;
                Some((id, rest.split_once(',')?.0))
            })
            .collect();
        let forgets = matches!(fixture.generation, Generation::KvSelf | Generation::KvCache);
        let ids = |wanted: fn(&str) -> bool| -> Vec<&str> {
            let wanted = evicted.iter().filter(|(_, reason)| wanted(reason));
            wanted.map(|(id, _)| *id).collect()
        };
        if forgets {
            let all = ids(|_| true);
            assert_eq!(all, ["second", "first", "third", "last"], "{name}: {trace}");
            assert_eq!(ids(|r| r == "NeverCached"), ["second"], "{name}: {trace}");
            assert_eq!(ids(|r| r == "ContextFreed"), ["last"], "{name}: {trace}");
        } else {
            // (Before a request without an id, a machine that stands still for a second decides.)
            let at_the_end = ids(|reason| reason == "ContextFreed");
            for id in ["first", "second", "last"] {
                assert!(at_the_end.contains(&id), "{name}: {trace}");
            }
        }
        assert_eq!(trace.contains("Uncached"), forgets, "{name}: {trace}");
    }
}

/// All prompts are the same, under other adapters. A server of 2026 compares them for those that
/// name some, one of before for all.
#[test]
fn a_prompt_is_gone_under_other_adapters() {
    for fixture in Fixture::all() {
        let name = fixture.name();
        let (output, _) = finish(&mut fixture.host("adapters", NOWHERE));
        assert!(output.status.success(), "{name}: {output:?}");
        let trace = fixture.trace();
        let mut changed: Vec<&str> = trace
            .lines()
            .filter(|line| line.contains("reason: AdaptersChanged"))
            .filter_map(|line| line.split_once("Evicted { id: \"")?.1.split('"').next())
            .collect();
        changed.sort_unstable();
        let (expected, told): (&[&str], _) = match fixture.generation {
            // A slot without adapters serves those that are activated by tokens, as the second.
            Generation::Extended => (&["again", "first"], 4),
            _ => (&["again", "first", "none", "second"], 3),
        };
        assert_eq!(changed, expected, "{name}: {trace}");
        // Each batch is preceded by a call; what did not change is not told again. The draft
        // model's are told as well.
        assert_eq!(
            trace.matches(" Adapters {").count(),
            told + 1,
            "{name}: {trace}"
        );
        let activated = matches!(fixture.generation, Generation::Extended);
        assert_eq!(
            trace.contains(": 1 if invoked"),
            activated,
            "{name}: {trace}"
        );
    }
}

#[test]
fn what_the_engine_calls_of_itself_is_not_told_twice() {
    for fixture in Fixture::all() {
        let name = fixture.name();
        let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let trace = fixture.trace();
        let older_name = match fixture.generation {
            Generation::KvSelf | Generation::Memory => 1,
            Generation::KvCache | Generation::Extended => 0,
        };
        for (what, count) in [
            ("ContextCreated", 2),
            ("ContextFreed", 2),
            ("Submitted", 2),
            // Without positions of its own, the batch goes on where the engine says: after 4.
            ("entries: 1, seq 0: 5!", 2),
            ("failed: []", 1),
            ("failed: [(0, 4)]", 1),
            ("source: 6, target: 7, from: 0, to: 77", older_name),
        ] {
            assert_eq!(
                trace.matches(what).count(),
                count,
                "{name}: {what} in\n{trace}"
            );
        }
    }
}

/// A `llama_batch` may leave out everything but the tokens; what it means then is in the comment
/// of the engine's header.
#[test]
fn what_a_batch_leaves_out_has_its_default() {
    for fixture in Fixture::all() {
        let name = fixture.name();
        let (output, _) = finish(&mut fixture.host("batches", NOWHERE));
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let trace = fixture.trace();
        let batches: Vec<_> = trace
            .lines()
            .filter_map(|line| line.split_once("entries: "))
            .map(|(_, entries)| entries.trim_end_matches(" }"))
            .collect();
        let expected = [
            // After what the engine has of the sequence, in sequence 0, and the last one's output.
            "3, seq 0: 5..=7!",
            "3, seq 0: 20..=22!",
            "4, seq 1: 20, seq 2: 21, seq 3: 21, seq 1: 22!",
            "4, seq 1: 20!, seq 2: 21, seq 3: 21, seq 1: 22",
            "4, seq 1: 5!, seq 2: 5, seq 3: 5, seq 1: 6",
        ];
        assert_eq!(batches, expected, "{name}");
    }
}

#[test]
fn host_buffers_are_followed_to_their_release() {
    for fixture in Fixture::all() {
        let name = fixture.name();
        let (output, _) = finish(&mut fixture.host("buffers", NOWHERE));
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let trace = fixture.trace();
        let kinds = ["Saved", "Restored", "Freed {", "Replaced", "Obscured"];
        let mut lines = trace
            .lines()
            .filter(|line| kinds.iter().any(|kind| line.contains(kind)))
            .filter(|line| !line.contains("ContextFreed"))
            .rev()
            .collect::<Vec<_>>();
        let replaced = lines.remove(0);
        assert!(
            replaced.contains("Replaced") && replaced.contains("sequence: 6, tokens: 5"),
            "{name}: {replaced}"
        );
        if matches!(fixture.generation, Generation::KvSelf | Generation::KvCache) {
            assert!(lines.is_empty(), "{name}: {lines:#?}");
            continue;
        }
        let [freed, restored, saved] = lines[..] else {
            panic!("{name}: three events, not {lines:#?}");
        };
        let buffer = |line: &str| {
            line.split("BufferId(")
                .nth(1)
                .map(|rest| rest.split(')').next().map(str::to_owned))
        };
        assert!(
            saved.contains("Saved") && saved.contains("sequence: 3"),
            "{name}: {saved}"
        );
        assert!(
            restored.contains("Restored") && restored.contains("sequence: 5"),
            "{name}: {restored}"
        );
        assert!(freed.contains("Freed"), "{name}: {freed}");
        assert_eq!(buffer(saved), buffer(restored), "{name}");
        assert_eq!(buffer(saved), buffer(freed), "{name}");
    }
}

#[test]
fn forked_children_are_left_alone() {
    for linking in [Linking::Library, Linking::Inside] {
        let fixture = Fixture::new(Generation::Extended, linking);
        let index = index();
        let (output, _) = finish(&mut fixture.host("fork", &index.url()));
        assert!(output.status.success(), "{linking:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        let heard = heard(&index);
        assert!(
            heard.contains(r#""parent""#) && heard.contains(r#""after""#),
            "{linking:?}: {heard}"
        );
        assert!(!heard.contains(r#""child""#), "{linking:?}: {heard}");
    }
}

#[test]
fn exit_from_another_thread_while_sending_keeps_its_code_and_its_time() {
    for linking in [Linking::Library, Linking::Inside] {
        let fixture = Fixture::new(Generation::Extended, linking);
        for behaviour in [Behaviour::Accept, Behaviour::Hang] {
            let index = index();
            index.behave(behaviour.clone());
            let mut host = fixture.host("exit", &index.url());
            let (output, time) = finish(host.env("CONTEXTPILOT_EXIT_DRAIN_MS", "500"));
            assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
            assert!(time < Duration::from_secs(10), "{linking:?} took {time:?}");
            if behaviour == Behaviour::Accept {
                assert!(heard(&index).contains(r#""id-0""#), "{}", heard(&index));
            }
        }
    }
}

#[test]
fn errno_is_the_hosts() {
    for fixture in Fixture::all() {
        let (output, _) = finish(&mut fixture.host("errno", NOWHERE));
        let name = fixture.name();
        assert_eq!(stdout(&output), "kept\n", "{name}: {}", stderr(&output));
    }
}

#[test]
fn a_server_without_a_context_has_no_threads_of_ours() {
    for fixture in Fixture::all() {
        let (output, _) = finish(&mut fixture.host("idle", NOWHERE));
        let name = fixture.name();
        assert_eq!(
            stdout(&output),
            "threads 1\n",
            "{name}: {}",
            stderr(&output)
        );
        assert_eq!(stderr(&output), "", "{name}");
        assert_eq!(fixture.trace(), "", "{name}");
    }
}

#[test]
fn an_engine_that_lacks_a_function_runs_without_us() {
    for (generation, linking, lacking) in [
        (Generation::Extended, Linking::Library, "llama_memory"),
        (Generation::KvSelf, Linking::Own, "llama_kv_self"),
    ] {
        let fixture = Fixture::with(generation, linking, &["-DWITHOUT_KEEP"]);
        let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(
            stderr(&output),
            format!(
                "[ContextPilot] Inactive: this llama.cpp lacks {lacking}_seq_keep; \
                 nothing is reported to the index\n"
            )
        );
        assert_eq!(fixture.trace(), "");
    }
}

#[test]
fn an_engine_without_the_server_is_no_llama_server() {
    let fixture = Fixture::with(
        Generation::Extended,
        Linking::Library,
        &["-DWITHOUT_SERVER"],
    );
    let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(fixture.trace(), "");
}

#[test]
fn an_unusable_setting_is_named() {
    let fixture = latest();
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
    let fixture = latest();
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
    let fixture = latest();
    let index = index();
    let (without, _) = finish(fixture.host("speed", "").env_remove("LD_PRELOAD"));
    let (with, _) = finish(&mut fixture.host("speed", &index.url()));
    assert!(with.status.success(), "{}", stderr(&with));
    println!("without:\n{}with:\n{}", stdout(&without), stdout(&with));
}
