//! `contextpilot-llama demo`, as a user runs it.

use std::path::Path;
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

/// The demo must end with exit code 1 and this one line on stderr, and show no requests.
#[track_caller]
fn assert_shows_nothing((output, out, err): (Output, String, String), said: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(!out.contains("prompt tokens from the cache"), "{out}");
    assert_eq!(err.lines().count(), 1, "{err}");
    for said in said {
        assert!(err.contains(said), "{said:?} is not in: {err}");
    }
}

#[test]
fn if_the_hook_was_refused_the_demo_says_why_and_what_to_do() {
    let shown = demo(|command| {
        command
            .env("LLAMA_SERVER_BIN", llama_server())
            .env("CONTEXTPILOT_HOOK_LIB", "/nonexistent")
    });
    let advice = "unset it to use the built-in one";
    assert_shows_nothing(
        shown,
        &[
            "does not run",
            "CONTEXTPILOT_HOOK_LIB is \"/nonexistent\"",
            advice,
        ],
    );

    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("llama-server");
    let real = llama_server();
    let text = format!(
        "#!/bin/sh\nunset LD_PRELOAD\nexec {} \"$@\"\n",
        real.display()
    );
    write_program(&script, &text);
    let shown = demo(|command| command.env("LLAMA_SERVER_BIN", &script));
    assert_shows_nothing(
        shown,
        &[
            "does not run",
            "printed nothing",
            "contextpilot-llama doctor",
        ],
    );
}

/// Written by another process. If this process wrote the file, a child that another test starts at that
/// moment could still have it open, and then it could not be executed.
fn write_program(path: &Path, text: &str) {
    let write = ["-c", "printf '%s' \"$1\" > \"$0\" && chmod 755 \"$0\""];
    let mut shell = Command::new("/bin/sh");
    let written = shell.args(write).arg(path).arg(text).status();
    assert!(written.unwrap().success());
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
        err.starts_with("[ContextPilot] There is no llama-server on PATH: get one from"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");

    // Debian 12 has no package of it, Debian 14 has one.
    write_program(&empty.path().join("apt-get"), "#!/bin/sh\n");
    for (exit, command) in [
        (100, "sudo apt install git cmake g++ && git clone "),
        (
            0,
            "sudo apt install llama.cpp-tools && contextpilot-llama demo",
        ),
    ] {
        let answer = format!("#!/bin/sh\nexit {exit}\n");
        write_program(&empty.path().join("apt-cache"), &answer);
        let (_, _, err) = demo(|command| {
            command
                .env_remove("LLAMA_SERVER_BIN")
                .env("PATH", empty.path())
        });
        let rest = err.strip_prefix("[ContextPilot] There is no llama-server on PATH: ");
        let rest = rest.unwrap_or_else(|| panic!("{err}"));
        assert!(rest.starts_with(command), "{err}");
        assert!(rest.ends_with("contextpilot-llama demo\n"), "{err}");
    }
}
