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
fn only_an_id_of_the_outermost_object_is_found() {
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
fn escapes_in_an_id_are_decoded() {
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
fn an_id_that_is_not_a_usable_string_is_refused() {
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
fn an_id_of_null_counts_as_absent() {
    assert_eq!(scan(br#"{"rid":null}"#), Identity::Absent);
    assert_eq!(scan(br#"{"rid":null,"request_id":"b"}"#), id("b"));
    assert_eq!(
        scan(br#"{"rid":null,"request_id":5}"#),
        Identity::Refused(Refusal::NotAString)
    );
}

#[test]
fn of_repeated_keys_the_last_counts() {
    assert_eq!(scan(br#"{"rid":"a","rid":"b"}"#), id("b"));
    assert_eq!(scan(br#"{"rid":"a","rid":null}"#), Identity::Absent);
    assert_eq!(
        scan(br#"{"rid":"a","rid":5}"#),
        Identity::Refused(Refusal::NotAString)
    );
    assert_eq!(scan(br#"{"rid":5,"rid":"a"}"#), id("a"));
}

#[test]
fn an_id_up_to_the_limit_in_bytes_is_used() {
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
fn in_invalid_json_an_id_before_the_error_is_found() {
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
fn an_id_behind_deep_nesting_is_found() {
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

/// The pieces of each prompt, such as `t` for a text and `5,6` for tokens.
fn prompts(body: &str) -> Option<Vec<String>> {
    let shown = |body: &[&[u8]]| {
        let mut scanner = JsonScanner::with_prompts();
        body.iter().for_each(|bytes| scanner.feed(bytes));
        let piece = |piece: &Piece| match piece {
            Piece::Text => "t".to_owned(),
            Piece::Tokens(tokens) => {
                let tokens: Vec<String> = tokens.iter().map(i32::to_string).collect();
                tokens.join(",")
            }
        };
        let prompt = |prompt: &Vec<Piece>| {
            let pieces: Vec<String> = prompt.iter().map(piece).collect();
            pieces.join(" ")
        };
        Some(scanner.take_prompts()?.iter().map(prompt).collect())
    };
    let bytes = body.as_bytes();
    let whole = shown(&[bytes]);
    for split in 0..=bytes.len() {
        let (front, rest) = bytes.split_at(split);
        assert_eq!(shown(&[front, rest]), whole, "{body} split at {split}");
    }
    let each: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(shown(&each), whole, "{body} byte by byte");
    whole
}

#[test]
fn prompts_are_read_as_their_pieces() {
    for (body, expected) in [
        (r#"{"prompt":"a"}"#, &["t"][..]),
        (r#"{"prompt":""}"#, &["t"]),
        (r#"{"prompt":[5,66, 7 ]}"#, &["5,66,7"]),
        (r#"{"prompt":[0]}"#, &["0"]),
        (r#"{"prompt":[2147483647]}"#, &["2147483647"]),
        (r#"{"prompt":["a","b\"],["]}"#, &["t", "t"]),
        (r#"{"prompt":["a",5,6,"b"]}"#, &["t 5,6 t"]),
        (r#"{"prompt":[5,"b",6]}"#, &["5 t 6"]),
        (r#"{"prompt":[[5,6],[7]]}"#, &["5,6", "7"]),
        (r#"{"prompt":["a",[5,"b"],[6]]}"#, &["t", "5 t", "6"]),
        (r#"{"prompt":{"prompt_string":"a","x":[1]}}"#, &["t"]),
        (
            r#"{"prompt":[{"prompt_string":"}]","x":[1,{"y":2}]},"b",[3]]}"#,
            &["t", "t", "3"],
        ),
        (r#"{"prompt":[5],"x":[6],"prompt":"a"}"#, &["t"]),
        (r#"{"prompt":"a","prompt":[5]}"#, &["5"]),
        (
            "{\"x\":[1],\"prompt\" :\n [ 5 ,\t6 ] ,\"rid\":\"a\"}",
            &["5,6"],
        ),
    ] {
        let found = prompts(body);
        assert_eq!(
            found.as_deref(),
            Some(&expected.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..]),
            "{body}"
        );
    }
}

#[test]
fn a_member_that_is_not_a_prompt_gives_none() {
    for body in [
        r#"{}"#,
        r#"{"x":{"prompt":"a"}}"#,
        r#"{"Prompt":"a","prompts":["a"]}"#,
        r#"{"prompt":5}"#,
        r#"{"prompt":null}"#,
        r#"{"prompt":[]}"#,
        r#"{"prompt":[5.0]}"#,
        r#"{"prompt":[-5]}"#,
        r#"{"prompt":[1e3]}"#,
        r#"{"prompt":[2147483648]}"#,
        r#"{"prompt":[99999999999999999999]}"#,
        r#"{"prompt":["a",true]}"#,
        r#"{"prompt":[5,[6]]}"#,
        r#"{"prompt":[5,{}]}"#,
        r#"{"prompt":[[5,[6]]]}"#,
        r#"{"prompt":[5,6"#,
        r#"{"prompt":"a","prompt":null}"#,
        r#"["prompt","a"]"#,
    ] {
        assert_eq!(prompts(body), None, "{body}");
    }
    let mut scanner = JsonScanner::new();
    scanner.feed(br#"{"prompt":"a"}"#);
    assert_eq!(scanner.take_prompts(), None, "nobody asked");
    for (element, most) in [
        ("5,", MOST_TOKENS),
        ("\"\",", MOST_PIECES),
        ("[5],", MOST_PIECES),
        ("{},", MOST_PIECES),
    ] {
        let are_read = |count| {
            let mut long = JsonScanner::with_prompts();
            long.feed(b"{\"prompt\":[");
            (0..count).for_each(|_| long.feed(element.as_bytes()));
            long.feed(b"]}");
            long.take_prompts().is_some()
        };
        assert!(are_read(most), "as many of {element} as are read");
        assert!(
            !are_read(most + 1),
            "more of {element} than any server takes"
        );
    }
}
