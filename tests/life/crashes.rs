//! A server that is killed leaves a journal. Its next start reports the ids in the journal.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use contextpilot_testbed::{Behaviour, Builder, Index, Server, nowhere};

use crate::support::{
    Home, PATIENCE, ask, assert_told, assert_told_at_least_once, ids, is_cached, kill_when_kept,
    lines, wait_until_kept,
};

/// A server with `req-a` and `req-b` in its first two slots.
fn filled(builder: &Builder) -> Server {
    let server = builder.spawn().unwrap();
    ask(&server, 0, "req-a");
    ask(&server, 1, "req-b");
    server
}

/// A builder whose server listens at a fixed free port, the same after each start.
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
    let server = filled(&builder);
    // This overwrites `req-a`, so the first server reports `req-a`.
    ask(&server, 0, "req-c");
    assert!(index.wait_until(|evicted| *evicted == ids(&["req-a"]), PATIENCE));
    kill_when_kept(&home, server, "req-c");

    let server = builder.spawn().unwrap();
    assert_told_at_least_once(&index, &[&server], &["req-a", "req-b", "req-c"]);
    for (slot, id) in (0..).zip(["req-d", "req-e"]) {
        ask(&server, slot, id);
    }
    // These two are cached now, so they must not be reported.
    assert!(is_cached(&server, 0, "req-d") && is_cached(&server, 1, "req-e"));
    assert_told_at_least_once(&index, &[&server], &["req-a", "req-b", "req-c"]);
    kill_when_kept(&home, server, "req-e");
    let last = builder.spawn().unwrap();
    let all = ["req-a", "req-b", "req-c", "req-d", "req-e"];
    assert_told_at_least_once(&index, &[&last], &all);
}

#[test]
fn a_second_crash_while_the_lost_ids_are_reported_loses_no_id() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 4);
    let server = filled(&builder);
    kill_when_kept(&home, server, "req-b");
    index.behave(Behaviour::Hang);
    let server = builder.spawn().unwrap();
    assert!(index.wait_posts(|posts| !posts.is_empty(), PATIENCE));
    ask(&server, 0, "req-c");
    kill_when_kept(&home, server, "req-c");
    index.behave(Behaviour::Accept);
    let last = builder.spawn().unwrap();
    assert_told_at_least_once(&index, &[&last], &["req-a", "req-b", "req-c"]);
}

/// After a crash the index does not answer. Meanwhile a request with a lost id comes again, so the
/// id is cached and must not be reported.
#[test]
fn an_id_that_comes_again_before_the_report_is_not_reported() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 4);
    let server = filled(&builder);
    kill_when_kept(&home, server, "req-b");
    index.behave(Behaviour::Status(500, "not yet".into()));
    let server = builder.spawn().unwrap();
    ask(&server, 0, "req-a");
    // Once the journal contains `req-c`, the worker has seen `req-a`.
    ask(&server, 1, "req-c");
    wait_until_kept(&home, "req-c");
    index.behave(Behaviour::Accept);
    assert_told(&index, &[&server], &["req-b"]);
    kill_when_kept(&home, server, "req-c");
    let last = builder.spawn().unwrap();
    assert_told_at_least_once(&index, &[&last], &["req-a", "req-b", "req-c"]);
}

/// Two pairs of servers with one state folder. Both servers are killed and started again, one after
/// the other. Each start reports the ids of its own server only.
#[test]
fn two_servers_with_one_state_folder_never_report_each_others_ids() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let either = home.server(&index, 4);
    let pairs = [
        (at_a_port(either.clone()), at_a_port(either.clone())),
        // Both have `--port 0`, so before they listen they look like the same server.
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
        assert_told(
            &index,
            &[&left_server, &right_server],
            &told.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        assert!(
            is_cached(&right_server, 0, &r),
            "{r} is rightly believed in"
        );
        kill_when_kept(&home, right_server, &r);
        let right_server = right.spawn().unwrap();
        told.push(r);
        assert_told(
            &index,
            &[&left_server, &right_server],
            &told.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        drop(left_server);
    }
}

/// A program that starts llama-server by itself may kill it, and give the next one another port: Ollama does, each time.
/// What the killed one held is told by that next one, and what a living one holds is not. The last server has another
/// index, to which these ids mean nothing.
#[test]
fn what_a_killed_server_held_is_told_by_the_next_start_at_another_port() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let either = home.server(&index, 4);
    let living = at_a_port(either.clone()).spawn().unwrap();
    ask(&living, 0, "req-living");
    let killed = filled(&at_a_port(either.clone()));
    kill_when_kept(&home, killed, "req-b");

    let other = Index::start().unwrap();
    let stranger = at_a_port(home.server(&other, 4)).spawn().unwrap();
    assert_told(&other, &[&stranger], &[]);
    let next = at_a_port(either).spawn().unwrap();
    assert_told(&index, &[&living, &next], &["req-a", "req-b"]);
    assert!(is_cached(&living, 0, "req-living"));
    assert_eq!(other.evicted(), ids(&[]));
}

/// The thread that receives a request stores its id itself. So the id survives a crash even if the
/// worker is blocked.
#[cfg(debug_assertions)]
#[test]
fn after_a_crash_an_id_that_the_worker_had_not_seen_is_reported() {
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
    let next = builder.spawn().unwrap();
    assert_told(&index, &[&next], &["req-a", "req-b"]);
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
        let server = filled(&builder);
        kill_when_kept(&home, server, "req-b");
        damage(&home.journal());
        let server = builder.spawn().unwrap();
        ask(&server, 2, "req-c");
        // The next start may report fewer ids than were lost, but no others.
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
