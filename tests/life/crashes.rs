//! A server that is killed leaves a journal, and its next start tells what is in it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Behaviour, Builder, Index, Server, nowhere};

use crate::support::{
    Home, PATIENCE, ask, assert_told, assert_told_at_least_once, ids, is_cached, lines,
};

/// Waits until the journals hold the id. That is when the worker's turn has come, in general
/// before the request is answered; but on a busy machine nobody waits for it.
fn wait_until_kept(home: &Home, id: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !home.hold(id) {
        assert!(Instant::now() < deadline, "{id} is not kept");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill_when_kept(home: &Home, mut server: Server, id: &str) {
    wait_until_kept(home, id);
    server.stop(libc::SIGKILL).unwrap();
}

/// A builder whose server listens at a port of its own, the same in each life.
fn at_a_port(builder: Builder) -> Builder {
    let own = nowhere();
    builder
        .args(["--host".to_owned(), own.ip().to_string()])
        .args(["--port".to_owned(), own.port().to_string()])
}

#[test]
fn after_a_crash_the_next_start_reports_the_live_ids_and_no_others() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 4);
    let server = builder.spawn().unwrap();
    ask(&server, 0, "req-a");
    ask(&server, 1, "req-b");
    // Told in the first life already.
    ask(&server, 0, "req-c");
    assert!(index.wait_until(|evicted| *evicted == ids(&["req-a"]), PATIENCE));
    kill_when_kept(&home, server, "req-c");

    let server = builder.spawn().unwrap();
    assert_told_at_least_once(&index, &["req-a", "req-b", "req-c"]);
    for (slot, id) in (0..).zip(["req-d", "req-e"]) {
        ask(&server, slot, id);
    }
    // The index now believes in these two, and rightly.
    assert!(is_cached(&server, 0, "req-d") && is_cached(&server, 1, "req-e"));
    assert_told_at_least_once(&index, &["req-a", "req-b", "req-c"]);
    kill_when_kept(&home, server, "req-e");
    let _last = builder.spawn().unwrap();
    let all = ["req-a", "req-b", "req-c", "req-d", "req-e"];
    assert_told_at_least_once(&index, &all);
}

/// Neither does the crash of the start that was to tell.
#[test]
fn a_second_crash_during_these_reports_loses_no_id() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 4);
    let server = builder.spawn().unwrap();
    ask(&server, 0, "req-a");
    ask(&server, 1, "req-b");
    kill_when_kept(&home, server, "req-b");
    index.behave(Behaviour::Hang);
    let server = builder.spawn().unwrap();
    assert!(index.wait_posts(|posts| !posts.is_empty(), PATIENCE));
    ask(&server, 0, "req-c");
    kill_when_kept(&home, server, "req-c");
    index.behave(Behaviour::Accept);
    let _last = builder.spawn().unwrap();
    assert_told_at_least_once(&index, &["req-a", "req-b", "req-c"]);
}

/// A request of the last life comes back to the new one before the index is told of it.
#[test]
fn an_id_that_comes_again_before_the_report_is_not_reported() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 4);
    let server = builder.spawn().unwrap();
    ask(&server, 0, "req-a");
    ask(&server, 1, "req-b");
    kill_when_kept(&home, server, "req-b");
    index.behave(Behaviour::Status(500, "not yet".into()));
    let server = builder.spawn().unwrap();
    ask(&server, 0, "req-a");
    // Once this one is kept, the worker has seen the one before.
    ask(&server, 1, "req-c");
    wait_until_kept(&home, "req-c");
    index.behave(Behaviour::Accept);
    assert_told(&index, &["req-b"]);
    kill_when_kept(&home, server, "req-c");
    let _last = builder.spawn().unwrap();
    assert_told_at_least_once(&index, &["req-a", "req-b", "req-c"]);
}

