use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::BodyExt;

use super::*;
use crate::Room;

const ACCOUNT: Account = Account {
    reused: 1519,
    evaluated: 1,
    loaded: 1515,
};

/// A stream of these pieces, corrected by the account that `ask` gives.
async fn events(
    pieces: &[&str],
    ask: impl Future<Output = Option<Account>> + Send + 'static,
) -> Response {
    let owned: Vec<_> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
    let mut response = Response::new(Body::new(Pieces(owned.into_iter())));
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from(length));
    let held = Room::new(1 << 20).enter();
    correct_usage(response, ask, held).await
}

/// All of it.
async fn streamed(pieces: &[&str], account: Option<Account>) -> String {
    let response = events(pieces, async move { account }).await;
    let all = response.into_body().collect(1 << 30).await.expect("a body");
    String::from_utf8(all.to_vec()).expect("UTF-8")
}

struct Pieces(std::vec::IntoIter<String>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> PolledFrame {
        let piece = self.0.next();
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece.into()))))
    }
}

#[test]
fn only_json_of_a_bounded_length_and_events_are_looked_at() {
    let answer = |kind: &'static str, length: usize| {
        let mut response = Response::new(Body::full(Bytes::new()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        response
    };
    let json = |length| answer("application/json; charset=utf-8", length);
    assert_eq!(Form::from_headers(&json(12)), Some(Form::Whole(12)));
    assert_eq!(
        Form::from_headers(&json(LONGEST)),
        Some(Form::Whole(LONGEST))
    );
    assert_eq!(Form::from_headers(&json(LONGEST + 1)), None);
    assert_eq!(
        Form::from_headers(&answer("text/event-stream", 9)),
        Some(Form::Streamed)
    );
    assert_eq!(Form::from_headers(&answer("text/plain", 9)), None);
    let mut error = json(12);
    *error.status_mut() = StatusCode::BAD_REQUEST;
    assert_eq!(Form::from_headers(&error), None);
}

#[tokio::test]
async fn an_event_is_put_right_wherever_it_is_cut() {
    let text = "data: {\"a\":1}\n\nevent: b\ndata: {\"timings\":{\"cache_n\":4,\"prompt_n\":1516}}\r\n\r\ndata: [DONE]\n\n";
    let right = text.replace(
        "\"cache_n\":4,\"prompt_n\":1516",
        "\"cache_n\":1519,\"prompt_n\":1",
    );
    for at in 0..text.len() {
        let (first, second) = text.split_at(at);
        assert_eq!(
            streamed(&[first, second], Some(ACCOUNT)).await,
            right,
            "{at}"
        );
        assert_eq!(streamed(&[first, second], None).await, text, "{at}");
    }
    let without_end = text.trim_end();
    assert_eq!(
        streamed(&[without_end], Some(ACCOUNT)).await,
        right.trim_end()
    );
}

#[tokio::test]
async fn the_account_is_not_asked_for_while_a_prompt_is_evaluated() {
    let progress = "data: {\"prompt_progress\":{\"total\":1520,\"cache\":4,\"processed\":1520},\"timings\":{\"cache_n\":4,\"prompt_n\":1516}}\n\n";
    let last =
        "data: {\"content\":\"prompt_progress\",\"timings\":{\"cache_n\":4,\"prompt_n\":1516}}\n\n";
    let right = last.replace("4,\"prompt_n\":1516", "1519,\"prompt_n\":1");
    let is_evaluated = Arc::<AtomicBool>::default();
    let knows = Arc::clone(&is_evaluated);
    let ask = async move { knows.load(Ordering::SeqCst).then_some(ACCOUNT) };
    let mut body = events(&[progress, progress, last], ask).await.into_body();
    let first = body.frame().await.expect("a frame").expect("no error");
    assert_eq!(first.into_data().expect("data"), progress);
    is_evaluated.store(true, Ordering::SeqCst);
    let rest = body.collect(1 << 30).await.expect("the rest");
    assert_eq!(rest, format!("{progress}{right}"));
    let together = format!("{progress}{last}");
    assert_eq!(
        streamed(&[&together], Some(ACCOUNT)).await,
        format!("{progress}{right}")
    );
}

#[tokio::test]
async fn a_stream_does_not_keep_its_length() {
    let event = "data: {\"usage\":{\"prompt_tokens\":1520,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
    let response = events(&[event], async { Some(ACCOUNT) }).await;
    assert_eq!(response.headers().get(CONTENT_LENGTH), None);
    let all = response.into_body().collect(1 << 30).await.expect("a body");
    assert_eq!(all.len(), event.len() + "519".len());
}

#[tokio::test]
async fn a_line_that_does_not_end_passes() {
    let long = "a".repeat(LONGEST_EVENT + 1);
    let rest = "\ndata: {\"timings\":{\"cache_n\":4,\"prompt_n\":1516}}\n";
    assert_eq!(
        streamed(&[&long, rest], Some(ACCOUNT)).await,
        long.clone() + rest
    );
}

#[tokio::test]
async fn an_answer_in_one_piece_gets_its_new_length() {
    let answer = r#"{"timings":{"cache_n":4,"prompt_n":1516}}"#;
    let response = || {
        let mut response = crate::json_response(200, answer);
        let length = HeaderValue::from(answer.len());
        response.headers_mut().insert(CONTENT_LENGTH, length);
        response
    };
    let held = || Room::new(1 << 20).enter();
    let right = correct_usage(response(), async { Some(ACCOUNT) }, held()).await;
    let expected = r#"{"timings":{"cache_n":1519,"prompt_n":1}}"#;
    assert_eq!(right.headers()[CONTENT_LENGTH], expected.len().to_string());
    assert_eq!(
        right.into_body().collect(99).await.expect("a body"),
        expected
    );
    let mut error = response();
    *error.status_mut() = StatusCode::BAD_REQUEST;
    let mut packed = response();
    packed
        .headers_mut()
        .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let none = correct_usage(response(), async { None }, held());
    let error = correct_usage(error, async { Some(ACCOUNT) }, held());
    let packed = correct_usage(packed, async { Some(ACCOUNT) }, held());
    for same in [none.await, error.await, packed.await] {
        assert_eq!(same.headers()[CONTENT_LENGTH], answer.len().to_string());
        assert_eq!(same.into_body().collect(99).await.expect("a body"), answer);
    }
}
