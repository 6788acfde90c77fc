//! How the sender reacts to every kind of answer.

mod support;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use contextpilot_delivery::{Config, Sender};
use contextpilot_settings::Settings;
use contextpilot_testbed::{Behaviour, Index};
use support::*;

#[test]
fn one_post_is_json_over_a_kept_alive_connection() {
    let index = start_index();
    let (sender, log) = sender_to(&index.evict_url());
    for n in 1..=5 {
        sender.evict(format!("req-\"{n}\"\n").into());
        wait_for_reported(&index, n);
        wait_for(&sender, "confirmation", |s| s.sent == n as u64);
    }
    let posts = index.posts();
    assert_eq!(posts.len(), 5);
    assert_eq!(posts[4].ids, ["req-\"5\"\n"]);
    assert_eq!(posts[0].line(), "POST /evict HTTP/1.1");
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
    let index = start_index();
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
        wait_for_reported(&index, n + 1);
    }
    let posts = index.posts();
    assert_eq!(posts[0].line(), "POST /pilot/v1/evict HTTP/1.1");
    assert_eq!(posts[0].header("authorization"), Some("Bearer t0ken"));
    assert_eq!(posts[1].line(), "POST /evict HTTP/1.1");
    // RFC 7617's own example, but for its capital letter and colon.
    let basic = posts[1].header("authorization");
    assert_eq!(basic, Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
}

#[test]
fn ids_that_come_during_a_post_are_sent_in_order_afterwards() {
    let index = start_index();
    index.script([Behaviour::Hang]);
    let (sender, _) = sender_to(&index.evict_url());
    let all = ids(0..2501);
    evict(&sender, &all[..1]);
    wait_for_posts(&index, 1);
    for id in &all[1..] {
        sender.evict(id.as_str().into());
    }
    let stats = sender.stats();
    assert_eq!((stats.waiting, stats.in_flight), (2500, 1));
    index.release();
    assert_eq!(wait_for_reported(&index, all.len()), all);
    let sizes: Vec<usize> = index.posts().iter().map(|post| post.ids.len()).collect();
    assert_eq!(sizes, [1, 1000, 1000, 500]);
}

#[test]
fn an_id_that_became_resident_again_is_not_sent() {
    let index = start_index();
    index.script([Behaviour::Hang]);
    let (sender, _) = sender_to(&index.evict_url());
    let all = ids(0..4);
    evict(&sender, &all[..1]);
    wait_for_posts(&index, 1);
    evict(&sender, &all[1..]);
    assert!(sender.withdraw(&all[2]));
    assert!(!sender.withdraw(&all[0]), "it is on its way");
    index.release();
    let expected = [&all[0], &all[1], &all[3]].map(String::clone);
    assert_eq!(wait_for_reported(&index, 3), expected);
    wait_for(&sender, "the end", |s| s.sent == 3 && s.waiting == 0);
}

#[test]
fn an_id_that_became_resident_again_in_flight_is_not_sent_again_after_a_failure() {
    let index = start_index();
    index.script([Behaviour::Hang]);
    let (sender, _) = sender_with(&index.evict_url(), |c| c.timeout = Duration::from_secs(2));
    let all = ids(0..2);
    evict(&sender, &all);
    wait_for_posts(&index, 1);
    sender.withdraw(&all[0]);
    // The POST runs into its timeout.
    assert_eq!(wait_for_reported(&index, 1), all[1..]);
    wait_for(&sender, "the end", |s| s.sent == 1 && s.waiting == 0);
}

#[test]
fn the_not_initialized_answer_settles_the_ids() {
    let index = start_index();
    let body = r#"{"detail":"Index not initialized. Call POST /reorder first."}"#;
    index.script([Behaviour::Answer(503, Vec::new(), body.to_owned())]);
    let (sender, log) = sender_to(&index.evict_url());
    evict(&sender, &ids(0..7));
    let stats = wait_for(&sender, "an answer", |s| s.not_needed > 0);
    assert_eq!((stats.not_needed + stats.sent, stats.failed_posts), (7, 0));
    assert_eq!((stats.waiting, stats.in_flight), (0, 0));
    assert!(log.lines().is_empty());
}

