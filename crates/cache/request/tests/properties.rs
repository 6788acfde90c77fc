//! Random input: the reader finds the same ids as a full JSON parser, gives the same answer
//! however the bytes are cut, and does not panic.

use contextpilot_request::{Identity, MAX_ID_BYTES, Refusal, RequestReader, Step};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value};

/// Keys that the reader looks for, similar keys, and others.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("rid".to_owned()),
        3 => Just("request_id".to_owned()),
        3 => Just("cache_prompt".to_owned()),
        3 => Just("messages".to_owned()),
        3 => Just("role".to_owned()),
        1 => "(request_|r)id?.?",
        2 => any::<String>(),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<String>(),
        2 => Just("system".to_owned()),
        2 => r#"["\\,:{}\[\]rid]{0,20}"#,
        1 => "[a-é😀]{480,530}",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Writes the members of an object, repeated keys and all, with random
/// escapes, spaces and spellings where JSON leaves a choice.
fn write(members: &[(String, Value)], choices: &[u8]) -> String {
    let mut choices = choices.iter().copied().cycle();
    let mut choose = |n: u8| choices.next().unwrap_or(0) % n;
    let mut out = String::from("{");
    for (at, (key, value)) in members.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        for (text, then) in [(Value::from(key.as_str()), ":"), (value.clone(), "")] {
            out.push_str(["", " ", "\r\n\t"][usize::from(choose(3))]);
            match (&text, choose(3)) {
                (Value::String(text), 0) => {
                    out.push('"');
                    for unit in text.encode_utf16() {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                    out.push('"');
                }
                (text, 1) => out.push_str(&format!("{text:#}")),
                (text, _) => out.push_str(&text.to_string()),
            }
            out.push_str(["", " ", "\n"][usize::from(choose(3))]);
            out.push_str(then);
        }
    }
    out.push('}');
    out
}

/// What a full parser finds in the body: the id, and what it says of the cache.
fn expected(body: &str) -> (Identity, Option<bool>) {
    let object: Map<String, Value> = match serde_json::from_str(body) {
        Ok(object) => object,
        Err(error) => panic!("the test wrote invalid JSON: {error}\n{body}"),
    };
    let read = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Identity::Absent,
        Some(Value::String(s)) if s.is_empty() => Identity::Refused(Refusal::Empty),
        Some(Value::String(s)) if s.len() > MAX_ID_BYTES => Identity::Refused(Refusal::TooLong),
        Some(Value::String(s)) => Identity::Id(s.as_str().into()),
        Some(_) => Identity::Refused(Refusal::NotAString),
    };
    let id = match (read("rid"), read("request_id")) {
        (id @ Identity::Id(_), _) | (_, id @ Identity::Id(_)) => id,
        (Identity::Absent, other) | (other, _) => other,
    };
    (id, object.get("cache_prompt").and_then(Value::as_bool))
}

fn request(body: &str) -> Vec<u8> {
    format!(
        "POST /completion HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn chunked(body: &str, sizes: &[u8]) -> Vec<u8> {
    let mut out =
        b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let mut rest = body.as_bytes();
    let mut sizes = sizes.iter().map(|&n| usize::from(n) + 1).cycle();
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(1).min(rest.len());
        out.extend(format!("{size:x}\r\n").bytes());
        out.extend(&rest[..size]);
        out.extend(b"\r\n");
        rest = &rest[size..];
    }
    out.extend(b"0\r\n\r\n");
    out
}

/// All steps but [`Step::More`], for bytes cut at the given places.
fn steps(stream: &[u8], cuts: &[Index]) -> Vec<Step> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    cuts.push(stream.len());
    cuts.sort_unstable();
    let mut reader = RequestReader::new().with_titles();
    let mut steps = Vec::new();
    let mut from = 0;
    for to in cuts {
        while from < to {
            let (used, step) = reader.feed(&stream[from..to]);
            assert!(used > 0 && from + used <= to);
            from += used;
            if step != Step::More {
                steps.push(step);
            }
        }
    }
    steps
}

fn cuts() -> impl Strategy<Value = Vec<Index>> {
    prop::collection::vec(any::<Index>(), 0..12)
}

/// Streams of requests with a few bytes changed, removed, inserted, repeated.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let members = prop::collection::vec((key(), value()), 0..4);
    let streams = prop::collection::vec((members, any::<bool>()), 1..4).prop_map(|requests| {
        requests
            .iter()
            .flat_map(|(members, in_chunks)| {
                let body = write(members, &[7, 1, 2]);
                if *in_chunks {
                    chunked(&body, &[3, 20, 0])
                } else {
                    request(&body)
                }
            })
            .collect::<Vec<u8>>()
    });
    let edits = prop::collection::vec((any::<Index>(), 0..4u8, any::<u8>()), 0..6);
    (streams, edits).prop_map(|(mut stream, edits)| {
        for (at, kind, byte) in edits {
            let at = at
                .index(stream.len().max(1))
                .min(stream.len().saturating_sub(1));
            match kind {
                _ if stream.is_empty() => {}
                0 => stream[at] = byte,
                1 => stream.insert(at, byte),
                2 => drop(stream.remove(at)),
                _ => stream.insert(at, stream[at]),
            }
        }
        stream
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_full_parser(
        members in prop::collection::vec((key(), value()), 0..8),
        choices in prop::collection::vec(any::<u8>(), 1..20),
        sizes in prop::collection::vec(any::<u8>(), 1..5),
        cuts in cuts(),
    ) {
        let body = write(&members, &choices);
        let (id, cache_prompt) = expected(&body);
        for stream in [request(&body), chunked(&body, &sizes)] {
            let steps = steps(&stream, &cuts);
            prop_assert_eq!(steps.len(), 1);
            let Step::Complete(request) = &steps[0] else {
                return Err(TestCaseError::fail("not complete"));
            };
            prop_assert_eq!(&request.identity, &id);
            prop_assert_eq!(request.cache_prompt, cache_prompt);
        }
    }

    #[test]
    fn cuts_do_not_matter(stream in mutated(), cuts in cuts()) {
        prop_assert_eq!(steps(&stream, &cuts), steps(&stream, &[]));
    }

    #[test]
    fn random_bytes_do_no_harm(stream in prop::collection::vec(any::<u8>(), 0..500), cuts in cuts()) {
        prop_assert_eq!(steps(&stream, &cuts), steps(&stream, &[]));
        // As a body, too: the frame holds whatever is in it.
        let mut framed = request("");
        framed.truncate(framed.len() - 5);
        framed.extend(format!("{}\r\n\r\n", stream.len()).bytes());
        framed.extend(&stream);
        let steps = steps(&framed, &cuts);
        prop_assert!(matches!(&steps[..], [Step::Complete(_)]), "{:?}", steps);
    }
}
