//! `CONTEXTPILOT_WATCHER`: what a killed server held is reported without the next start.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Instant;

use contextpilot_testbed::{Behaviour, Builder, Index, Server, nowhere};

use crate::support::{Home, PATIENCE, ask, assert_told, assert_told_at_least_once, ids, is_cached};

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");

fn watched(home: &Home, index: &Index) -> Builder {
    let own = nowhere();
    home.server(index, 4)
        .args(["--host".to_owned(), own.ip().to_string()])
        .args(["--port".to_owned(), own.port().to_string()])
        .env("CONTEXTPILOT_WATCHER", "auto")
}

/// The hook library, for a server without a launcher.
fn hook() -> PathBuf {
    let output = Command::new(COMPANION).arg("hook-path").output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// `contextpilot-llama killed`, by hand.
fn killed(home: &Home, index: &Index) -> Output {
    Command::new(COMPANION)
        .arg("killed")
        .env("XDG_STATE_HOME", home.path())
        .env("CONTEXTPILOT_INDEX_URL", index.url())
        .output()
        .unwrap()
}

/// Nothing but the neighbour runs when the report arrives. The killed server's port is free, though the watcher was
/// started by it.
#[test]
fn what_a_killed_server_held_is_reported_though_no_server_starts() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let living = watched(&home, &index).spawn().unwrap();
    ask(&living, 0, "req-living");
    let builder = watched(&home, &index);
    let mut server = builder.spawn().unwrap();
    ask(&server, 0, "req-a");
    ask(&server, 1, "req-b");
    server.stop(libc::SIGKILL).unwrap();
    assert_told(&index, &[&living], &["req-a", "req-b"]);
    assert!(is_cached(&living, 0, "req-living"));

    let next = builder.spawn().unwrap();
    ask(&next, 0, "req-c");
    assert_told(&index, &[&living, &next], &["req-a", "req-b"]);
}

#[test]
fn what_a_server_reports_at_its_end_is_reported_once() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let mut server = watched(&home, &index).spawn().unwrap();
    ask(&server, 0, "req-a");
    server.stop(libc::SIGTERM).unwrap();
    assert_told(&index, &[], &["req-a"]);
    let output = killed(&home, &index);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "0 requests of killed servers reported as evicted\n");
    assert_told(&index, &[], &["req-a"]);
}

/// A program that lives on, as Ollama does, and whose servers only inherit the variables.
#[test]
fn what_a_server_held_is_reported_while_the_program_that_killed_it_lives() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let (parent, pid) = (home.path().join("parent"), home.path().join("pid"));
    let script = format!(
        "#!/bin/sh\nLD_PRELOAD='{}' \"$LLAMA_SERVER_BIN\" \"$@\" &\necho $! > '{}'\nwait\nexec sleep 1000\n",
        hook().display(),
        pid.display(),
    );
    std::fs::write(&parent, script).unwrap();
    std::fs::set_permissions(&parent, PermissionsExt::from_mode(0o700)).unwrap();
    let builder = watched(&home, &index)
        .launcher(&parent)
        .env("CONTEXTPILOT_WATCHER", COMPANION);
    let mut program = builder.spawn().unwrap();
    ask(&program, 0, "req-a");
    let child: libc::pid_t = std::fs::read_to_string(&pid)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    assert!(index.wait_until(|evicted| *evicted == ids(&["req-a"]), PATIENCE));
    program.stop(libc::SIGKILL).unwrap();
}

/// The watcher ends after the time for a server's end, and leaves the rest to the next process that looks.
#[test]
fn what_the_index_did_not_take_is_reported_later() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let mut server = watched(&home, &index).spawn().unwrap();
    ask(&server, 0, "req-a");
    index.behave(Behaviour::Status(500, "not yet".into()));
    server.stop(libc::SIGKILL).unwrap();
    assert!(index.wait_posts(|posts| !posts.is_empty(), PATIENCE));
    let output = killed(&home, &index);
    index.behave(Behaviour::Accept);
    // The watcher may have had the journal then, or not any more.
    let (deadline, mut said) = (Instant::now() + PATIENCE, output);
    while index.evicted() != ids(&["req-a"]) {
        assert!(Instant::now() < deadline, "{said:?}");
        said = killed(&home, &index);
    }
    assert_told_at_least_once(&index, &[], &["req-a"]);
}

#[test]
fn a_watcher_that_cannot_be_started_is_named_and_the_server_runs() {
    for (value, part) in [
        ("/no/such/program", "/no/such/program cannot be started"),
        (
            "auto",
            "set CONTEXTPILOT_WATCHER to the path of contextpilot-llama",
        ),
    ] {
        let (home, index) = (Home::new(), Index::start().unwrap());
        // Without a launcher, which would know what `auto` is.
        let builder = Server::tiny()
            .bare_slots(1)
            .preload(hook())
            .index_url(index.url())
            .env("XDG_STATE_HOME", home.path())
            .env("CONTEXTPILOT_WATCHER", value);
        let server = builder.spawn().unwrap();
        ask(&server, 0, "req-a");
        assert!(server.stderr().contains(part), "{}", server.stderr());
    }
}
