//! `contextpilot-llama demo`, as a user runs it.

use std::process::{Command, Output};

use contextpilot_testbed::llama_server;

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");

fn demo(set: impl FnOnce(&mut Command) -> &mut Command) -> (Output, String, String) {
    let mut command = Command::new(COMPANION);
    let output = set(command.arg("demo")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

#[test]
fn the_demo_shows_evictions_on_a_real_server_and_checks_them_with_the_engine() {
    let (output, out, err) = demo(|command| {
        command
            .env("LLAMA_SERVER_BIN", llama_server())
            // Settings for other servers. With them, the demo's server could not start.
            .env("CONTEXTPILOT_LISTEN", "192.0.2.1:1")
            .env("LLAMA_ARG_PORT", "none")
    });
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("] Active: llama.cpp "), "{out}");
    let arrived = out.matches("fell out: POST /evict arrived").count();
    assert_eq!(arrived, 4, "{out}");
    assert_eq!(out.matches("   true, it ").count(), 6, "{out}");
    assert!(
        out.ends_with("4 of 6 requests fell out, 0 reports were wrong.\n"),
        "{out}"
    );
}

#[test]
fn without_a_server_the_demo_says_how_to_get_one() {
    let empty = tempfile::tempdir().unwrap();
    let (output, out, err) = demo(|command| {
        command
            .env_remove("LLAMA_SERVER_BIN")
            .env("PATH", empty.path())
    });
    assert_eq!((output.status.code(), out.as_str()), (Some(1), ""));
    assert!(
        err.starts_with("[ContextPilot] There is no llama-server on PATH. Get one"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
}
