//! Requests that come before earlier ones are answered.

use contextpilot_request::{
    ConnectionReader, Identity, Loss, MOST_BEHIND, Step, is_head_of_chunks,
};

const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const GET: &[u8] = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n";

fn post(id: &str) -> Vec<u8> {
    let body = format!("{{\"rid\":\"{id}\"}}");
    let length = body.len();
    format!("POST /completion HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn chunked(id: &str) -> Vec<u8> {
    let body = format!("{{\"rid\":\"{id}\"}}");
    let mut bytes = b"POST /completion HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for piece in body.as_bytes().chunks(3) {
        bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
        bytes.extend(piece);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

/// The id in the step, `""` for a request without one.
fn id(step: Step) -> String {
    match step {
        Step::Complete(request) => match request.identity {
            Identity::Id(id) => id.into(),
            _ => String::new(),
        },
        other => panic!("no request: {other:?}"),
    }
}

#[test]
fn an_answer_in_chunks_says_so_in_a_field_of_its_head() {
    assert!(is_head_of_chunks(CHUNKED));
    let second = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nTRANSFER-ENCODING: Chunked\r\n\r\n";
    assert!(is_head_of_chunks(second));
    assert!(!is_head_of_chunks(WHOLE));
    let of_body = [WHOLE, b"\r\nTransfer-Encoding: chunked\r\n"].concat();
    assert!(!is_head_of_chunks(&of_body));
    assert!(!is_head_of_chunks(
        b"x\r\nTransfer-Encoding: chunked\r\n\r\n"
    ));
}

#[test]
fn each_of_several_requests_in_one_read_begins_when_the_server_goes_on() {
    for make in [post as fn(&str) -> Vec<u8>, chunked] {
        let all: Vec<u8> = (0..6).flat_map(|n| make(&format!("r-{n}"))).collect();
        let mut reader = ConnectionReader::new();
        assert_eq!(id(reader.received(&all)), "r-0");
        for n in 1..6 {
            // The first request's own tasks, and parts of its answer.
            assert_eq!(reader.goes_on(), None);
            assert_eq!(reader.sending(CHUNKED), None);
            assert_eq!(reader.goes_on(), None);
            assert_eq!(reader.sending(b"5\r\nHTTP/\r\n"), None);
            assert_eq!(reader.sending(b"0\r\n\r\n"), None);
            assert_eq!(id(reader.goes_on().unwrap()), format!("r-{n}"));
        }
        assert_eq!(reader.sending(WHOLE), None);
        assert_eq!(reader.goes_on(), None);
        assert_eq!(reader.lost(), None);
    }
}

#[test]
fn requests_that_draw_no_task_number_are_passed_with_their_answers() {
    let refused = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    let stream = [&post("a"), GET, &post("b"), &post("c")].concat();
    let mut reader = ConnectionReader::new();
    assert_eq!(id(reader.received(&stream)), "a");
    assert_eq!(reader.sending(WHOLE), None);
    assert_eq!(reader.sending(b"{}"), None);
    assert_eq!(reader.sending(WHOLE).map(id).as_deref(), Some(""));
    assert_eq!(reader.sending(refused).map(id).as_deref(), Some("b"));
    assert_eq!(reader.goes_on().map(id).as_deref(), Some("c"));
}

#[test]
fn an_interim_answer_ends_nothing() {
    let head = b"POST /completion HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}";
    let mut reader = ConnectionReader::new();
    assert_eq!(id(reader.received(&[&head[..], &post("b")].concat())), "");
    assert_eq!(reader.sending(b"HTTP/1.1 100 Continue\r\n\r\n"), None);
    assert_eq!(reader.goes_on(), None);
    assert_eq!(reader.sending(WHOLE), None);
    assert_eq!(reader.goes_on().map(id).as_deref(), Some("b"));
}

#[test]
fn a_request_that_begins_behind_another_goes_on_with_the_next_read() {
    let stream = [post("a"), post("b")].concat();
    let first = post("a").len();
    for cut in first + 1..stream.len() {
        let mut reader = ConnectionReader::new();
        assert_eq!(id(reader.received(&stream[..cut])), "a");
        assert_eq!(reader.sending(WHOLE), None);
        assert_eq!(id(reader.received(&stream[cut..])), "b", "cut at {cut}");
        assert_eq!(reader.lost(), None);
    }
}

#[test]
fn if_the_server_reads_although_a_request_is_kept_it_has_dropped_it() {
    for mut reader in [ConnectionReader::new(), ConnectionReader::with_prompts()] {
        let two = [post("a"), GET.to_vec(), post("b")].concat();
        assert_eq!(id(reader.received(&two)), "a");
        assert_eq!(reader.sending(WHOLE), None);
        assert_eq!(id(reader.received(&post("c"))), "c");
        assert_eq!(reader.sending(WHOLE), None);
        assert_eq!(reader.goes_on(), None);
        assert_eq!(reader.lost(), None);
    }
}

#[test]
fn what_follows_the_last_request_of_a_connection_is_ignored() {
    let close = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
    let mut reader = ConnectionReader::new();
    assert_eq!(id(reader.received(&[&close[..], &post("a")].concat())), "");
    assert_eq!(reader.lost(), Some(Loss::Closed));
    assert_eq!(reader.sending(WHOLE), None);
    assert_eq!(reader.goes_on(), None);
    assert_eq!(reader.received(&post("b")), Step::More);
}

#[test]
fn beyond_the_bound_what_follows_belongs_to_no_request() {
    let behind = post("b").repeat(MOST_BEHIND / post("b").len() + 1);
    let mut reader = ConnectionReader::new();
    assert_eq!(id(reader.received(&[post("a"), behind].concat())), "a");
    assert_eq!(reader.lost(), Some(Loss::Behind));
    assert_eq!(reader.goes_on(), None);
    assert_eq!(reader.sending(WHOLE), None);
    assert_eq!(reader.goes_on(), Some(Step::More));
    assert_eq!(reader.goes_on(), None);
    assert_eq!(reader.received(&post("c")), Step::More);
}

#[test]
fn bytes_behind_a_post_without_a_length_make_the_reader_lost() {
    let bare = b"POST /completion HTTP/1.1\r\n\r\n";
    let mut reader = ConnectionReader::new();
    assert_eq!(id(reader.received(bare)), "");
    assert_eq!(
        reader.received(&[&bare[..], &post("a")].concat()),
        Step::Lost(Loss::Unannounced)
    );
    assert_eq!(reader.received(&post("a")), Step::More);
}
