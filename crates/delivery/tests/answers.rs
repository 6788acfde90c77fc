//! What the sender makes of every kind of answer.

mod support;

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use contextpilot_delivery::{Config, Sender};
use contextpilot_settings::Settings;
use support::*;

#[test]
fn one_post_is_json_over_a_kept_alive_connection() {
    let index = Index::start();
    let (sender, log) = sender_to(&index.url());
    for n in 1..=5 {
        sender.evict(format!("req-\"{n}\"\n").into());
        index.wait_for_told(n);
        wait_for(&sender, "confirmation", |s| s.sent == n as u64);
    }
    let posts = index.posts();
    assert_eq!(posts.len(), 5);
    assert_eq!(posts[4].ids, ["req-\"5\"\n"]);
    assert_eq!(posts[0].head[0], "POST /evict HTTP/1.1");
    assert_eq!(posts[0].header("content-type"), Some("application/json"));
    let agent = posts[0].header("user-agent").expect("a user agent");
    assert!(agent.starts_with("contextpilot-llama/"), "{agent}");
    assert_eq!(posts[0].header("authorization"), None);
    assert_eq!(index.connections(), 1);
    let stats = sender.stats();
    assert_eq!((stats.posts, stats.failed_posts), (5, 0));
    assert!(stats.running && stats.last_success_unix_ms.is_some());
    assert!(log.lines().is_empty());
}

fn from_settings(variables: &[(&str, String)], log: &Log) -> Config {
    let variables: HashMap<_, _> = variables.iter().cloned().collect();
    let settings = Settings::from(|name| variables.get(name).map(OsString::from));
    let settings = settings.expect("usable settings");
    let lookup = |name: &str| variables.get(name).cloned();
    Config::from_settings(&settings, lookup, log.sink()).expect("an index URL")
}