/// A program in front of the index may answer with any status. None of them says anything about an id.
#[test]
fn an_answer_that_is_not_the_indexs_own_loses_no_id() {
    let page = |status| {
        let html = vec!["content-type: text/html".to_owned()];
        Behaviour::Answer(status, html, "<h1>Down for maintenance</h1>".to_owned())
    };
    for status in 300..=599 {
        let index = start_index();
        let json = |status, body: &str| Behaviour::Status(status, body.to_owned());
        index.script([
            Behaviour::empty(status),
            page(status),
            page(200),
            Behaviour::empty(202),
            json(200, r#"{"error": "login required"}"#),
            Behaviour::Answer(200, Vec::new(), "Service under maintenance".to_owned()),
        ]);
        let (sender, _) = sender_with(&index.evict_url(), |c| {
            c.retry.base = Duration::from_millis(1);
            c.retry.cap = Duration::from_millis(1);
        });
        let all = ids(0..2);
        evict(&sender, &all);
        let mut reported = wait_for_reported(&index, 2);
        reported.sort();
        assert_eq!(reported, all, "{status}");
        let stats = wait_for(&sender, "confirmation", |s| s.sent == 2);
        assert_eq!((stats.rejected, stats.overflowed), (0, 0), "{status}");
        assert!(stats.failed_posts >= 6, "{status}: {stats:?}");
        assert_eq!((stats.waiting, stats.in_flight), (0, 0), "{status}");
    }
}

#[test]
fn a_lasting_failure_is_reported_with_advice_and_so_is_its_end() {
    for (status, check) in [
        (401, "CONTEXTPILOT_INDEX_TOKEN"),
        (404, "path"),
        (302, "final address"),
        (200, "no answer of an index"),
    ] {
        let index = start_index();
        let html = vec!["content-type: text/html".to_owned()];
        index.script(vec![
            Behaviour::Answer(status, html, "<p>".to_owned());
            10_000
        ]);
        let (sender, log) = sender_with(&index.evict_url(), |c| {
            c.authorization = Some("Bearer s3cret".to_owned());
        });
        evict(&sender, &ids(0..3));
        let stats = wait_for(&sender, "a line", |_| !log.lines().is_empty());
        assert_eq!((stats.sent, stats.waiting + stats.in_flight), (0, 3));
        assert!(stats.failures_in_a_row > 0);
        let error = stats.last_error.expect("what went wrong");
        assert!(error.contains(&status.to_string()), "{error}");
        index.behave(Behaviour::Accept);
        wait_for(&sender, "confirmation", |s| s.sent == 3);
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].starts_with("[ContextPilot] "), "{lines:?}");
        assert!(lines[0].contains(&index.evict_url()), "{lines:?}");
        assert!(lines[0].contains(&status.to_string()), "{lines:?}");
        assert!(lines[0].contains(check), "{lines:?}");
        assert!(lines[0].contains("3 evictions wait"), "{lines:?}");
        assert!(lines[1].contains("answers again"), "{lines:?}");
        let all = lines.concat();
        assert!(!all.contains("s3cret") && !all.contains("req-"), "{all}");
        assert!(!all.contains('\n'), "{all}");
    }
}

#[test]
fn a_post_that_is_too_large_is_halved_until_it_fits() {
    let index = start_index();
    index.behave(Behaviour::RefuseAbove(100, 413));
    let (sender, log) = sender_with(&index.evict_url(), |c| {
        // There are no pauses while batches are halved.
        c.retry.base = PATIENCE;
        c.retry.cap = PATIENCE;
    });
    let all = ids(0..1500);
    evict(&sender, &all);
    assert_eq!(wait_for_reported(&index, 1500), all);
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 1500);
    assert_eq!((stats.rejected, stats.failures_in_a_row), (0, 0));
    let sizes: Vec<usize> = index.posts().iter().map(|post| post.ids.len()).collect();
    // The first may find a few ids only.
    let first = sizes.iter().position(|&size| size == 1000);
    let halves = &sizes[first.expect("a full batch")..][..5];
    assert_eq!(halves, [1000, 500, 250, 125, 62]);
    assert!(log.lines().is_empty());
}

#[test]
fn a_single_id_that_is_too_large_is_tried_again_and_again() {
    let index = start_index();
    index.behave(Behaviour::RefuseAbove(0, 413));
    let (sender, _) = sender_to(&index.evict_url());
    evict(&sender, &ids(0..3));
    let stats = wait_for(&sender, "failures", |s| s.failed_posts > 10);
    assert_eq!((stats.sent, stats.rejected), (0, 0));
    assert!(stats.failures_in_a_row > 0);
    index.behave(Behaviour::Accept);
    let mut reported = wait_for_reported(&index, 3);
    reported.sort();
    assert_eq!(reported, ids(0..3));
}

