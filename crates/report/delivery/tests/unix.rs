//! An index behind a Unix socket.

mod support;

use std::ffi::OsString;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use contextpilot_delivery::{Config, Sender};
use contextpilot_settings::Settings;
use contextpilot_testbed::{Behaviour, Index};
use support::*;

/// A folder, and the path of a socket in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("index.sock");
    (folder, path)
}

/// As the hook does it, with proxies in the environment that must not matter.
fn start(url: &str, log: &Log, adjust: impl FnOnce(&mut Config)) -> Sender {
    let settings = Settings::from(|name| match name {
        "CONTEXTPILOT_INDEX_URL" => Some(OsString::from(url)),
        "CONTEXTPILOT_INDEX_TOKEN" => Some(OsString::from("t0ken")),
        _ => None,
    });
    let proxy = |name: &str| {
        name.ends_with("_proxy")
            .then(|| "http://127.0.0.1:1".to_owned())
    };
    let mut config =
        Config::from_settings(&settings.expect("usable"), proxy, log.sink()).expect("an index URL");
    config.retry.cap = Duration::from_millis(100);
    adjust(&mut config);
    Sender::start(config, || {}).expect("a sender")
}

fn url(path: &Path) -> String {
    format!("unix:{}", path.display())
}

#[test]
fn it_is_told_over_one_connection_under_its_prefix() {
    let (_folder, path) = place();
    let index = Index::start_unix(&path).expect("a socket");
    let log = Log::default();
    for (nth, (url, line)) in [
        (url(&path), "POST /evict HTTP/1.1"),
        (
            format!("{}:/pilot/v1/", url(&path)),
            "POST /pilot/v1/evict HTTP/1.1",
        ),
    ]
    .iter()
    .enumerate()
    {
        let sender = start(url, &log, |_| {});
        for n in 1..=3 {
            sender.evict(format!("req-{n}").into());
            wait_for(&sender, "confirmation", |s| s.sent == n);
        }
        assert_eq!(index.connections(), nth + 1, "kept alive");
        let posts = index.posts();
        let last = posts.last().expect("a post");
        assert_eq!(last.line(), *line);
        assert_eq!(last.header("host"), Some("localhost"));
        assert_eq!(last.header("authorization"), Some("Bearer t0ken"));
        assert_eq!(last.ids, ["req-3"]);
    }
    assert!(log.lines().is_empty(), "{:?}", log.lines());
}

#[test]
fn large_posts_and_large_answers_pass() {
    let (_folder, path) = place();
    let index = Index::start_unix(&path).expect("a socket");
    // More than the buffers of ureq hold, and the POST more than the kernel's.
    let long = "x".repeat(3000);
    let all: Vec<_> = (0..1500).map(|n| format!("{n:04}{long}")).collect();
    let long = long.repeat(20);
    let body = format!("{{\"not_found\":[\"{long}\"],\"removed_count\":0,\"status\":\"success\"}}");
    let answer = Behaviour::Answer(200, Vec::new(), body);
    index.script([Behaviour::Hang, answer]);
    let sender = start(&url(&path), &Log::default(), |_| {});
    evict(&sender, &all[..1]);
    wait_for_posts(&index, 1);
    evict(&sender, &all[1..]);
    index.release();
    let reported = wait_for_reported(&index, 1500);
    assert!(reported == all, "{} ids were reported", reported.len());
    assert_eq!(index.connections(), 1, "the answer was read to its end");
}

