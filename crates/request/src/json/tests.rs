use super::*;

fn scan(body: &[u8]) -> Identity {
    let mut scanner = JsonScanner::new();
    scanner.feed(body);
    let whole = scanner.finish();
    for split in 0..=body.len() {
        let mut scanner = JsonScanner::new();
        scanner.feed(&body[..split]);
        scanner.feed(&body[split..]);
        assert_eq!(scanner.finish(), whole, "split at {split}");
    }
    let mut scanner = JsonScanner::new();
    body.chunks(1).for_each(|byte| scanner.feed(byte));
    assert_eq!(scanner.finish(), whole, "byte by byte");
    whole
}

fn id(id: &str) -> Identity {
    Identity::Id(id.into())
}

#[test]
fn finds_the_id_of_the_object_itself() {
    for (body, expected) in [
        (r#"{"rid":"a"}"#, id("a")),
        (r#"{"request_id":"a"}"#, id("a")),
        (r#"{"request_id":"b","rid":"a"}"#, id("a")),
        (r#"{"rid":"a","request_id":"b"}"#, id("a")),
        (" \r\n\t{ \"rid\" : \"a\" , \"x\" : 1 } \n", id("a")),
        (r#"{"x":{"rid":"no"},"y":["rid","no"],"rid":"a"}"#, id("a")),
        (r#"{"x":{"rid":"no"}}"#, Identity::Absent),
        (r#"{"x":[{"rid":"no"}],"y":{"z":{}}}"#, Identity::Absent),
        (r#"{"x":"\"rid\":\"no\""}"#, Identity::Absent),
        (r#"{"x":"\\","rid":"a"}"#, id("a")),
        (r#"{"x":"\\\"","rid":"a"}"#, id("a")),
        (r#"{"x":["\\\"]"],"rid":"a"}"#, id("a")),
        (r#"{"x":-1.5e+3,"y":true,"z":null,"rid":"a"}"#, id("a")),
        (r#"{"\u0072id":"a"}"#, id("a")),
        (r#"{"r\u0069d":"a"}"#, id("a")),
        (
            r#"{"Rid":"a","rid ":"b","ri":"c","ridd":"d"}"#,
            Identity::Absent,
        ),
        (r#"{"request_idd":"a","request_i":"b"}"#, Identity::Absent),
        (r#"{"":"a"}"#, Identity::Absent),
        (r#"{}"#, Identity::Absent),
        ("\u{feff}{\"rid\":\"a\"}", id("a")),
        (r#"["rid","a"]"#, Identity::Absent),
        (r#""rid""#, Identity::Absent),
        ("5", Identity::Absent),
        ("", Identity::Absent),
    ] {
        assert_eq!(scan(body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn unescapes_the_id_exactly() {
    for (body, expected) in [
        (r#"{"rid":"\"\\\/\b\f\n\r\t"}"#, id("\"\\/\u{8}\u{c}\n\r\t")),
        (r#"{"rid":"\u0041\u00e9\u20AC"}"#, id("Aé€")),
        (r#"{"rid":"\uD83D\uDE00!"}"#, id("😀!")),
        (r#"{"rid":"\u0000"}"#, id("\0")),
        (r#"{"rid":"é😀"}"#, id("é😀")),
        (r#"{"rid":"}{][,:"}"#, id("}{][,:")),
    ] {
        assert_eq!(scan(body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn refuses_what_is_no_usable_string() {
    use Refusal::*;
    for (value, why) in [
        (&b"5"[..], NotAString),
        (b"true", NotAString),
        (b"{\"rid\":\"no\"}", NotAString),
        (b"[\"no\"]", NotAString),
        (b"\"\"", Empty),
        (b"\"\\x\"", Malformed),
        (b"\"\\u12\"", Malformed),
        (b"\"\\u12\\\"\"", Malformed),
        (b"\"\\uD83D\"", Malformed),
        (b"\"\\uD83Dx\"", Malformed),
        (b"\"\\uD83D\\n\"", Malformed),
        (b"\"\\uD83D\\uD83D\"", Malformed),
        (b"\"\\uDE00\"", Malformed),
        (b"\"a\nb\"", Malformed),
        (b"\"\xff\"", NotUtf8),
        (b"\"\xc0\xaf\"", NotUtf8),
        (b"\"\xed\xa0\x80\"", NotUtf8),
    ] {
        let body = |members: &[&[u8]]| members.concat();
        let shown = String::from_utf8_lossy(value);
        let refused = Identity::Refused(why);
        assert_eq!(
            scan(&body(&[b"{\"rid\":", value, b"}"])),
            refused,
            "{shown}"
        );
        // The member after it is still found, and the one before it.
        let after = body(&[b"{\"rid\":", value, b",\"request_id\":\"b\"}"]);
        assert_eq!(scan(&after), id("b"), "{shown}");
        let before = body(&[b"{\"request_id\":\"b\",\"rid\":", value, b"}"]);
        assert_eq!(scan(&before), id("b"), "{shown}");
        let both = body(&[b"{\"request_id\":5,\"rid\":", value, b"}"]);
        assert_eq!(scan(&both), refused, "{shown}");
    }
}

#[test]
fn null_is_as_good_as_absent() {
    assert_eq!(scan(br#"{"rid":null}"#), Identity::Absent);
    assert_eq!(scan(br#"{"rid":null,"request_id":"b"}"#), id("b"));
    assert_eq!(
        scan(br#"{"rid":null,"request_id":5}"#),
        Identity::Refused(Refusal::NotAString)
    );
}

#[test]
fn the_last_of_repeated_keys_counts() {
    assert_eq!(scan(br#"{"rid":"a","rid":"b"}"#), id("b"));
    assert_eq!(scan(br#"{"rid":"a","rid":null}"#), Identity::Absent);
    assert_eq!(
        scan(br#"{"rid":"a","rid":5}"#),
        Identity::Refused(Refusal::NotAString)
    );
    assert_eq!(scan(br#"{"rid":5,"rid":"a"}"#), id("a"));
}

#[test]
fn honours_ids_up_to_the_limit_in_bytes() {
    for (text, escaped) in [
        ("a", "a"),
        ("é", "\\u00e9"),
        ("\n", "\\n"),
        ("😀", "\\uD83D\\uDE00"),
    ] {
        for (written, per) in [(text, text.len()), (escaped, text.len())] {
            if written == "\n" {
                continue;
            }
            let fits = MAX_ID_BYTES / per;
            let body = |n: usize| format!(r#"{{"rid":"{}","x":1}}"#, written.repeat(n));
            let whole = |n| {
                let mut scanner = JsonScanner::new();
                scanner.feed(body(n).as_bytes());
                scanner.finish()
            };
            assert_eq!(whole(fits), id(&text.repeat(fits)), "{written}");
            assert_eq!(
                whole(fits + 1),
                Identity::Refused(Refusal::TooLong),
                "{written}"
            );
        }
    }
    let long = format!(r#"{{"rid":"{}\"","request_id":"b"}}"#, "x\\n".repeat(600));
    assert_eq!(scan(long.as_bytes()), id("b"));
}

#[test]
fn of_invalid_json_what_came_before_the_error() {
    for (body, expected) in [
        (&br#"{"rid":"a""#[..], id("a")),
        (br#"{"rid":"a","#, id("a")),
        (br#"{"rid":"a"}]"#, id("a")),
        (br#"{"rid":"a" "request_id":"b"}"#, id("a")),
        (br#"{"rid":"a"}{"rid":"b"}"#, id("a")),
        (br#"{"rid":"a"#, Identity::Refused(Refusal::Malformed)),
        (br#"{"rid""#, Identity::Absent),
        (br#"{"rid" "a"}"#, Identity::Absent),
        (br#"{rid:"a"}"#, Identity::Absent),
        (br#"{'rid':"a"}"#, Identity::Absent),
        // Text after a quote that should not be there may be inside a string.
        (br#"{"x":12",\"rid\":\"no\",""#, Identity::Absent),
        (br#"{"x":12","rid":"no"}"#, Identity::Absent),
        (b"\xEF\xBB{\"rid\":\"a\"}", Identity::Absent),
        (br#"xx{"rid":"a"}"#, Identity::Absent),
        (b"{\"rid\":\x00}", Identity::Refused(Refusal::NotAString)),
    ] {
        assert_eq!(scan(body), expected, "{}", String::from_utf8_lossy(body));
    }
}

#[test]
fn depth_has_no_limit() {
    let n = 100_000;
    let body = [
        b"{\"x\":".to_vec(),
        b"[{\"rid\":".repeat(n),
        b"\"no\"".to_vec(),
        b"}]".repeat(n),
        b",\"rid\":\"a\"}".to_vec(),
    ]
    .concat();
    let mut scanner = JsonScanner::new();
    scanner.feed(&body);
    assert_eq!(scanner.finish(), id("a"));
}
