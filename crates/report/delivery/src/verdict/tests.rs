use super::*;

fn judge(status: u16, body: &str) -> Verdict {
    classify(&IndexReply {
        status,
        body: body.as_bytes(),
        ..IndexReply::default()
    })
}

fn next(status: u16) -> Next {
    match judge(status, "") {
        Verdict::Retry(retry) => retry.next,
        other => panic!("{status}: {other:?}"),
    }
}

/// The answer of ContextPilot's index 0.5.0.
const NOT_INITIALIZED: &str = r#"{"detail":"Index not initialized. Call POST /reorder first."}"#;

/// What index 0.5.0 answers, what ours does (its keys are sorted), and what `listen` does.
const EVICTED: [&str; 3] = [
    r#"{"status":"success","conversations_cleared":0,"normalized_request_ids":["a"],"removed_count":0,"evicted_node_ids":[],"evicted_request_ids":[],"not_found":["a"],"nodes_remaining":2,"requests_remaining":1}"#,
    r#"{"conversations_cleared":0,"evicted_node_ids":[3],"evicted_request_ids":["a"],"nodes_remaining":1,"normalized_request_ids":["a"],"not_found":[],"removed_count":1,"requests_remaining":0,"status":"success"}"#,
    r#" {"evicted_count":2,"not_found":[],"removed_count":2,"status":"success"}"#,
];

#[test]
fn the_index_s_own_answer_confirms() {
    for body in EVICTED {
        assert_eq!(judge(200, body), Verdict::Delivered, "{body}");
    }
}

#[test]
fn no_other_success_confirms() {
    let retried = |status, body: &str| {
        let verdict = judge(status, body);
        assert!(matches!(verdict, Verdict::Retry(_)), "{status} {body}");
    };
    for status in [201, 202, 203, 204, 206, 299] {
        retried(status, EVICTED[0]);
    }
    for body in [
        "",
        "ok",
        "{}",
        "[]",
        "null",
        "Service under maintenance",
        "<!DOCTYPE html>",
        r#"{"error": "login required"}"#,
        r#"{"status":"success"}"#,
        r#"{"status":"ok","removed_count":1,"not_found":[]}"#,
        r#"{"status":"success","removed_count":"1","not_found":[]}"#,
        r#"{"status":"success","removed_count":-1,"not_found":[]}"#,
        r#"{"status":"success","removed_count":1,"not_found":null}"#,
        r#"{"status":"success","removed_count":1}"#,
        r#"{"data":{"status":"success","removed_count":1,"not_found":[]}}"#,
        r#"[{"status":"success","removed_count":1,"not_found":[]}]"#,
        r#"{"status":"error","status":"success","removed_count":1,"not_found":[]}"#,
    ] {
        retried(200, body);
    }
    for body in EVICTED {
        for cut in 0..body.len() {
            retried(200, &body[..cut]);
        }
        retried(200, &format!("{body}{body}"));
    }
}

