//! Proxies from the environment: never for loopback, as usual for the rest.

mod support;

use std::env;
use std::ffi::OsString;
use std::process::Command;

use contextpilot_delivery::{Config, Sender};
use contextpilot_settings::Settings;
use contextpilot_testbed::Behaviour;
use support::*;

const VARIABLES: [&str; 6] = [
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

fn sender_from_environment(log: &Log) -> Sender {
    let settings = Settings::from(|name| env::var_os(name)).expect("usable settings");
    let config = Config::from_settings(&settings, |name| env::var(name).ok(), log.sink());
    Sender::start(config.expect("an index URL"), || {}).expect("a sender")
}

/// Not a test: what the test below runs in a process of its own, since an
/// environment belongs to a whole process.
#[test]
#[ignore = "run by loopback_is_reached_directly_whatever_the_environment_says"]
fn child() {
    let sender = sender_from_environment(&Log::default());
    sender.evict("req-1".into());
    wait_for(&sender, "confirmation", |s| s.sent == 1);
}

#[test]
fn loopback_is_reached_directly_whatever_the_environment_says() {
    let proxy = start_index();
    let index = start_index();
    for host in ["127.0.0.1", "localhost"] {
        let mut child = Command::new(env::current_exe().expect("this test"));
        child.args(["--exact", "child", "--ignored"]);
        child.env_remove("no_proxy").env_remove("NO_PROXY");
        for variable in VARIABLES {
            child.env(variable, format!("http://{}", proxy.address()));
        }
        let port = index.address().port();
        child.env("CONTEXTPILOT_INDEX_URL", format!("http://{host}:{port}"));
        let output = child.output().expect("a child process");
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(wait_for_reported(&index, 2), ["req-1", "req-1"]);
    assert_eq!(proxy.connections(), 0);
}

/// With a made-up environment, so that no other test sees it.
fn start_with(url: &str, proxy: &str, log: &Log) -> Sender {
    let settings =
        Settings::from(|name| (name == "CONTEXTPILOT_INDEX_URL").then(|| OsString::from(url)));
    let lookup = |name: &str| (name == "http_proxy").then(|| proxy.to_owned());
    let mut config = Config::from_settings(&settings.expect("usable"), lookup, log.sink())
        .expect("an index URL");
    config.retry.cap = std::time::Duration::from_millis(100);
    Sender::start(config, || {}).expect("a sender")
}

#[test]
fn another_host_is_reached_through_the_proxy() {
    let proxy = start_index();
    // The proxy agrees to the tunnel, and what comes through it is answered by
    // the same server.
    proxy.script([Behaviour::Answer(200, Vec::new(), String::new())]);
    let log = Log::default();
    let address = format!("http://{}", proxy.address());
    let sender = start_with("http://index.invalid:8765", &address, &log);
    sender.evict("req-1".into());
    let posts = wait_for_posts(&proxy, 2);
    assert_eq!(posts[0].line(), "CONNECT index.invalid:8765 HTTP/1.1");
    assert_eq!(posts[1].line(), "POST /evict HTTP/1.1");
    assert_eq!(posts[1].ids, ["req-1"]);
    wait_for(&sender, "confirmation", |s| s.sent == 1);
}

#[test]
fn a_proxy_that_cannot_be_used_is_named_without_its_password() {
    for proxy in [
        "socks5://user:s3cret@127.0.0.1:1",
        "http://user:s3cret@:x:y",
    ] {
        let log = Log::default();
        let sender = start_with("http://index.invalid:8765", proxy, &log);
        sender.evict("req-1".into());
        wait_for(&sender, "a failure", |s| s.failed_posts > 0);
        let lines = log.lines();
        assert!(
            lines[0].contains("proxy") && lines[0].contains("no_proxy"),
            "{lines:?}"
        );
        assert!(!lines.iter().any(|l| l.contains("s3cret")), "{lines:?}");
    }
}