#[test]
fn settings_give_prefix_token_and_user() {
    let index = Index::start();
    let address = index.address();
    let log = Log::default();
    let token = from_settings(
        &[
            (
                "CONTEXTPILOT_INDEX_URL",
                format!("http://{address}/pilot/v1/"),
            ),
            ("CONTEXTPILOT_INDEX_TOKEN", "t0ken".to_owned()),
        ],
        &log,
    );
    let user = from_settings(
        &[(
            "CONTEXTPILOT_INDEX_URL",
            format!("http://Aladdin:open%20sesame@{address}"),
        )],
        &log,
    );
    for config in [&token, &user] {
        let shown = format!("{config:?}");
        assert!(
            !shown.contains("t0ken") && !shown.contains("QWxh"),
            "{shown}"
        );
    }
    for (n, config) in [token, user].into_iter().enumerate() {
        let sender = Sender::start(config, || {}).expect("a sender");
        sender.evict("req-1".into());
        index.wait_for_told(n + 1);
    }
    let posts = index.posts();
    assert_eq!(posts[0].head[0], "POST /pilot/v1/evict HTTP/1.1");
    assert_eq!(posts[0].header("authorization"), Some("Bearer t0ken"));
    assert_eq!(posts[1].head[0], "POST /evict HTTP/1.1");
    // RFC 7617's own example, but for its capital letter and colon.
    let basic = posts[1].header("authorization");
    assert_eq!(basic, Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
}

#[test]
fn while_a_post_is_under_way_the_rest_gathers_in_order() {
    let index = Index::start();
    index.script([Act::Hang]);
    let (sender, _) = sender_to(&index.url());
    let all = ids(0..2501);
    evict(&sender, &all[..1]);
    index.wait_for_posts(1);
    for id in &all[1..] {
        sender.evict(id.as_str().into());
    }
    let stats = sender.stats();
    assert_eq!((stats.waiting, stats.in_flight), (2500, 1));
    index.release();
    assert_eq!(index.wait_for_told(all.len()), all);
    let sizes: Vec<usize> = index.posts().iter().map(|post| post.ids.len()).collect();
    assert_eq!(sizes, [1, 1000, 1000, 500]);
}

#[test]
fn what_became_resident_again_is_not_told() {
    let index = Index::start();
    index.script([Act::Hang]);
    let (sender, _) = sender_to(&index.url());
    let all = ids(0..4);
    evict(&sender, &all[..1]);
    index.wait_for_posts(1);
    evict(&sender, &all[1..]);
    assert!(sender.withdraw(&all[2]));
    assert!(!sender.withdraw(&all[0]), "it is on its way");
    index.release();
    let expected = [&all[0], &all[1], &all[3]].map(String::clone);
    assert_eq!(index.wait_for_told(3), expected);
    wait_for(&sender, "the end", |s| s.sent == 3 && s.waiting == 0);
}

#[test]
fn in_flight_and_resident_again_is_not_retried_after_a_failure() {
    let index = Index::start();
    index.script([Act::Hang]);
    let (sender, _) = sender_with(&index.url(), |c| c.timeout = Duration::from_secs(2));
    let all = ids(0..2);
    evict(&sender, &all);
    index.wait_for_posts(1);
    sender.withdraw(&all[0]);
    // The POST runs into its timeout.
    assert_eq!(index.wait_for_told(1), all[1..]);
    wait_for(&sender, "the end", |s| s.sent == 1 && s.waiting == 0);
}

#[test]
fn an_index_that_is_not_initialized_needs_no_telling() {
    let index = Index::start();
    let body = r#"{"detail":"Index not initialized. Call POST /reorder first."}"#;
    index.script([Act::Answer(503, Vec::new(), body.to_owned())]);
    let (sender, log) = sender_to(&index.url());
    evict(&sender, &ids(0..7));
    let stats = wait_for(&sender, "an answer", |s| s.not_needed > 0);
    assert_eq!((stats.not_needed + stats.sent, stats.failed_posts), (7, 0));
    assert_eq!((stats.waiting, stats.in_flight), (0, 0));
    assert!(log.lines().is_empty());
}

#[test]
fn a_client_error_drops_the_ids_and_is_named_once() {
    let index = Index::start();
    index.script([401, 401, 401, 404, 422].map(Act::status));
    let (sender, log) = sender_with(&index.url(), |c| {
        c.authorization = Some("Bearer s3cret".to_owned());
    });
    for (n, id) in ids(0..5).into_iter().enumerate() {
        sender.evict(id.into());
        wait_for(&sender, "a rejection", |s| s.rejected == n as u64 + 1);
    }
    sender.evict("req-good".into());
    assert_eq!(index.wait_for_told(1), ["req-good"]);
    assert_eq!(index.posts().len(), 6, "nothing was sent again");
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for (line, (status, check)) in lines.iter().zip([
        ("401", "CONTEXTPILOT_INDEX_TOKEN"),
        ("404", "path"),
        ("422", "version"),
    ]) {
        assert!(line.starts_with("[ContextPilot] "), "{line}");
        assert!(line.contains(&index.url()), "{line}");
        assert!(line.contains(status) && line.contains(check), "{line}");
        assert!(!line.contains("s3cret") && !line.contains("req-"), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }
}

#[test]
fn trouble_is_retried_until_it_is_over() {
    let index = Index::start();
    let later = Act::Answer(429, vec!["retry-after: 0".to_owned()], String::new());
    index.script([Act::status(500), later, Act::status(502), Act::status(503)]);
    let (sender, _) = sender_to(&index.url());
    let all = ids(0..3);
    evict(&sender, &all);
    assert_eq!(index.wait_for_told(3), all);
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 3);
    assert_eq!((stats.failed_posts, stats.failures_in_a_row), (4, 0));
    assert_eq!(stats.last_error.as_deref(), Some("the index answered 503"));
}

#[test]
fn answers_that_are_none_are_retried() {
    let nothing = Act::Raw(Vec::new());
    let garbage = Act::Raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec());
    let noise = Act::Raw(vec![0xff; 100_000]);
    let half_a_head = Act::Raw(b"HTTP/1.1 20".to_vec());
    let torn = b"HTTP/1.1 503 X\r\ncontent-length: 99\r\n\r\nnot initialized".to_vec();
    let endless_head = Act::Endless(b"HTTP/1.1 200 X\r\nx: ".to_vec());
    for (what, act) in [
        ("nothing", nothing),
        ("garbage", garbage),
        ("noise", noise),
        ("half a head", half_a_head),
        ("torn body of a 503", Act::Raw(torn)),
        ("hang", Act::Hang),
    ] {
        let index = Index::start();
        index.script([act]);
        let (sender, _) = sender_with(&index.url(), |c| c.timeout = Duration::from_secs(2));
        evict(&sender, &ids(0..2));
        assert_eq!(index.wait_for_told(2), ids(0..2), "{what}");
        let stats = wait_for(&sender, what, |s| s.sent == 2);
        assert_eq!(stats.failed_posts, 1, "{what}");
        assert_eq!(index.posts().len(), 2, "{what}");
    }
    // The index takes this one for an answer, the sender must not.
    let index = Index::start();
    index.script([endless_head]);
    let (sender, _) = sender_to(&index.url());
    evict(&sender, &ids(0..2));
    let stats = wait_for(&sender, "endless head", |s| s.sent == 2);
    assert_eq!(stats.failed_posts, 1);
}

