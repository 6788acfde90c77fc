//! Requests as clients send them, cut into reads in every way.

use contextpilot_request::{
    Adapters, CacheSalt, ConnectionReader, Endpoint, Identity, Loss, MAX_ID_BYTES, Method, Numbers,
    Refusal, Request, RequestReader, Sections, Step,
};

/// All steps of a stream of bytes. Checks that they are the same for every way to cut it.
fn steps<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Step> {
    let mut reader = RequestReader::new();
    let mut steps = Vec::new();
    for mut piece in pieces {
        while !piece.is_empty() {
            let (used, step) = reader.feed(piece);
            assert!(used > 0 && used <= piece.len());
            if step == Step::More {
                assert_eq!(used, piece.len(), "more is wanted, but bytes are left");
            } else {
                steps.push(step);
            }
            piece = &piece[used..];
        }
    }
    steps
}

fn read(stream: &[u8]) -> Vec<Step> {
    let whole = steps([stream]);
    assert_eq!(steps(stream.chunks(1)), whole, "byte by byte");
    for split in 0..=stream.len() {
        let (a, b) = stream.split_at(split);
        assert_eq!(steps([a, b]), whole, "split at {split}");
    }
    for size in [2, 3, 5, 7, 16, 64] {
        assert_eq!(steps(stream.chunks(size)), whole, "reads of {size} bytes");
    }
    whole
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/completions HTTP/1.1\r\nHost: h\r\n{headers}\r\n{body}").into_bytes()
}

fn complete(identity: Identity) -> Step {
    with_nothing_else(Method::Post, Endpoint::Completion, identity)
}

fn with_nothing_else(method: Method, endpoint: Endpoint, identity: Identity) -> Step {
    Step::Complete(Request {
        method,
        endpoint,
        identity,
        cache_prompt: None,
        cache_salt: CacheSalt::None,
        keep_seconds: None,
        numbers: Numbers::default(),
        lora: None,
        sections: None,
        prompts: None,
        infill: None,
        title: None,
        sent: None,
    })
}

fn id(id: &str) -> Step {
    complete(Identity::Id(id.into()))
}

const BODY: &str = r#"{"rid":"r-1"}"#; // 13 bytes

#[test]
fn the_id_is_found_in_a_body_with_a_length() {
    for headers in [
        "Content-Length: 13\r\n",
        "content-length:13\r\n",
        "CONTENT-LENGTH: \t 13 \t \r\n",
        "Content-Length: 13\r\nContent-Length: 13\r\n",
        "Content-Length: 0000000013\r\n",
        "Content-Length: 13\r\nExpect: 100-continue\r\n",
        "Content-Length: 13\r\nConnection: keep-alive\r\n",
        "Content-Length: 13\r\nContent-Encoding: identity\r\n",
        "Content-Length: 13\r\nContent-Type: application/json; charset=utf-8\r\n",
        "Content-Length: 13\r\nContent-Type: application/x-www-form-urlencoded\r\n",
        "X-Long-Header-Name-Of-Which-Only-The-Beginning-Matters: x\r\nContent-Length: 13\r\n",
        "Empty:\r\nContent-Length: 13\r\nBlank:  \r\n",
    ] {
        assert_eq!(read(&post(headers, BODY)), [id("r-1")], "{headers:?}");
    }
}

#[test]
fn the_id_is_found_in_a_chunked_body() {
    for body in [
        "d\r\n{\"rid\":\"r-1\"}\r\n0\r\n\r\n",
        "D\r\n{\"rid\":\"r-1\"}\r\n0\r\n\r\n",
        "0000d \t\r\n{\"rid\":\"r-1\"}\r\n00000\r\n\r\n",
        "d;a=b;c=\"d e\"\r\n{\"rid\":\"r-1\"}\r\n0;last\r\n\r\n",
        "1\r\n{\r\n1\r\n\"\r\n4\r\nrid\"\r\n6\r\n:\"r-1\"\r\n1\r\n}\r\n0\r\n\r\n",
        "d\r\n{\"rid\":\"r-1\"}\r\n0\r\nX-Trailer: a\r\nY: \r\n\r\n",
    ] {
        for header in [
            "Transfer-Encoding: chunked\r\n",
            "transfer-encoding:CHUNKED \r\n",
        ] {
            assert_eq!(read(&post(header, body)), [id("r-1")], "{body:?}");
        }
        let header = "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n";
        assert_eq!(read(&post(header, body)), [id("r-1")], "{body:?}");
    }
}

