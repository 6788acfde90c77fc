//! Functions in the executable that cannot be hooked, and executables that are linked in a special way.
//! `processes.rs` tests what is the same as with libraries.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use support::{Fixture, Generation, Linking, finish, heard, index, stderr};

/// Nothing listens at this address.
const NOWHERE: &str = "http://127.0.0.1:9";

/// A program of the latest generation that contains its engine.
fn inside(flags: &[&str]) -> Fixture {
    Fixture::with(Generation::Extended, Linking::Inside, flags)
}

/// Its evictions are reported to the index.
fn is_followed(flags: &[&str]) {
    let fixture = inside(flags);
    let index = index();
    let (output, _) = finish(&mut fixture.told("evict", &index));
    assert!(output.status.success(), "{flags:?}: {output:?}");
    let banner = stderr(&output);
    assert!(
        banner.contains("Active") && banner.contains(", inside the executable, hooked: KV cache"),
        "{flags:?}: {banner}"
    );
    assert_eq!(banner.lines().count(), 1, "{banner}");
    let heard = heard(&index);
    assert!(
        heard.contains(r#""first""#) && heard.contains(r#""second""#),
        "{flags:?}: {heard}"
    );
}

#[test]
fn a_program_at_a_fixed_address_is_hooked() {
    is_followed(&["-no-pie", "-fno-pie"]);
}

#[test]
fn a_program_that_exports_the_engine_is_hooked() {
    is_followed(&["-rdynamic"]);
}

/// Runs as without us, and prints `expected`.
fn stays_as_it_is(fixture: &Fixture, expected: &str) {
    let (output, _) = finish(&mut fixture.host("contexts", NOWHERE));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), expected);
    assert_eq!(fixture.trace(), "");
}

/// Only on x86-64: on aarch64 a single instruction has room for a jump, if memory is near.
#[test]
#[cfg(target_arch = "x86_64")]
fn if_a_function_cannot_be_hooked_the_message_names_it() {
    // Without a mark for indirect branches, the function is only a return.
    stays_as_it_is(
        &inside(&["-DSHORT_KEEP", "-fcf-protection=none"]),
        "[ContextPilot] Inactive: in this llama-server, llama_memory_seq_keep is too short \
         (1 bytes); nothing is reported to the index, use a build with shared libraries\n",
    );
}

#[test]
fn if_a_function_is_missing_the_message_names_it() {
    stays_as_it_is(
        &inside(&["-DWITHOUT_KEEP", "-Wl,--unresolved-symbols=ignore-all"]),
        "[ContextPilot] Inactive: this llama.cpp lacks llama_memory_seq_keep; \
         nothing is reported to the index\n",
    );
}

#[test]
fn without_the_numbers_of_tasks_nothing_is_hooked() {
    stays_as_it_is(
        &inside(&["-DWITHOUT_IDS"]),
        "[ContextPilot] Inactive: in this llama-server, server_queue::get_new_id is no function \
         of its own, so requests cannot be told apart; nothing is reported to the index, use a \
         newer llama.cpp\n",
    );
}

#[test]
fn an_endpoint_that_was_asked_for_says_why_nothing_is_hooked() {
    let fixture = inside(&["-DWITHOUT_IDS"]);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let mut command = fixture.host("wait", NOWHERE);
    command.env("CONTEXTPILOT_LISTEN", format!("unix:{}", socket.display()));
    let pipes = command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("Control endpoint: unix:")));
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream
        .write_all(b"GET /stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let why = r#""not_followed":"in this llama-server, server_queue::get_new_id is no function"#;
    assert!(answer.contains(why), "{answer}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn if_expected_calls_are_not_seen_the_claim_is_withdrawn_with_a_message() {
    let fixture = inside(&["-DINLINED_IDS"]);
    let index = index();
    let (output, _) = finish(&mut fixture.told("evict", &index));
    assert!(output.status.success(), "{}", stderr(&output));
    let messages = stderr(&output);
    assert!(
        messages.lines().any(|line| line.starts_with(
            "[ContextPilot] This llama-server has copies of server_queue::get_new_id"
        )),
        "{messages}"
    );
}

#[test]
fn an_engine_without_server_functions_is_hooked_only_if_the_program_is_named_llama_server() {
    let fixture = inside(&["-DWITHOUT_SERVER"]);
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
fn a_stripped_program_runs_without_the_hook() {
    stays_as_it_is(&inside(&["-s"]), "");
}