/// A firewall does this if it takes an id for an attack.
#[test]
fn an_id_that_is_always_refused_does_not_stop_the_others() {
    for status in [400, 403, 422, 500] {
        let index = start_index();
        let all = ids(0..40);
        let bad = vec![all[7].clone(), all[30].clone()];
        index.behave(Behaviour::RefuseIds(bad.clone(), status));
        let (sender, log) = sender_to(&index.evict_url());
        evict(&sender, &all);
        wait_for_reported(&index, 38);
        let stats = wait_for(&sender, "the others", |s| s.sent == 38);
        assert_eq!((stats.rejected, stats.waiting + stats.in_flight), (0, 2));
        // They are tried, all the while, and named once.
        let failed = wait_for(&sender, "more failures", |s| {
            s.failed_posts > stats.failed_posts + 4 && s.set_aside + s.in_flight == 2
        });
        assert_eq!(failed.failures_in_a_row, 0, "others are reported");
        wait_for(&sender, "a line", |_| !log.lines().is_empty());
        let lines = log.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("but accepts other ids"), "{lines:?}");
        assert!(!lines[0].contains("req-"), "{lines:?}");
        // What comes meanwhile is reported at once.
        sender.evict("req-late".into());
        assert_eq!(wait_for_reported(&index, 39).last().unwrap(), "req-late");
        index.behave(Behaviour::Accept);
        let mut reported = wait_for_reported(&index, 41);
        reported.sort();
        let mut expected = all.clone();
        expected.push("req-late".to_owned());
        assert_eq!(reported, expected, "{status}");
        wait_for(&sender, "the end", |s| s.sent == 41 && s.set_aside == 0);
    }
}

/// The one verdict that is certainly the index's own, and about ids: what index 0.5.0 says to
/// something in the list that is no text.
#[test]
fn only_ids_that_the_index_itself_names_are_dropped() {
    let index = start_index();
    let fault = |n: usize| format!(r#"{{"type":"t","loc":["body","request_ids",{n}],"msg":"m"}}"#);
    let body = format!(r#"{{"detail":[{},{}]}}"#, fault(1), fault(3));
    index.script([Behaviour::Hang, Behaviour::Answer(422, Vec::new(), body)]);
    let (sender, log) = sender_with(&index.evict_url(), |c| c.keep_settled = true);
    sender.evict("first".into());
    wait_for_posts(&index, 1);
    let all = ids(0..5);
    evict(&sender, &all);
    index.release();
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 4);
    assert_eq!((stats.rejected, stats.failed_posts, stats.posts), (2, 0, 3));
    let kept = [&all[0], &all[2], &all[4]].map(String::clone);
    assert_eq!(wait_for_reported(&index, 4)[1..], kept);
    let settled: Vec<_> = sender.take_settled();
    assert_eq!(
        settled.len(),
        6,
        "nobody needs to tell them again: {settled:?}"
    );
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("422") && lines[0].contains("2 ids"),
        "{lines:?}"
    );
    assert!(!lines[0].contains("req-"), "{lines:?}");
}

#[test]
fn an_answer_about_ids_that_were_not_sent_settles_nothing() {
    let index = start_index();
    let body = r#"{"detail":[{"loc":["body","request_ids",9]}]}"#;
    index.script([Behaviour::Answer(422, Vec::new(), body.to_owned())]);
    let (sender, _) = sender_to(&index.evict_url());
    evict(&sender, &ids(0..2));
    let mut reported = wait_for_reported(&index, 2);
    reported.sort();
    assert_eq!(reported, ids(0..2));
    assert_eq!(sender.stats().rejected, 0);
}

