//! The hook's verdicts on real answers of the index: which of them settle ids.

use contextpilot_delivery::{IndexReply, Verdict, classify};
use std::net::SocketAddr;

use crate::python::python;
use crate::server::IndexServer;
use contextpilot_testbed::or_return;

#[test]
fn the_answers_of_the_real_index_give_the_expected_verdicts() {
    let python = or_return!(python());
    // There is no engine at this port. This test does not need one.
    let index = IndexServer::start(&python, SocketAddr::from(([127, 0, 0, 1], 9)));
    let verdict = |method: &str, path: &str, body: &str| {
        let answer = index.exchange(method, path, body);
        let verdict = classify(&IndexReply {
            status: answer.status,
            body: &answer.body,
            ..IndexReply::default()
        });
        (answer.status, verdict)
    };
    let evict = |body: &str| verdict("POST", "/evict", body);
    let one = r#"{"request_ids":["a"]}"#;
    assert_eq!(evict(one), (503, Verdict::NothingThere));
    index.reorder(&[vec!["a document".to_owned()]]);
    assert_eq!(evict(one), (200, Verdict::Delivered));

    let two_bad = r#"{"request_ids":["a",1,"b",null]}"#;
    assert_eq!(evict(two_bad), (422, Verdict::Refused(vec![1, 3])));
    // These answers name no id, so they settle none.
    for body in ["", "{", "{}", r#"{"request_ids":"a"}"#] {
        let (status, verdict) = evict(body);
        assert_eq!(status, 422, "{body}");
        assert!(matches!(verdict, Verdict::Retry(_)), "{body}: {verdict:?}");
    }
    for (method, path, status) in [("GET", "/evict", 405), ("POST", "/pilot/evict", 404)] {
        let (said, verdict) = verdict(method, path, one);
        assert_eq!(said, status);
        assert!(matches!(verdict, Verdict::Retry(_)), "{path}: {verdict:?}");
    }
}