#[test]
fn it_may_come_later_and_be_started_again() {
    let (_folder, path) = place();
    let log = Log::default();
    let sender = start(&url(&path), &log, |_| {});
    let mut reported = Vec::new();
    for round in 0..5 {
        let batch = ids(round * 100..(round + 1) * 100);
        evict(&sender, &batch[..50]);
        if round == 0 {
            let stats = wait_for(&sender, "failures", |s| s.failed_posts >= 3);
            let error = stats.last_error.expect("what went wrong");
            assert!(error.contains("there is no such socket"), "{error}");
        }
        let index = Index::start_unix(&path).expect("a socket");
        evict(&sender, &batch[50..]);
        let sent = (round as u64 + 1) * 100;
        wait_for(&sender, "confirmation", |s| s.sent == sent);
        reported.extend(wait_for_reported(&index, 100));
    }
    assert_eq!(reported, ids(0..500));
}

#[test]
fn a_socket_without_a_server_is_named() {
    let (_folder, path) = place();
    // A killed server leaves it behind.
    drop(UnixListener::bind(&path).expect("a socket"));
    let log = Log::default();
    let sender = start(&url(&path), &log, |_| {});
    evict(&sender, &ids(0..2));
    wait_for(&sender, "a line", |_| !log.lines().is_empty());
    let lines = log.lines();
    assert!(
        lines[0].contains("nobody listens at the socket"),
        "{lines:?}"
    );
    assert!(
        lines[0].contains(&format!("{}:/evict", url(&path))),
        "{lines:?}"
    );
    assert!(!lines[0].contains("t0ken"), "{lines:?}");
}

#[test]
fn one_that_hangs_costs_no_more_than_its_time() {
    let (_folder, path) = place();
    let index = Index::start_unix(&path).expect("a socket");
    index.script([Behaviour::Hang]);
    let sender = start(&url(&path), &Log::default(), |c| {
        c.timeout = Duration::from_millis(300);
    });
    evict(&sender, &ids(0..2));
    assert_eq!(wait_for_reported(&index, 2), ids(0..2));
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 2);
    assert_eq!(stats.failed_posts, 1);
    let error = stats.last_error.expect("what went wrong");
    assert!(
        error.contains("timed out") && error.contains("CONTEXTPILOT_INDEX_TIMEOUT_MS"),
        "{error}"
    );
}

/// Its queue is full, and nothing takes from it: connecting would take for ever. (Elsewhere than on
/// Linux it is refused then.)
#[cfg(target_os = "linux")]
#[test]
fn one_that_does_not_accept_costs_no_more_than_its_time() {
    use std::os::unix::net::UnixStream;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

    let (_folder, path) = place();
    let listener =
        rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    let address = SocketAddrUnix::new(&path).expect("a short path");
    rustix::net::bind(&listener, &address).expect("a free path");
    rustix::net::listen(&listener, 0).expect("a queue of one");
    let _first = UnixStream::connect(&path).expect("a place in it");
    let sender = start(&url(&path), &Log::default(), |c| {
        c.connect_timeout = Duration::from_millis(100);
        c.timeout = PATIENCE * 2;
    });
    sender.evict("req-1".into());
    let stats = wait_for(&sender, "a failure", |s| s.failed_posts > 0);
    let error = stats.last_error.expect("what went wrong");
    assert!(error.contains("timed out (connect)"), "{error}");
}

#[test]
fn redirects_stay_at_the_socket() {
    let (_folder, path) = place();
    let index = Index::start_unix(&path).expect("a socket");
    let other = start_index();
    index.script([Behaviour::redirect(307, "/a/evict")]);
    let elsewhere = format!("http://localhost:{}/evict", other.address().port());
    index.script([Behaviour::redirect(307, &elsewhere)]);
    index.script([Behaviour::redirect(307, "https://localhost/evict")]);
    let sender = start(&url(&path), &Log::default(), |_| {});
    evict(&sender, &ids(0..2));
    assert_eq!(wait_for_reported(&index, 2), ids(0..2));
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 2);
    assert_eq!(stats.failed_posts, 2);
    assert_eq!(other.connections(), 0);
    let paths: Vec<_> = index.posts().iter().map(|p| p.line().to_owned()).collect();
    assert_eq!(paths[1], "POST /a/evict HTTP/1.1");
}
