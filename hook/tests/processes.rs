//! Real processes under the real library, with a stub engine. The programs do what a server
//! does, in all generations of the engine and all ways of linking it. The reports must not
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

/// Nothing listens at this address.
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
        // After each exception, the next call was observed again.
        let trace = fixture.trace();
        assert_eq!(
            trace.matches("source: 6, target: 7").count(),
            functions,
            "{name}"
        );
        // The result of an evaluation that threw is not known.
        assert!(trace.contains("Obscured"), "{name}: {trace}");
    }
}

#[test]
fn an_allocator_in_the_process_gets_the_same_calls_as_without_us() {
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
fn an_overwritten_request_is_reported_at_once_and_the_others_at_the_end() {
    for fixture in Fixture::all() {
        let name = fixture.name();
        let index = index();
        let (output, _) = finish(&mut fixture.told("evict", &index));
        assert!(output.status.success(), "{name}: {output:?}");
        // The program's own thread, the worker and the sender.
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
            r#"Posted { arrival: Arrival(1), task: 0, id: Some("first") }"#,
            "Launched { sequence: 0, task: 1 }",
            "sequence: 0, from: 0, to: -1",
            "entries: 8, seq 0: 0..=7!",
            r#"Answered { arrival: Arrival(2), id: Some("second") }"#,
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

/// All prompts are the same, two of them with `"cache_prompt": false`. All generations make the same
/// calls to the engine, but the calls mean different things.
#[test]
fn a_prompt_that_an_old_server_forgets_without_a_call_is_reported() {
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
            // (If the machine stops for a second before a request without an id, the silence decides.)
            let at_the_end = ids(|reason| reason == "ContextFreed");
            for id in ["first", "second", "last"] {
                assert!(at_the_end.contains(&id), "{name}: {trace}");
            }
        }
        assert_eq!(trace.contains("Uncached"), forgets, "{name}: {trace}");
    }
}

/// All prompts are the same, under different adapters. A server of 2026 compares adapters for requests
/// that name some, an older server for all requests.
#[test]
fn when_a_slot_takes_a_request_for_other_adapters_its_prompt_is_reported() {
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
            // A slot without adapters serves requests whose adapters are activated by tokens, as the second does.
            Generation::Extended => (&["again", "first"], 4),
            _ => (&["again", "first", "none", "second"], 3),
        };
        assert_eq!(changed, expected, "{name}: {trace}");
        // A call precedes each batch. Only changes are sent, including those of the draft
        // model.
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
fn a_call_that_the_engine_makes_of_itself_gives_no_second_event() {
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
            // The batch has no positions, so it continues after the engine's last position, 4.
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

/// A `llama_batch` may leave out everything but the tokens. A comment in the engine's header says what
/// that means.
#[test]
fn fields_that_a_batch_leaves_out_have_the_engines_defaults() {
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
            // Defaults: positions after the engine's last one, sequence 0, output for the last entry.
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
fn the_release_of_a_host_buffer_is_seen() {
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
fn in_a_forked_child_nothing_is_reported() {
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
fn exit_from_another_thread_while_sending_keeps_its_code_and_ends_in_time() {
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
fn hooks_leave_errno_unchanged() {
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
fn if_the_engine_lacks_a_required_function_the_server_runs_without_us() {
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

/// A fork has the names of llama.cpp, and structures of its own. What it does with them must stay as it is.
#[test]
fn an_engine_whose_structures_are_others_is_left_alone_and_one_line_says_so() {
    let wide_batch = "llama_batch is not the known one (68 bytes, not 56)";
    let wide_params = "llama_context_params is not the known one (600 bytes, not 512)";
    for (generation, linking, flag, why) in [
        (Generation::Memory, Linking::Own, "-DWIDE_BATCH", wide_batch),
        (
            Generation::Memory,
            Linking::Inside,
            "-DWIDE_BATCH",
            wide_batch,
        ),
        (
            Generation::KvCache,
            Linking::Inside,
            "-DWIDE_BATCH",
            wide_batch,
        ),
        (
            Generation::Extended,
            Linking::Library,
            "-DWIDE_PARAMS",
            wide_params,
        ),
        (
            Generation::KvSelf,
            Linking::Inside,
            "-DWIDE_PARAMS",
            wide_params,
        ),
    ] {
        let fixture = Fixture::with(generation, linking, &[flag]);
        let name = format!("{} {flag}", fixture.name());
        let (plain, _) = finish(fixture.host("one", NOWHERE).env_remove("LD_PRELOAD"));
        let (output, _) = finish(&mut fixture.host("one", NOWHERE));
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert!(stdout(&plain).starts_with("mark 42, batch "), "{name}");
        assert_eq!(stdout(&output), stdout(&plain), "{name}");
        let said = stderr(&output);
        assert_eq!(
            said,
            format!(
                "[ContextPilot] Inactive: this llama.cpp is another one: its {why}; it is left alone, \
                 and nothing is reported to the index\n"
            ),
            "{name}"
        );
        assert_eq!(fixture.trace(), "", "{name}");
    }
}

#[test]
fn a_program_with_an_engine_and_no_server_is_not_hooked() {
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
fn the_message_names_a_wrong_setting() {
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
fn a_trace_that_cannot_be_written_stops_nothing_else() {
    let fixture = latest();
    let index = index();
    let mut host = fixture.told("evict", &index);
    let (output, _) = finish(host.env("CONTEXTPILOT_TRACE_FILE", "/nowhere/trace"));
    assert!(output.status.success(), "{}", stderr(&output));
    let message = stderr(&output);
    let line = "[ContextPilot] No trace is written: CONTEXTPILOT_TRACE_FILE is \"/nowhere/trace\"";
    assert!(message.starts_with(line), "{message}");
    assert!(message.contains("[ContextPilot] Active: "), "{message}");
    assert!(heard(&index).contains(r#""first""#));
}

#[test]
fn if_settings_are_strict_the_server_ends_where_the_hook_or_a_file_cannot_be_used() {
    let fixture = latest();
    for (name, value) in [
        ("CONTEXTPILOT_INDEX_URL", "ftp://host"),
        ("CONTEXTPILOT_TRACE_FILE", "/nowhere/trace"),
        ("CONTEXTPILOT_LOG_FILE", "/nowhere/log"),
        ("CONTEXTPILOT_LOG_FILE", "/dev/null"),
        ("CONTEXTPILOT_TRAFFIC_FILE", "/dev/null"),
        ("CONTEXTPILOT_STRICT", "yes"),
    ] {
        let mut host = fixture.host("evict", NOWHERE);
        host.env("CONTEXTPILOT_STRICT", "1").env(name, value);
        let (output, _) = finish(&mut host);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{name}: {message}");
        let inactive = "[ContextPilot] Inactive: ";
        assert!(message.starts_with(inactive), "{message}");
        let why = "The server ends here, as CONTEXTPILOT_STRICT is set\n";
        assert!(
            message.contains(name) && message.ends_with(why),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let lacking = Fixture::with(Generation::Extended, Linking::Library, &["-DWITHOUT_KEEP"]);
    let mut host = lacking.host("contexts", NOWHERE);
    let (output, _) = finish(host.env("CONTEXTPILOT_STRICT", "1"));
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    // Nor is anything else ended.
    let (_folder, program) = plain_program();
    let mut plain = preloaded(&program, "ftp://host");
    let (output, _) = finish(plain.env("CONTEXTPILOT_STRICT", "1"));
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn other_programs_behave_as_without_us() {
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

/// The least of all rounds, in nanoseconds: of adding a token to a batch, of an evaluation, and of
/// `new` with `delete`.
fn least(said: &str) -> [f64; 3] {
    ["token ", "evaluation ", "new+delete "].map(|what| {
        let times = said.split(what).skip(1).map(|rest| {
            let number = rest.split(' ').next().expect("a number");
            number.parse::<f64>().expect("a number")
        });
        let least = times.reduce(f64::min);
        least.unwrap_or_else(|| panic!("no {what}in {said:?}"))
    })
}

/// What the hook adds to the calls that happen most. The bounds are far above what is right.
///
/// `cargo test -p contextpilot-hook --release --test processes speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, of a release build"]
#[allow(clippy::disallowed_macros, reason = "a test may print")]
fn speed() {
    let fixture = latest();
    let index = index();
    let (without, _) = finish(fixture.host("speed", "").env_remove("LD_PRELOAD"));
    let (with, _) = finish(&mut fixture.host("speed", &index.url()));
    for output in [&without, &with] {
        assert!(output.status.success(), "{}", stderr(output));
    }
    println!("without:\n{}with:\n{}", stdout(&without), stdout(&with));
    let [without, with] = [without, with].map(|output| least(&stdout(&output)));
    for ((without, with), most) in without.iter().zip(with).zip([100.0, 5000.0, 100.0]) {
        let added = with - without;
        assert!(added < most, "{added:.1} ns are added, of {most} at most");
    }
}