#[test]
fn the_status_counts_even_if_the_body_is_torn_or_endless() {
    let torn = b"HTTP/1.1 200 X\r\ncontent-length: 99\r\n\r\n{\"rem".to_vec();
    let endless = b"HTTP/1.1 200 X\r\n\r\n".to_vec();
    let longer = b"HTTP/1.1 200 X\r\ncontent-length: 99999999999\r\n\r\n".to_vec();
    let index = Index::start();
    index.script([Act::Raw(torn), Act::Endless(endless), Act::Endless(longer)]);
    let (sender, _) = sender_to(&index.url());
    for (n, id) in ids(0..4).into_iter().enumerate() {
        sender.evict(id.into());
        wait_for(&sender, "confirmation", |s| s.sent == n as u64 + 1);
    }
    assert_eq!(sender.stats().failed_posts, 0);
    assert_eq!(index.wait_for_told(4), ids(0..4), "each once");
    // An endless 503 is read to its limit and judged by what was read.
    index.script([Act::Endless(
        b"HTTP/1.1 503 X\r\n\r\nnot initialized".to_vec(),
    )]);
    sender.evict("x".into());
    wait_for(&sender, "an answer", |s| s.not_needed == 1);
}

#[test]
fn redirects_are_followed_on_the_same_host_as_the_same_post() {
    let index = Index::start();
    let elsewhere = format!("http://{}/b/evict", index.address());
    index.script([
        Act::redirect(307, "/a/evict"),
        Act::redirect(301, &elsewhere),
    ]);
    let (sender, log) = sender_with(&index.url(), |c| {
        c.authorization = Some("Bearer t".to_owned());
    });
    evict(&sender, &ids(0..2));
    assert_eq!(index.wait_for_told(2), ids(0..2));
    let posts = index.posts();
    let paths: Vec<_> = posts.iter().map(|post| post.head[0].as_str()).collect();
    assert_eq!(
        paths,
        [
            "POST /evict HTTP/1.1",
            "POST /a/evict HTTP/1.1",
            "POST /b/evict HTTP/1.1"
        ]
    );
    assert!(
        posts
            .iter()
            .all(|p| p.header("authorization") == Some("Bearer t"))
    );
    assert!(posts.iter().all(|p| p.ids == ids(0..2)));
    wait_for(&sender, "confirmation", |s| s.sent == 2);
    assert!(log.lines().is_empty());
}

#[test]
fn redirects_elsewhere_or_in_circles_are_not_followed() {
    let index = Index::start();
    let other = Index::start();
    let away = format!("http://localhost:{}/evict", other.address().port());
    index.script([Act::redirect(307, &away), Act::redirect(303, "/x")]);
    index.script(vec![Act::redirect(308, "/evict"); 4]);
    let (sender, log) = sender_to(&index.url());
    for (n, id) in ids(0..3).into_iter().enumerate() {
        sender.evict(id.into());
        wait_for(&sender, "a rejection", |s| s.rejected == n as u64 + 1);
    }
    assert_eq!(index.posts().len(), 1 + 1 + 4);
    assert_eq!(other.connections(), 0);
    let lines = log.lines();
    assert_eq!(lines.len(), 3);
    assert!(
        lines
            .iter()
            .all(|l| l.contains("redirect") && l.contains("CONTEXTPILOT_INDEX_URL"))
    );
}

#[test]
fn ipv6() {
    let Ok(index) = Index::start_on("[::1]:0") else {
        eprintln!("skipped: no IPv6 loopback here");
        return;
    };
    let (sender, _) = sender_to(&index.url());
    sender.evict("req-6".into());
    assert_eq!(index.wait_for_told(1), ["req-6"]);
}

#[test]
fn a_panic_is_caught_counted_and_survived() {
    let index = Index::start();
    index.script([Act::status(401)]);
    let log = Log::default();
    let lines = log.sink();
    let (sender, _) = sender_with(&index.url(), |c| {
        c.log = Arc::new(move |line| {
            lines(line);
            panic!("a bug, for once");
        });
    });
    evict(&sender, &ids(0..2));
    // It came before the ids were given up, so they are sent again; and so does
    // another when the first is to be named.
    assert_eq!(index.wait_for_told(2), ids(0..2));
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 2);
    assert_eq!((stats.panics, stats.running), (2, true));
    assert_eq!(
        stats.last_error.as_deref(),
        Some("the sender thread panicked")
    );
    assert_eq!(
        log.lines()
            .iter()
            .filter(|l| l.contains("panicked"))
            .count(),
        1
    );
}

#[test]
fn whoever_asks_hears_what_is_settled() {
    let index = Index::start();
    let log = Log::default();
    let config = Config {
        keep_settled: true,
        ..Config::new(format!("{}/evict", index.url()), log.sink())
    };
    let sender = Sender::start(config, || {}).expect("a sender");
    assert!(sender.take_settled().is_empty());
    sender.evict("a".into());
    wait_for(&sender, "confirmation", |s| s.sent == 1);
    sender.evict("b".into());
    wait_for(&sender, "confirmation", |s| s.sent == 2);
    assert_eq!(sender.take_settled(), ["a".into(), "b".into()]);
    assert!(sender.take_settled().is_empty());
}