#[test]
fn only_the_not_initialized_answer_means_nothing_to_evict() {
    assert_eq!(judge(503, NOT_INITIALIZED), Verdict::NothingThere);
    let spaced = "{ \"detail\" : \"Index not initialized.\" }\n";
    assert_eq!(judge(503, spaced), Verdict::NothingThere);
    // Similar answers by other programs, and the same with another status.
    for (status, body) in [
        (503, "overloaded"),
        (503, "Index not initialized. Call POST /reorder first."),
        (503, r#"{"detail":"upstream not initialized"}"#),
        (503, r#"{"error":"Index not initialized"}"#),
        (503, r#"{"detail":["Index not initialized"]}"#),
        (503, &NOT_INITIALIZED[..NOT_INITIALIZED.len() - 1]),
        (500, NOT_INITIALIZED),
        (404, NOT_INITIALIZED),
    ] {
        let verdict = judge(status, body);
        assert!(matches!(verdict, Verdict::Retry(_)), "{status} {body}");
    }
    let noise = classify(&IndexReply {
        status: 503,
        body: &[0xff, 0xfe],
        ..IndexReply::default()
    });
    assert!(matches!(noise, Verdict::Retry(_)));
}

#[test]
fn only_ids_that_the_index_itself_names_are_refused() {
    // From ContextPilot's index 0.5.0, asked with ["a", 1, null].
    let body = r#"{"detail":[{"type":"string_type","loc":["body","request_ids",1],"msg":"Input should be a valid string","input":1},{"type":"string_type","loc":["body","request_ids",2],"msg":"Input should be a valid string","input":null}]}"#;
    assert_eq!(judge(422, body), Verdict::Refused(vec![1, 2]));
    let deeper = r#"{"detail":[{"loc":["body","request_ids",7,"str"]},{"loc":["body","request_ids",3]},{"loc":["body","request_ids",7]}]}"#;
    assert_eq!(judge(422, deeper), Verdict::Refused(vec![3, 7]));
    let spaced = "{ \"detail\" : [ { \"loc\" : [ \"body\" , \"request_ids\" , 3 ] ,\n\"msg\" : \"loc\" } ] }\n";
    assert_eq!(judge(422, spaced), Verdict::Refused(vec![3]));
    // A quoted id that looks like the key does not count.
    let quoted = r#"{"detail":[{"loc":["body","request_ids",3],"input":"\"loc\":[\"body\",\"request_ids\",5]"}]}"#;
    assert_eq!(judge(422, quoted), Verdict::Refused(vec![3]));
    for (status, body) in [
        // About the whole body: from the same index, and from other programs.
        (
            422,
            r#"{"detail":[{"type":"missing","loc":["body","request_ids"],"msg":"Field required","input":{}}]}"#,
        ),
        (
            422,
            r#"{"detail":[{"type":"json_invalid","loc":["body",15],"msg":"JSON decode error"}]}"#,
        ),
        (
            422,
            r#"{"detail":[{"loc":["body","request_ids",1]},{"loc":["body","more"]}]}"#,
        ),
        (422, r#"{"detail":[{"loc":["query","request_ids",1]}]}"#),
        (422, r#"{"detail":[{"loc":["body","request_ids",-1]}]}"#),
        (422, r#"{"detail":[]}"#),
        (422, r#"{"detail":[{"loc":["body","request_ids",1.5]}]}"#),
        (422, r#"{"detail":[{"loc":["body","request_ids",1"#),
        (
            422,
            r#"{"detail":[{"loc":["body","request_ids",99999999999999999999999]}]}"#,
        ),
        (
            422,
            r#"{"detail":[{"loc":"body"},{"loc":["body","request_ids",1]}]}"#,
        ),
        (422, r#"{"error":[{"loc":["body","request_ids",1]}]}"#),
        (422, r#"[{"loc":["body","request_ids",1]}]"#),
        (422, r#"{"detail":"no"}"#),
        (422, ""),
        (400, body),
        (403, body),
    ] {
        let verdict = judge(status, body);
        assert!(matches!(verdict, Verdict::Retry(_)), "{status} {body}");
    }
}

#[test]
fn no_other_answer_settles_anything() {
    for status in (0..200).chain(300..=999) {
        for body in ["", "<html>", "{}", r#"{"detail":"Not Found"}"#] {
            let verdict = judge(status, body);
            assert!(matches!(verdict, Verdict::Retry(_)), "{status} {body}");
        }
    }
}

#[test]
fn where_an_id_may_be_the_cause_half_is_sent_next() {
    assert_eq!(next(413), Next::HalfAtOnce);
    for status in [400, 403, 406, 422, 431, 451, 499, 500, 501] {
        assert_eq!(next(status), Next::Half, "{status}");
    }
    for status in [
        301, 302, 401, 404, 405, 407, 408, 410, 421, 425, 429, 502, 503, 504, 999,
    ] {
        assert_eq!(next(status), Next::Same, "{status}");
    }
}

#[test]
fn there_is_advice_where_a_user_can_fix_something() {
    for status in (300..=499).chain([200]) {
        let Verdict::Retry(retry) = judge(status, "<html>") else {
            panic!("{status}")
        };
        let expected = ![408, 425, 429].contains(&status);
        assert_eq!(retry.advice.is_some(), expected, "{status}");
    }
}

#[test]
fn retry_after_is_read_in_seconds() {
    let after = |status, text| {
        let retry_after = Some(text);
        match classify(&IndexReply {
            status,
            retry_after,
            ..IndexReply::default()
        }) {
            Verdict::Retry(retry) => retry.after,
            other => panic!("{other:?}"),
        }
    };
    for status in [301, 404, 413, 429, 503] {
        assert_eq!(after(status, " 2 "), Some(Duration::from_secs(2)));
    }
    for nonsense in ["-1", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", "1e9", ""] {
        assert_eq!(after(503, nonsense), None, "{nonsense}");
    }
}
