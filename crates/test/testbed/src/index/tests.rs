use serde_json::json;

use super::*;
use crate::Connection;

const PATIENCE: Duration = Duration::from_secs(10);

fn evict(ids: &[&str]) -> Vec<u8> {
    json!({"request_ids": ids}).to_string().into_bytes()
}

fn client(index: &Index) -> Connection {
    Connection::open(index.address()).expect("a listener")
}

#[test]
fn evictions_are_recorded_over_a_kept_connection() {
    let index = Index::start().expect("loopback");
    let mut client = client(&index);
    for ids in [["a", "b"], ["b", "c"]] {
        let answer = client
            .exchange("POST", "/evict", &evict(&ids))
            .expect("200");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json().expect("JSON")["removed_count"], 2);
    }
    assert_eq!(index.reports(), ["a", "b", "b", "c"]);
    assert_eq!(index.evicted().len(), 3);
    let posts = index.posts();
    assert!(posts[0].head.starts_with("POST /evict HTTP/1.1\r\n"));
    assert_eq!((posts[0].connection, posts[1].connection), (0, 0));
    assert!(posts[0].at <= posts[1].at);
}

#[test]
fn requests_that_are_not_evictions_get_a_422_and_no_id_is_recorded() {
    let index = Index::start().expect("loopback");
    let mut client = client(&index);
    let bodies: [(&str, &[u8]); 3] = [
        ("/evict", b"{}"),
        ("/evict", b"not JSON"),
        ("/other", br#"{"request_ids":["a"]}"#),
    ];
    for (path, body) in bodies {
        let answer = client.exchange("POST", path, body).expect("an answer");
        assert_eq!(answer.status, 422, "{path}");
    }
    assert!(index.evicted().is_empty());
    assert_eq!(index.posts().len(), 3);
}

#[test]
fn a_script_of_failures_is_followed_once_and_then_evictions_are_accepted() {
    let index = Index::start().expect("loopback");
    index.script([
        Behaviour::not_initialized(),
        Behaviour::Close,
        Behaviour::CloseMidAnswer,
        Behaviour::Raw(b"SMTP\r\n".to_vec()),
    ]);
    let ask = |id| client(&index).exchange("POST", "/evict", &evict(&[id]));
    assert_eq!(ask("a").expect("an answer").status, 503);
    for id in ["b", "c", "d"] {
        assert!(ask(id).is_err(), "{id}");
    }
    assert_eq!(ask("e").expect("an answer").status, 200);
    assert_eq!(index.evicted(), BTreeSet::from(["e".to_owned()]));
    assert_eq!(index.posts().len(), 5);
}

#[test]
fn a_hanging_post_is_closed_when_the_behaviour_changes() {
    let index = Index::start().expect("loopback");
    index.behave(Behaviour::Hang);
    let mut hanging = client(&index);
    let bytes = Connection::request_bytes("POST", "/evict", &evict(&["a"]));
    hanging.write(&bytes).expect("a reader");
    assert!(index.wait_posts(|posts| posts.len() == 1, PATIENCE));
    assert!(!hanging.closed_within(Duration::from_millis(20)));
    assert!(!index.wait_until(|evicted| !evicted.is_empty(), Duration::ZERO));
    index.behave(Behaviour::Accept);
    assert!(hanging.closed_within(PATIENCE));
}

#[test]
fn when_an_index_is_dropped_another_can_start_at_its_address() {
    // No other process takes a free port of this address in between. Not every system has more than one for loopback.
    let last = if cfg!(target_os = "linux") { 93 } else { 1 };
    let any = SocketAddr::from(([127, 0, 0, last], 0));
    let index = Index::start_at(any).expect("loopback");
    let address = index.address();
    let mut kept = client(&index);
    kept.exchange("POST", "/evict", &evict(&["a"]))
        .expect("200");
    drop(index);
    assert!(kept.closed_within(PATIENCE));
    let index = Index::start_at(address).expect("the same port");
    let mut again = client(&index);
    again
        .exchange("POST", "/evict", &evict(&["b"]))
        .expect("200");
    assert_eq!(index.reports(), ["b"]);
}

#[test]
fn a_hanging_post_is_accepted_when_released() {
    let index = Index::start().expect("loopback");
    index.script([Behaviour::Hang]);
    let mut hanging = client(&index);
    let bytes = Connection::request_bytes("POST", "/evict", &evict(&["a"]));
    hanging.write(&bytes).expect("a reader");
    assert!(index.wait_posts(|posts| posts.len() == 1, PATIENCE));
    assert!(index.evicted().is_empty());
    index.release();
    assert_eq!(hanging.response().expect("an answer").status, 200);
    assert_eq!(index.reports(), ["a"]);
}

#[test]
fn evictions_are_refused_by_their_ids_or_their_number() {
    let index = Index::start().expect("loopback");
    let mut client = client(&index);
    let mut ask = |ids: &[&str]| {
        let answer = client.exchange("POST", "/evict", &evict(ids));
        answer.expect("an answer").status
    };
    index.behave(Behaviour::RefuseIds(vec!["b".to_owned()], 403));
    assert_eq!([ask(&["a", "b"]), ask(&["a"])], [403, 200]);
    index.behave(Behaviour::RefuseAbove(1, 413));
    assert_eq!([ask(&["a", "c"]), ask(&["d"])], [413, 200]);
    assert_eq!(index.reports(), ["a", "d"]);
    assert_eq!(index.connections(), 1);
}

#[test]
fn only_evictions_that_are_answered_as_an_index_does_count_as_accepted() {
    let index = Index::start().expect("loopback");
    let mut client = client(&index);
    let page = vec!["Content-Type: text/html".to_owned()];
    index.script([
        Behaviour::Answer(200, page, "<p>".to_owned()),
        Behaviour::redirect(307, "/b/evict"),
        Behaviour::Accept,
        Behaviour::empty(200),
    ]);
    let mut ask = |path, id| {
        let answer = client.exchange("POST", path, &evict(&[id]));
        answer.expect("an answer")
    };
    let answer = ask("/evict", "a");
    assert_eq!(answer.header("content-type"), Some("text/html"));
    assert_eq!(answer.text(), "<p>");
    assert_eq!(ask("/evict", "b").header("location"), Some("/b/evict"));
    assert_eq!(ask("/b/evict", "c").status, 200);
    assert_eq!(ask("/login", "d").status, 200);
    assert_eq!(index.reports(), ["c"]);
    let posts = index.posts();
    assert_eq!(posts[3].line(), "POST /login HTTP/1.1");
    assert_eq!(posts[3].header("CONTENT-LENGTH"), Some("21"));
    assert_eq!(posts[3].header("location"), None);
}

#[test]
fn when_an_index_at_a_unix_socket_is_dropped_the_socket_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("index.sock");
    for _ in 0..2 {
        let index = Index::start_unix(&path).expect("a free path");
        let endpoint = Endpoint::Unix(index.path().to_owned());
        let mut kept = Connection::to(&endpoint, None).expect("a listener");
        kept.exchange("POST", "/evict", &evict(&["a"]))
            .expect("200");
        assert_eq!(index.reports(), ["a"]);
        drop(index);
        assert!(kept.closed_within(PATIENCE));
        assert!(!path.exists());
    }
    let index = Index::start_unix(&path).expect("a free path");
    folder.close().expect("an own folder");
    // With the socket gone nothing can wake the listener's thread, so this must not wait for it.
    drop(index);
}
