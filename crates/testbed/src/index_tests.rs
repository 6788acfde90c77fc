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
fn other_requests_are_refused_and_count_for_nothing() {
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
fn it_misbehaves_as_told_and_then_behaves() {
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
fn a_hanging_post_ends_when_behaviour_changes() {
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
fn it_can_come_back_at_the_same_address() {
    let index = Index::start().expect("loopback");
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