/// The framing of one chunk may have 32768 bytes: its size with extensions, and the ends of lines.
#[test]
fn a_chunk_with_endless_extensions_is_lost() {
    let stream = |framing: usize| {
        let ends = "\r\n".len();
        let extension = "x".repeat(framing - "7;".len() - 2 * ends);
        let size = format!(";{extension}\r\n");
        let body = format!("7{size}{{\"rid\":\r\n6{size}\"r-1\"}}\r\n0\r\n\r\n");
        post("Transfer-Encoding: chunked\r\n", &body)
    };
    assert_eq!(steps([&stream(32_768)[..]]), [id("r-1")]);
    for framing in [32_769, 100_000] {
        let steps = steps([&stream(framing)[..]]);
        assert_eq!(steps, [Step::Lost(Loss::Chunk)], "{framing}");
    }
}

#[test]
fn all_requests_on_one_connection_are_found() {
    let mut stream = Vec::new();
    stream.extend(post("Content-Length: 13\r\n", BODY));
    stream.extend(b"GET /health HTTP/1.1\r\n\r\n");
    stream.extend(post(
        "Transfer-Encoding: chunked\r\n",
        "2\r\n{}\r\n0\r\n\r\n",
    ));
    stream.extend(b"GET /slots HTTP/1.1\r\nContent-Length: 13\r\n\r\n");
    stream.extend(BODY.as_bytes());
    stream.extend(b"POST /slots/0?action=erase HTTP/1.1\r\n\r\n");
    stream.extend(post(
        "Content-Length: 15\r\n",
        r#"{"rid":"r-\u0032"}"#.get(..15).unwrap_or(""),
    ));
    stream.extend(post("Content-Length: 13\r\n", &BODY.replace('1', "3")));
    let other = |method, endpoint| with_nothing_else(method, endpoint, Identity::Absent);
    assert_eq!(
        read(&stream),
        [
            id("r-1"),
            other(Method::Other, Endpoint::Other),
            complete(Identity::Absent),
            other(Method::Other, Endpoint::Other),
            other(Method::Post, Endpoint::Erase(0)),
            complete(Identity::Refused(Refusal::Malformed)),
            id("r-3"),
        ]
    );
}

