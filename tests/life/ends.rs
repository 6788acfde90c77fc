//! A server that is asked to end reports all live ids, and is not delayed for longer than allowed.

use std::time::{Duration, Instant};

use contextpilot_testbed::{Behaviour, Builder, Index, Server};

use crate::support::{Home, PATIENCE, ask, assert_told, assert_told_at_least_once, ids, lines};

const ALL: [&str; 3] = ["req-a", "req-b", "req-c"];

/// How long an end may take. Much longer than the reports at the end may take (two seconds), because
/// the machine may be busy; much shorter than a POST would take without that limit ([`FOR_EVER`]).
const MOST: Duration = Duration::from_secs(12);
const FOR_EVER: &str = "60000";
const TIMEOUT: &str = "CONTEXTPILOT_INDEX_TIMEOUT_MS";

fn fill(server: &Server) {
    for (slot, id) in (0..).zip(ALL) {
        ask(server, slot, id);
    }
}

/// The exit code of a server without the hook after this signal.
fn plain_code(home: &Home, index: &Index, signal: i32) -> Option<i32> {
    let mut plain = home.server(index, 4).plain().spawn().unwrap();
    fill(&plain);
    plain.stop(signal).unwrap().code()
}

#[test]
fn every_live_id_is_reported_before_the_process_ends() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let (home, index) = (Home::new(), Index::start().unwrap());
        let builder = home.server(&index, 4);
        let builder = builder.env("CONTEXTPILOT_EXIT_DRAIN_MS", FOR_EVER);
        let mut server = builder.spawn().unwrap();
        fill(&server);
        assert!(index.posts().is_empty());
        let start = Instant::now();
        let status = server.stop(signal).unwrap();
        let took = start.elapsed();
        // No waiting: the process has ended, so nothing can arrive later.
        assert_eq!(index.evicted(), ids(&ALL));
        assert_told(&index, &[], &ALL);
        assert!(took < MOST, "all was told, and it waited: {took:?}");
        assert_eq!(status.code(), plain_code(&home, &index, signal));
        assert!(home.files().is_empty(), "nothing is left to tell");
        assert!(lines(&server).is_empty(), "{:?}", lines(&server));
    }
}

/// The index is gone, hangs, or answers 500 when the server ends. The server ends in time, with its
/// usual exit code. The next start reports the ids.
#[test]
fn without_an_answer_the_end_is_delayed_by_the_set_time_at_most() {
    for behaviour in [
        None,
        Some(Behaviour::Hang),
        Some(Behaviour::Status(500, "no".into())),
    ] {
        let (home, index) = (Home::new(), Index::start().unwrap());
        let address = index.address();
        let builder = home.server(&index, 4).env(TIMEOUT, FOR_EVER);
        let code = plain_code(&home, &index, libc::SIGTERM);
        let mut server = builder.spawn().unwrap();
        fill(&server);
        let index = match behaviour.clone() {
            Some(behaviour) => {
                index.behave(behaviour);
                Some(index)
            }
            None => {
                drop(index);
                None
            }
        };
        let start = Instant::now();
        let status = server.stop(libc::SIGTERM).unwrap();
        let took = start.elapsed();
        assert!(took < MOST, "{behaviour:?}: {took:?}");
        assert_eq!(status.code(), code, "{behaviour:?}");
        let said = lines(&server).join("\n");
        assert!(
            said.contains(" 3 evictions could not be reported"),
            "{said}"
        );

        let index = index.unwrap_or_else(|| Index::start_at(address).unwrap());
        index.behave(Behaviour::Accept);
        let next = builder.spawn().unwrap();
        assert!(index.wait_until(|evicted| *evicted == ids(&ALL), PATIENCE));
        assert!(lines(&next).is_empty(), "{:?}", lines(&next));
    }
}

/// At the second Ctrl-C llama-server calls `exit` in its signal handler. If the hook is already
/// reporting, the process ends at once. If not, the hook then reports for at most the set time.
#[test]
fn a_second_interrupt_neither_hangs_nor_loses_anything() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 4).env(TIMEOUT, FOR_EVER);
    let mut server = builder.spawn().unwrap();
    fill(&server);
    index.behave(Behaviour::Hang);
    let start = Instant::now();
    server.signal(libc::SIGINT);
    assert!(index.wait_posts(|posts| !posts.is_empty(), PATIENCE));
    server.stop(libc::SIGINT).unwrap();
    let took = start.elapsed();
    assert!(took < MOST, "{took:?}");
    index.behave(Behaviour::Accept);
    let _next = builder.spawn().unwrap();
    assert!(index.wait_until(|evicted| *evicted == ids(&ALL), PATIENCE));
}

#[test]
fn with_an_exit_drain_of_0_the_next_start_reports() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home
        .server(&index, 4)
        .env("CONTEXTPILOT_EXIT_DRAIN_MS", "0");
    let mut server = builder.spawn().unwrap();
    fill(&server);
    index.behave(Behaviour::Hang);
    server.stop(libc::SIGTERM).unwrap();
    // If the hook had tried to report, it would have printed that it could not.
    assert!(lines(&server).is_empty(), "{:?}", lines(&server));
    assert!(index.evicted().is_empty());
    index.behave(Behaviour::Accept);
    let next = builder.spawn().unwrap();
    assert_told_at_least_once(&index, &[&next], &ALL);
}

#[test]
fn without_a_folder_for_a_journal_nobody_is_promised_a_later_report() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let end = |builder: Builder| {
        let mut server = builder.spawn().unwrap();
        fill(&server);
        index.behave(Behaviour::Hang);
        server.stop(libc::SIGTERM).unwrap();
        index.behave(Behaviour::Accept);
        lines(&server).concat()
    };
    let said = end(home
        .server(&index, 4)
        .env("XDG_STATE_HOME", "/dev/null/none"));
    assert!(
        said.contains("reset the index, because the journal"),
        "{said}"
    );
    let said = end(home.server(&index, 4));
    assert!(
        said.contains("the next start of this server will"),
        "{said}"
    );
}

#[test]
fn without_a_journal_nothing_is_kept() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 4).env("CONTEXTPILOT_JOURNAL", "0");
    let mut server = builder.spawn().unwrap();
    fill(&server);
    assert!(!home.folder().exists());
    server.stop(libc::SIGKILL).unwrap();
    let mut next = builder.spawn().unwrap();
    ask(&next, 0, "req-d");
    next.stop(libc::SIGTERM).unwrap();
    assert_told(&index, &[], &["req-d"]);
}