/// Some servers close the connection on a body that is too large before they have read it, which
/// the other side may see before their answer.
#[test]
fn a_post_that_is_cut_off_is_halved_too() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let reported = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reported);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a connection"));
            // Each request is read if it is short, and else not even looked at: what was sent
            // and not read makes the kernel cut the connection.
            while let Some((length, head)) = read_head(&mut stream) {
                if length > 20_000 {
                    break;
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).expect("the body");
                let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                let ids = body["request_ids"].as_array().expect("a list").len();
                counted.fetch_add(ids, Ordering::SeqCst);
                let body = r#"{"status":"success","removed_count":0,"not_found":[]}"#;
                let ok = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let written = stream.get_mut().write_all(ok.as_bytes());
                written.expect("a reader");
                drop(head);
            }
        }
    });
    let (sender, _) = sender_to(&format!("http://{address}/evict"));
    // Far more than the buffers between two sockets hold.
    let long = "x".repeat(20_000);
    for n in 0..500 {
        sender.evict(format!("{n}-{}", &long[..18_000]).into());
    }
    wait_for(&sender, "confirmation", |s| s.sent == 500);
    assert_eq!(reported.load(Ordering::SeqCst), 500);
}

fn read_head(stream: &mut impl BufRead) -> Option<(usize, Vec<String>)> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        lines.push(line.to_ascii_lowercase());
    }
    let length = lines.iter().find_map(|l| l.strip_prefix("content-length:"));
    Some((length?.trim().parse().ok()?, lines))
}

#[test]
fn ids_are_sent_again_until_a_failure_is_over() {
    let index = start_index();
    let later = Behaviour::Answer(429, vec!["retry-after: 0".to_owned()], String::new());
    index.script([
        Behaviour::empty(500),
        later,
        Behaviour::empty(502),
        Behaviour::empty(503),
    ]);
    let (sender, _) = sender_to(&index.evict_url());
    let all = ids(0..3);
    evict(&sender, &all);
    assert_eq!(wait_for_reported(&index, 3), all);
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 3);
    assert_eq!((stats.failed_posts, stats.failures_in_a_row), (4, 0));
    assert_eq!(stats.last_error.as_deref(), Some("the index answered 503"));
}

#[test]
fn after_an_answer_that_is_not_http_ids_are_sent_again() {
    let nothing = Behaviour::Raw(Vec::new());
    let garbage = Behaviour::Raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec());
    let noise = Behaviour::Raw(vec![0xff; 100_000]);
    let half_a_head = Behaviour::Raw(b"HTTP/1.1 20".to_vec());
    let torn = b"HTTP/1.1 503 X\r\ncontent-length: 99\r\n\r\n{\"detail\":\"Index not initialized. "
        .to_vec();
    let endless_head = Behaviour::Endless(b"HTTP/1.1 200 X\r\nx: ".to_vec());
    for (what, act) in [
        ("nothing", nothing),
        ("garbage", garbage),
        ("noise", noise),
        ("half a head", half_a_head),
        ("torn body of a 503", Behaviour::Raw(torn)),
        ("hang", Behaviour::Hang),
    ] {
        let index = start_index();
        index.script([act]);
        let (sender, _) = sender_with(&index.evict_url(), |c| c.timeout = Duration::from_secs(2));
        evict(&sender, &ids(0..2));
        assert_eq!(wait_for_reported(&index, 2), ids(0..2), "{what}");
        let stats = wait_for(&sender, what, |s| s.sent == 2);
        assert_eq!(stats.failed_posts, 1, "{what}");
    }
    // The index takes this one for an answer, the sender must not.
    let index = start_index();
    index.script([endless_head]);
    let (sender, _) = sender_to(&index.evict_url());
    evict(&sender, &ids(0..2));
    let stats = wait_for(&sender, "endless head", |s| s.sent == 2);
    assert_eq!(stats.failed_posts, 1);
}

#[test]
fn an_answer_that_is_torn_or_endless_settles_nothing() {
    let own = r#"{"status":"success","removed_count":1,"not_found":[],"more":""#;
    let torn = format!("HTTP/1.1 200 X\r\ncontent-length: 99\r\n\r\n{own}");
    let endless = format!("HTTP/1.1 200 X\r\n\r\n{own}");
    let longer = format!("HTTP/1.1 200 X\r\ncontent-length: 99999999999\r\n\r\n{own}");
    let later = "HTTP/1.1 503 X\r\n\r\n{\"detail\":\"Index not initialized";
    let index = start_index();
    index.script([
        Behaviour::Raw(torn.into_bytes()),
        Behaviour::Endless(endless.into_bytes()),
        Behaviour::Endless(longer.into_bytes()),
        Behaviour::Endless(later.into()),
    ]);
    let (sender, _) = sender_to(&index.evict_url());
    sender.evict("x".into());
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 1);
    assert_eq!((stats.not_needed, stats.failed_posts), (0, 4));
    assert_eq!(wait_for_reported(&index, 1), ["x"]);
}