/// Two addresses, and twice the same: neither pair mixes up its ids, whoever dies first.
#[test]
fn two_servers_never_report_each_others_ids() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let either = home.server(&index, 4);
    let pairs = [
        (at_a_port(either.clone()), at_a_port(either.clone())),
        // `--port 0`: as far as can be told before they listen, these are one.
        (either.clone(), either),
    ];
    let mut told = Vec::new();
    for (number, (left, right)) in pairs.into_iter().enumerate() {
        let [l, r] = ["left", "right"].map(|side| format!("req-{side}-{number}"));
        let left_server = left.spawn().unwrap();
        let right_server = right.spawn().unwrap();
        ask(&left_server, 0, &l);
        ask(&right_server, 0, &r);
        kill_when_kept(&home, left_server, &l);
        let left_server = left.spawn().unwrap();
        told.push(l);
        assert_told(&index, &told.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(
            is_cached(&right_server, 0, &r),
            "{r} is rightly believed in"
        );
        kill_when_kept(&home, right_server, &r);
        let _right_server = right.spawn().unwrap();
        told.push(r);
        assert_told(&index, &told.iter().map(String::as_str).collect::<Vec<_>>());
        drop(left_server);
    }
}

/// The thread that received a request keeps its id, whatever the worker is at.
#[cfg(debug_assertions)]
#[test]
fn an_id_that_the_worker_had_not_received_is_reported_too() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let stall = home.folder().with_extension("stall");
    let builder = home.server(&index, 4);
    let stalled = format!("stall:{}", stall.display());
    let mut server = builder
        .clone()
        .env("CONTEXTPILOT_FAULT", stalled)
        .spawn()
        .unwrap();
    std::fs::write(&stall, "").unwrap();
    ask(&server, 0, "req-a");
    ask(&server, 1, "req-b");
    assert!(!home.hold("req-b"), "the worker stands still");
    server.stop(libc::SIGKILL).unwrap();
    let _next = builder.spawn().unwrap();
    assert_told(&index, &["req-a", "req-b"]);
}

type Damage = fn(&Path);

#[test]
fn a_damaged_journal_is_set_aside_and_the_server_runs() {
    let damage: [(&str, Damage); 3] = [
        ("torn", |path| {
            let whole = std::fs::read(path).unwrap();
            std::fs::write(path, &whole[..whole.len() - 3]).unwrap();
        }),
        ("noise", |path| {
            let noise: Vec<u8> = (0..100_000u32).map(|n| ((n * 7919) >> 3) as u8).collect();
            std::fs::write(path, noise).unwrap();
        }),
        ("another's", |path| {
            std::fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
        }),
    ];
    for (what, damage) in damage {
        let (home, index) = (Home::new(), Index::start().unwrap());
        let builder = home.server(&index, 4);
        let server = builder.spawn().unwrap();
        ask(&server, 0, "req-a");
        ask(&server, 1, "req-b");
        kill_when_kept(&home, server, "req-b");
        damage(&home.journal());
        let server = builder.spawn().unwrap();
        ask(&server, 2, "req-c");
        // At worst nothing is known of before; never something that was not there.
        let evicted = index.evicted();
        assert!(
            evicted.is_subset(&ids(&["req-a", "req-b"])),
            "{what}: {evicted:?}"
        );
        if what == "torn" {
            assert!(index.wait_until(|evicted| evicted.contains("req-a"), PATIENCE));
        } else {
            let said = lines(&server).join("\n");
            assert!(
                said.contains("set aside") || said.contains("cannot be used"),
                "{what}: {said}"
            );
        }
        kill_when_kept(&home, server, "req-c");
        let _last = builder.spawn().unwrap();
        assert!(
            index.wait_until(|evicted| evicted.contains("req-c"), PATIENCE),
            "{what}"
        );
    }
}

#[test]
fn the_journal_is_private_and_contains_no_prompt() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let server = home.server(&index, 4).spawn().unwrap();
    ask(&server, 0, "req-a");
    wait_until_kept(&home, "req-a");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let journal = home.journal();
    assert_eq!((mode(&home.folder()), mode(&journal)), (0o700, 0o600));
    let content = std::fs::read(&journal).unwrap();
    let text = String::from_utf8_lossy(&content);
    assert!(text.contains("req-a"), "{text}");
    assert!(!text.contains("how this prompt begins"), "{text}");
}