#[test]
fn salts_and_lifetimes_are_found_and_what_cannot_be_used_is_told_from_none() {
    let salt = |head: &str, body: &str| {
        let bytes = format!(
            "POST /v1/messages HTTP/1.1\r\n{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        match RequestReader::new().feed(bytes.as_bytes()).1 {
            Step::Complete(request) => request.cache_salt,
            other => panic!("{body}: {other:?}"),
        }
    };
    let text = |text: &str| CacheSalt::Text(text.into());
    let long = "x".repeat(MAX_ID_BYTES + 1);
    for (body, expected) in [
        ("{}".to_owned(), CacheSalt::None),
        (r#"{"cache_salt":"a"}"#.into(), text("a")),
        (
            r#"{"cache_s\u0061lt" : "\u0061","rid":"b"}"#.into(),
            text("a"),
        ),
        (r#"{"cache_salt":"a","cache_salt":"b"}"#.into(), text("b")),
        (
            r#"{"cache_salt":"a","cache_salt":null}"#.into(),
            CacheSalt::None,
        ),
        (r#"{"cache_salt":""}"#.into(), CacheSalt::None),
        (
            r#"{"cache_salts":"a","x":{"cache_salt":"a"}}"#.into(),
            CacheSalt::None,
        ),
        (r#"{"cache_salt":7}"#.into(), CacheSalt::Unreadable),
        (r#"{"cache_salt":true}"#.into(), CacheSalt::Unreadable),
        (r#"{"cache_salt":["a"]}"#.into(), CacheSalt::Unreadable),
        (r#"{"cache_salt":{"a":"b"}}"#.into(), CacheSalt::Unreadable),
        (r#"{"cache_salt":"\ud800"}"#.into(), CacheSalt::Unreadable),
        (
            format!(r#"{{"cache_salt":"{long}"}}"#),
            CacheSalt::Unreadable,
        ),
        (
            format!(r#"{{"cache_salt":"{}"}}"#, &long[1..]),
            text(&long[1..]),
        ),
    ] {
        assert_eq!(salt("", &body), expected, "{body}");
    }
    let kept_by = |field: &str, body: &str| {
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\n{field}Content-Length: {}\r\n\r\n",
            body.len()
        );
        match RequestReader::new().feed((head + body).as_bytes()).1 {
            Step::Complete(request) => request.keep_seconds,
            other => panic!("{body}: {other:?}"),
        }
    };
    for (field, body, seconds) in [
        ("X-Cache-Control-TTL: 1h\r\n", "{}", Some(3600)),
        ("x-cache-control-ttl:0\r\n", "{}", Some(0)),
        (
            "x-cache-control-ttl: 99999d\r\n",
            "{}",
            Some(31 * 24 * 3600),
        ),
        ("x-cache-control-ttl: soon\r\n", "{}", None),
        ("x-cache-control-ttl: \r\n", "{}", None),
        ("Cache-Control: max-age=60\r\n", "{}", None),
        // The body is the nearer one.
        (
            "x-cache-control-ttl: 1h\r\n",
            r#"{"cache_control":{"ttl":9}}"#,
            Some(9),
        ),
    ] {
        assert_eq!(kept_by(field, body), seconds, "{field}");
    }
    let kept = |body: &str| kept_by("", body);
    for (body, seconds) in [
        ("{}", None),
        (
            r#"{"cache_control":{"type":"ephemeral","ttl":"1h"},"x":{}}"#,
            Some(3600),
        ),
        (
            r#"{"cache_control":{"ttl":9},"cache_control":{"type":"ephemeral"}}"#,
            Some(300),
        ),
        (r#"{"cache_control":{"ttl":9},"cache_control":null}"#, None),
        (r#"{"cache_control":"1h"}"#, None),
        (r#"{"cache_control":[{"ttl":9}]}"#, None),
        (
            r#"{"system":[{"text":"a","cache_control":{"ttl":9}}]}"#,
            None,
        ),
    ] {
        assert_eq!(kept(body), seconds, "{body}");
    }
    let head = "Content-Encoding: gzip\r\n";
    assert_eq!(salt(head, "{}"), CacheSalt::Unreadable);
}

#[test]
fn cache_prompt_false_is_found_where_the_server_reads_it() {
    let ask = |path: &str, body: &str| {
        let length = body.len();
        let stream = format!("POST {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}");
        match read(stream.as_bytes()).as_slice() {
            [Step::Complete(request)] => request.forbids_cache(true),
            other => panic!("{body}: {other:?}"),
        }
    };
    for (body, forbids) in [
        (r#"{"cache_prompt":false}"#, true),
        (r#"{"rid":"a","cache_prompt": false }"#, true),
        (r#"{"cache_prompt":false,"rid":"a"}"#, true),
        (r#"{"cache\u005fprompt":false}"#, true),
        // The last one counts.
        (r#"{"cache_prompt":true,"cache_prompt":false}"#, true),
        (r#"{"cache_prompt":false,"cache_prompt":true}"#, false),
        (r#"{"cache_prompt":false,"cache_prompt":null}"#, false),
        (r#"{"cache_prompt":false,"cache_prompt":"false"}"#, false),
        // A value that is not a boolean does not count.
        (r#"{"cache_prompt":"false"}"#, false),
        (r#"{"cache_prompt":0}"#, false),
        (r#"{"cache_prompt":[false]}"#, false),
        (r#"{"cache_prompt":{"cache_prompt":false}}"#, false),
        (
            r#"{"x":{"cache_prompt":false},"cache_prompts":false}"#,
            false,
        ),
        (r#"{"prompt":"\"cache_prompt\":false"}"#, false),
        ("{}", false),
    ] {
        assert_eq!(ask("/v1/chat/completions", body), forbids, "{body}");
        assert_eq!(ask("/infill", body), forbids, "{body}");
        assert!(!ask("/embedding", body), "its parameters are not read");
        assert!(!ask("/tokenize", body), "no inference");
    }
}

#[test]
fn id_slot_is_found_where_the_server_reads_it() {
    let ask = |path: &str, body: &str, piece: usize| {
        let length = body.len();
        let stream = format!("POST {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}");
        let mut reader = ConnectionReader::new();
        let mut steps = stream
            .as_bytes()
            .chunks(piece)
            .map(|part| reader.received(part));
        match steps.find(|step| *step != Step::More) {
            Some(Step::Complete(request)) => (request.wants_slot(), request.reuses_nothing(true)),
            other => panic!("{body}: {other:?}"),
        }
    };
    for (body, slot) in [
        (r#"{"id_slot":3}"#, Some(3)),
        (r#"{"rid":"a","id_slot": 12 , "prompt":"x"}"#, Some(12)),
        (r#"{"id_slot":1,"id_slot":2}"#, Some(2)),
        (r#"{"id_slot":1,"id_slot":"2"}"#, None),
        (r#"{"id_slot":1,"id_slot":null}"#, None),
        (r#"{"id_slot":-1}"#, None),
        (r#"{"id_slot":1.5}"#, None),
        (r#"{"id_slot":99999999999}"#, None),
        (r#"{"id_slot":123456789012}"#, None),
        (r#"{"id_slot":[1]}"#, None),
        (r#"{"x":{"id_slot":1}}"#, None),
        ("{}", None),
    ] {
        for piece in [1, 7, 4096] {
            assert_eq!(ask("/completion", body, piece), (slot, false), "{body}");
        }
    }
    assert_eq!(ask("/embedding", "{}", 99), (None, true));
    assert_eq!(
        ask("/completion", r#"{"cache_prompt":false}"#, 99),
        (None, true)
    );
    assert_eq!(ask("/props", r#"{"id_slot":1}"#, 99), (None, false));
}

#[test]
fn numbers_are_read_where_the_server_reads_them() {
    let ask = |path: &str| {
        let body = r#"{"n_keep":-1,"n_cache_reuse":256 ,"n_discard":"x","n_predict":9}"#;
        match read(&post_to(path, body))[..] {
            [Step::Complete(ref request)] => request.wants(),
            ref other => panic!("{other:?}"),
        }
    };
    let read = Numbers {
        keep: -1,
        cache_reuse: Some(256),
        ..Numbers::default()
    };
    assert_eq!(ask("/v1/chat/completions"), read);
    assert_eq!(ask("/infill"), read);
    assert_eq!(ask("/v1/messages"), Numbers::default());
    assert_eq!(ask("/embedding"), Numbers::default());
}

fn post_to(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

#[test]
fn adapters_are_read_as_the_server_reads_them() {
    let ask = |path: &str, body: &str| {
        let length = body.len();
        let stream = format!("POST {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}");
        match read(stream.as_bytes()).as_slice() {
            [Step::Complete(request)] => request.adapters().cloned(),
            other => panic!("{body}: {other:?}"),
        }
    };
    let named = |list: &[(i32, f32)]| Some(Adapters::Named(list.to_vec()));
    let unreadable = Some(Adapters::Unreadable);
    for (body, expected) in [
        (r#"{"lora":[{"id":0,"scale":0.5}]}"#, named(&[(0, 0.5)])),
        (
            r#"{"rid":"a","lora" : [ { "scale" : 1 , "id" : 1 } , {"id":0,"scale":-2e-1} ] }"#,
            named(&[(1, 1.0), (0, -0.2)]),
        ),
        // Missing members have the server's defaults.
        (
            r#"{"lora":[{},{"id":1},{"scale":3},{"id":null,"scale":null}]}"#,
            named(&[(-1, 0.0), (1, 0.0), (-1, 3.0), (-1, 0.0)]),
        ),
        (
            r#"{"lora":[{"id":1,"name":"]}","x":{"id":[2,{}]},"y":true,"scale":1}]}"#,
            named(&[(1, 1.0)]),
        ),
        (
            r#"{"\u006cora":[{"\u0069d":7,"scale":1}]}"#,
            named(&[(7, 1.0)]),
        ),
        // The last one counts, of members and of lists.
        (
            r#"{"lora":[{"id":1,"id":2,"scale":1}]}"#,
            named(&[(2, 1.0)]),
        ),
        (
            r#"{"lora":[{"id":1,"scale":1}],"lora":[{"id":2,"scale":1}]}"#,
            named(&[(2, 1.0)]),
        ),
        (r#"{"lora":[{"id":1,"scale":1}],"lora":[]}"#, None),
        (r#"{"lora":[{"id":1,"scale":1}],"lora":null}"#, None),
        (r#"{"lora":[]}"#, None),
        (r#"{"lora":"[{\"id\":1}]"}"#, None),
        (r#"{"x":{"lora":[{"id":1,"scale":1}]}}"#, None),
        (r#"{"loras":[{"id":1,"scale":1}]}"#, None),
        ("{}", None),
        // The server accepts these in its own way.
        (r#"{"lora":[{"id":true}]}"#, unreadable.clone()),
        (r#"{"lora":[{"id":"1"}]}"#, unreadable.clone()),
        (r#"{"lora":[{"id":1.0}]}"#, unreadable.clone()),
        (r#"{"lora":[1]}"#, unreadable.clone()),
        (r#"{"lora":[{"id":[1]}]}"#, unreadable.clone()),
    ] {
        for path in [
            "/v1/chat/completions",
            "/completion",
            "/infill",
            "/responses",
        ] {
            assert_eq!(ask(path, body), expected, "{body}");
        }
        for path in ["/v1/messages", "/embedding", "/rerank", "/tokenize"] {
            assert_eq!(ask(path, body), None, "{path} does not read it");
        }
    }
    let long = format!(r#"{{"lora":[{}{{"id":1}}]}}"#, r#"{"id":0},"#.repeat(600));
    assert_eq!(ask("/completion", &long), unreadable);
}

/// `system`, `tools` and `messages` of a body, in bytes.
fn sections(path: &str, body: &str) -> Option<(u64, u64, u64)> {
    let length = body.len();
    let stream = format!("POST {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}");
    let [Step::Complete(request)] = &read(stream.as_bytes())[..] else {
        panic!("one request");
    };
    let Sections {
        system,
        tools,
        messages,
    } = request.sections?;
    Some((system, tools, messages))
}

#[test]
fn sections_are_measured_where_the_server_makes_a_prompt_of_them() {
    let long = |object: &str| object.len() as u64;
    let [user, system, developer] = [
        r#"{"role":"user","content":"a \"role\": [\"system\"]"}"#,
        r#"{ "content" : [ {"type":"text","role":"user"} ] , "role" : "system" }"#,
        r#"{"content":null,"name":"role","role":"developer"}"#,
    ];
    // None of these is the system's.
    let others = [
        r#"{"content":"role","x":"system"}"#,
        r#"{"role":"systems"}"#,
        r#"{"role":"system","role":"user"}"#,
        r#"{"role":null,"content":"system"}"#,
        r#"{"role":["system"],"x":{"role":"system"}}"#,
        r#"{"roles":"system","content":": role"}"#,
        r#"{"role":"role","system":"developer"}"#,
    ];
    for other in others {
        let body = format!(r#"{{"messages":[{system}, {other},{user},{developer}]}}"#);
        let of_system = long(system) + long(developer);
        let messages = long(&body) - long(r#"{"messages":}"#) - of_system;
        let expected = Some((of_system, 0, messages));
        assert_eq!(sections("/v1/chat/completions", &body), expected, "{body}");
    }
    let tools = r#"[{"type":"function","function":{"name":"role"}}]"#;
    let body = format!(
        r#"{{"rid":"a","tools":{tools},"system":"be brief","messages":[{user}],"stream":true}}"#
    );
    let of = |system| Some((system, long(tools), long(user) + 2));
    assert_eq!(sections("/v1/messages", &body), of(10));
    assert_eq!(sections("/v1/chat/completions", &body), of(0));
    let body = r#"{"instructions":"be brief","input":"hello","tools":[]}"#;
    assert_eq!(sections("/v1/responses", body), Some((10, 2, 7)));
    // The last one counts, and null is none.
    let body = format!(r#"{{"messages":[{system}],"tools":null,"messages":[{user}]}}"#);
    let expected = Some((0, 0, long(user) + 2));
    assert_eq!(sections("/v1/chat/completions", &body), expected);
    // Other requests have none.
    for path in ["/completion", "/v1/embeddings", "/tokenize"] {
        assert_eq!(sections(path, &body), None, "{path}");
    }
    for body in [r#"{"prompt":"x"}"#, "{}", "", r#"{"messages":5}"#, "[1]"] {
        assert_eq!(sections("/v1/chat/completions", body), None, "{body}");
    }
}

#[test]
fn a_body_that_cannot_be_read_gives_no_id() {
    let absent = [complete(Identity::Absent)];
    for headers in [
        "Content-Type: multipart/form-data; boundary=x\r\n",
        "Content-Type: Multipart/Form-Data\r\nContent-Type: application/json\r\n",
    ] {
        let headers = format!("{headers}Content-Length: 13\r\n");
        assert_eq!(read(&post(&headers, BODY)), absent, "{headers:?}");
    }
    for coding in [
        "gzip",
        "BR",
        "zstd",
        "deflate",
        "identity, gzip",
        "x-compress",
    ] {
        let headers = format!("Content-Encoding: {coding}\r\nContent-Length: 13\r\n");
        let mut refused = [complete(Identity::Refused(Refusal::Compressed))];
        // It may have one.
        if let [Step::Complete(request)] = &mut refused {
            request.cache_salt = CacheSalt::Unreadable;
        }
        assert_eq!(read(&post(&headers, BODY)), refused, "{coding}");
    }
    assert_eq!(read(&post("Content-Length: 0\r\n", "")), absent);
    assert_eq!(read(&post("", "")), absent);
    let put = b"PUT /v1/completions HTTP/1.1\r\nContent-Length: 13\r\n\r\n{\"rid\":\"r-1\"}";
    let Some(Step::Complete(request)) = read(put).pop() else {
        panic!("a PUT is a request");
    };
    assert_eq!(
        (request.method, request.identity),
        (Method::Other, Identity::Absent)
    );
}

#[test]
fn after_the_last_request_of_a_connection_the_reader_is_closed() {
    for head in [
        "POST /completion HTTP/1.1\r\nConnection: close\r\n",
        "POST /completion HTTP/1.1\r\nConnection: TE, Close\r\n",
        "POST /completion HTTP/1.0\r\n",
    ] {
        let request = format!("{head}Content-Length: 13\r\n\r\n{BODY}");
        let mut reader = ConnectionReader::new();
        assert_eq!(reader.received(request.as_bytes()), id("r-1"), "{head:?}");
        assert_eq!(reader.lost(), Some(Loss::Closed), "{head:?}");
        assert_eq!(reader.received(request.as_bytes()), Step::More, "{head:?}");
    }
    let kept = format!(
        "POST /completion HTTP/1.0\r\nConnection: Keep-Alive\r\nContent-Length: 13\r\n\r\n{BODY}"
    );
    assert_eq!(read(kept.repeat(2).as_bytes()), [id("r-1"), id("r-1")]);
}

#[test]
fn the_reader_is_lost_where_the_server_may_read_otherwise() {
    let lines = |line: &str| format!("{line}\r\nContent-Length: 13\r\n\r\n{BODY}").into_bytes();
    for line in [
        "",
        "GET",
        "POST /x",
        "POST /x HTTP/1.1 x",
        "POST /x HTTP/2.0",
        "POST /x http/1.1",
        "post /x HTTP/1.1",
        "BREW /x HTTP/1.1",
        "TRACE /x HTTP/1.1",
        "POSTPOSTPOST /x HTTP/1.1",
        "POST /x\u{0} HTTP/1.1",
        "POST\t/x HTTP/1.1",
        "\u{16}\u{3}\u{1}\u{2}",
        &format!("POST /{} HTTP/1.1", "x".repeat(8192)),
    ] {
        // Long lines would take long in every split.
        let found = match line.len() {
            0..100 => read(&lines(line)),
            _ => steps([&lines(line)[..]]),
        };
        assert_eq!(found, [Step::Lost(Loss::RequestLine)], "{line:?}");
    }
    for (headers, loss) in [
        (
            "Content-Length: 13\r\nContent-Length: 14\r\n",
            Loss::Framing,
        ),
        (
            "Content-Length: 13\r\nContent-Length: 013\r\n",
            Loss::Framing,
        ),
        (
            "Content-Length: 13\r\nTransfer-Encoding: chunked\r\n",
            Loss::Framing,
        ),
        ("Transfer-Encoding: gzip, chunked\r\n", Loss::Framing),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Loss::Framing,
        ),
        ("Transfer-Encoding: identity\r\n", Loss::Framing),
        ("Content-Length:\r\n", Loss::Framing),
        ("Content-Length: -1\r\n", Loss::Framing),
        ("Content-Length: +13\r\n", Loss::Framing),
        ("Content-Length: 13, 13\r\n", Loss::Framing),
        ("Content-Length: 0x0d\r\n", Loss::Framing),
        ("Content-Length: 99999999999999999999\r\n", Loss::Framing),
        ("Content-Length : 13\r\n", Loss::Fields),
        ("A: b\r\n folded\r\n", Loss::Fields),
        ("A: b\nC: d\r\n", Loss::Fields),
        ("A: b\rC\r\n", Loss::Fields),
        ("A: \u{0}\r\n", Loss::Fields),
        ("no colon\r\n", Loss::Fields),
        (": no name\r\n", Loss::Fields),
    ] {
        assert_eq!(
            read(&post(headers, BODY)),
            [Step::Lost(loss)],
            "{headers:?}"
        );
    }
    for body in [
        "0x0d\r\n{\"rid\":\"r-1\"}\r\n0\r\n\r\n",
        "-1\r\n",
        "\r\n",
        " d\r\n{\"rid\":\"r-1\"}\r\n0\r\n\r\n",
        "d x\r\n{\"rid\":\"r-1\"}\r\n0\r\n\r\n",
        "d\n{\"rid\":\"r-1\"}\r\n0\r\n\r\n",
        "c\r\n{\"rid\":\"r-1\"}\r\n0\r\n\r\n",
        "ffffffffffffffff\r\n{",
    ] {
        let found = read(&post("Transfer-Encoding: chunked\r\n", body));
        assert_eq!(found, [Step::Lost(Loss::Chunk)], "{body:?}");
    }
    let trailer = "2\r\n{}\r\n0\r\nbad trailer\r\n\r\n";
    let found = read(&post("Transfer-Encoding: chunked\r\n", trailer));
    assert_eq!(found, [Step::Lost(Loss::Fields)]);
}

#[test]
fn heads_are_accepted_up_to_the_servers_limits() {
    let fits = |n: usize| {
        post(
            &format!("{}Content-Length: 13\r\n", "A: b\r\n".repeat(n)),
            BODY,
        )
    };
    // Host and Content-Length are two of the hundred.
    assert_eq!(steps([&fits(98)[..]]), [id("r-1")]);
    assert_eq!(steps([&fits(99)[..]]), [Step::Lost(Loss::Fields)]);
    let line = |n: usize| {
        post(
            &format!("A: {}\r\nContent-Length: 13\r\n", "b".repeat(n)),
            BODY,
        )
    };
    assert_eq!(steps([&line(8192 - 5)[..]]), [id("r-1")]);
    assert_eq!(steps([&line(8192 - 4)[..]]), [Step::Lost(Loss::Fields)]);
    let target = |n: usize| {
        format!(
            "POST /{}/completion HTTP/1.1\r\nContent-Length: 13\r\n\r\n{BODY}",
            "x".repeat(n)
        )
        .into_bytes()
    };
    assert_eq!(steps([&target(8192 - 12)[..]]), [id("r-1")]);
    assert_eq!(
        steps([&target(8192 - 11)[..]]),
        [Step::Lost(Loss::RequestLine)]
    );
}

#[test]
fn a_reader_takes_at_most_a_kib() {
    // One lives in every connection of the server.
    assert!(
        size_of::<RequestReader>() <= 1024,
        "{}",
        size_of::<RequestReader>()
    );
}

/// Of these, the prompt of one goes on as the answer of another ended, so it may get the tokens of that answer.
#[test]
fn chats_and_completions_continue_a_text() {
    let request = |method: &str, path: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{{}}");
        match &read(head.as_bytes())[..] {
            [Step::Complete(request)] => request.clone(),
            other => panic!("{path}: {other:?}"),
        }
    };
    for (path, continues, generates) in [
        ("/completion", true, true),
        ("/v1/chat/completions", true, true),
        ("/infill", false, true),
        ("/v1/embeddings", false, false),
        ("/tokenize", false, false),
    ] {
        let posted = request("POST", path);
        assert_eq!(posted.is_continuation(), continues, "{path}");
        assert_eq!(posted.generates(), generates, "{path}");
        let asked = request("GET", path);
        assert!(!asked.is_continuation() && !asked.generates(), "{path}");
    }
}