/// The index repeats the ids in its answer: a thousand of them twice are far more than 64 KiB.
#[test]
fn a_long_answer_is_read_to_its_end() {
    let index = start_index();
    let all: Vec<String> = (0..1000).map(|n| format!("{n:0>500}")).collect();
    let body = serde_json::json!({
        "normalized_request_ids": all,
        "not_found": all,
        "removed_count": 0,
        "status": "success",
    });
    let answer = Behaviour::Answer(200, Vec::new(), body.to_string());
    index.script([Behaviour::Hang, answer]);
    let (sender, _) = sender_to(&index.evict_url());
    sender.evict("first".into());
    wait_for_posts(&index, 1);
    evict(&sender, &all);
    index.release();
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 1001);
    assert_eq!((stats.posts, stats.failed_posts), (2, 0));
}

#[test]
fn redirects_are_followed_on_the_same_host_as_the_same_post() {
    let index = start_index();
    let elsewhere = format!("http://{}/b/evict", index.address());
    index.script([
        Behaviour::redirect(307, "/a/evict"),
        Behaviour::redirect(301, &elsewhere),
    ]);
    let (sender, log) = sender_with(&index.evict_url(), |c| {
        c.authorization = Some("Bearer t".to_owned());
    });
    evict(&sender, &ids(0..2));
    assert_eq!(wait_for_reported(&index, 2), ids(0..2));
    let posts = index.posts();
    let paths: Vec<_> = posts.iter().map(|post| post.line()).collect();
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
fn redirects_elsewhere_or_in_circles_are_not_followed_and_lose_nothing() {
    let index = start_index();
    let other = start_index();
    let away = format!("http://localhost:{}/evict", other.address().port());
    index.script([
        Behaviour::redirect(307, &away),
        Behaviour::redirect(303, "/x"),
    ]);
    index.script(vec![Behaviour::redirect(308, "/evict"); 4]);
    let (sender, _) = sender_to(&index.evict_url());
    evict(&sender, &ids(0..3));
    assert_eq!(wait_for_reported(&index, 3), ids(0..3));
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 3);
    assert_eq!((stats.failed_posts, stats.rejected), (3, 0));
    let error = stats.last_error.expect("what went wrong");
    assert!(
        error.contains("308") && error.contains("redirect"),
        "{error}"
    );
    assert_eq!(index.posts().len(), 1 + 1 + 4 + 1);
    assert_eq!(other.connections(), 0);
}

#[test]
fn an_answer_behind_a_redirect_is_judged_as_any_other() {
    let index = start_index();
    let login = Behaviour::Answer(
        200,
        vec!["content-type: text/html; charset=utf-8".to_owned()],
        "<form>".to_owned(),
    );
    index.script([Behaviour::redirect(302, "/login"), login]);
    let (sender, _) = sender_to(&index.evict_url());
    evict(&sender, &ids(0..2));
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 2);
    assert_eq!(stats.failed_posts, 1);
    let paths: Vec<_> = index.posts().iter().map(|p| p.line().to_owned()).collect();
    assert_eq!(paths[1..], ["POST /login HTTP/1.1", "POST /evict HTTP/1.1"]);
}

#[test]
fn ipv6() {
    let Ok(index) = Index::start_at("[::1]:0".parse().expect("an address")) else {
        contextpilot_testbed::skip("no IPv6 loopback here");
        return;
    };
    let (sender, _) = sender_to(&index.evict_url());
    sender.evict("req-6".into());
    assert_eq!(wait_for_reported(&index, 1), ["req-6"]);
}

#[test]
fn a_panic_is_caught_counted_and_survived() {
    let index = start_index();
    let body = r#"{"detail":[{"loc":["body","request_ids",0]}]}"#;
    index.script([Behaviour::Answer(422, Vec::new(), body.to_owned())]);
    let log = Log::default();
    let lines = log.sink();
    let (sender, _) = sender_with(&index.evict_url(), |c| {
        c.log = Arc::new(move |line| {
            lines(line);
            panic!("a bug, for once");
        });
    });
    evict(&sender, &ids(0..2));
    // It came before the ids were given up, so they are sent again; and so does
    // another when the first is to be named.
    assert_eq!(wait_for_reported(&index, 2), ids(0..2));
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
fn settled_ids_are_returned_to_the_caller_once() {
    let index = start_index();
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
