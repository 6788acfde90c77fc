//! The usage in answers of a server with a prefix store.

use std::sync::Arc;

use bytes::Bytes;
use contextpilot_proxy::{
    Accounts, Asked, Body, Collected, Held, Lane, Request, Response, Room, TooSlow, Upstream,
    correct_usage, error_response, generates, give_id, request_id,
};
use hyper::Method;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};

/// Bytes of a request that is read for its id. Longer ones pass as they are, and so do their answers.
const LONGEST: usize = 64 << 20;
/// Bodies up to this length are read where they were received.
const SMALL: usize = 8 << 10;
/// Longer ones that are read at a time, and those that may wait with them.
const THREADS: usize = 2;
const WAITING: usize = 1024;

const INVALID: &str = "invalid_request_error";

/// Puts the usage in answers right.
#[derive(Clone)]
pub(crate) struct Usage {
    pub(crate) accounts: Arc<dyn Accounts>,
    lane: Lane,
    pub(crate) room: Room,
}

impl Usage {
    /// `bytes`: what requests take together while they are read for their ids, and answers in one piece.
    pub(crate) fn new(accounts: Arc<dyn Accounts>, bytes: usize) -> Self {
        Self {
            accounts,
            // Nobody is refused when it is full.
            lane: Lane::new(THREADS, WAITING, Arc::default()),
            room: Room::new(bytes),
        }
    }

    /// Passes a request on, and its answer back. A request for generation has an id then.
    pub(crate) async fn forward(&self, server: &Upstream, request: Request) -> Response {
        if !is_readable(&request) {
            return server.forward(request).await;
        }
        match self.named(request).await {
            Ok((request, Some(ask))) => {
                let answer = server.forward(request).await;
                correct_usage(answer, ask, self.room.enter()).await
            }
            Ok((request, None)) => server.forward(request).await,
            Err(refused) => refused,
        }
    }

    /// The request with an id, and the account to ask for. Where there is no room or no thread to read it, the request
    /// as it is, and no account.
    async fn named(&self, request: Request) -> Result<(Request, Option<Asked>), Response> {
        let (mut head, body) = request.into_parts();
        let mut held = self.room.enter();
        let body = match body.collect_or_pass(LONGEST, &mut held).await {
            Ok(Collected::Whole(body)) => body,
            Ok(Collected::Passing(body)) => {
                return Ok((Request::from_parts(head, body.holding(held)), None));
            }
            Err(error) => {
                let status = if error.is::<TooSlow>() { 408 } else { 400 };
                return Err(error_response(status, INVALID, &error.to_string()));
            }
        };
        let (body, id) = self.with_id(head.uri.path(), body, &mut held).await;
        let length = HeaderValue::from(body.len());
        head.headers.insert(CONTENT_LENGTH, length);
        let ask = id.and_then(|id| self.accounts.of(id));
        let request = Request::from_parts(head, Body::full(body).holding(held));
        Ok((request, ask))
    }

    async fn with_id(&self, path: &str, body: Bytes, held: &mut Held) -> (Bytes, Option<String>) {
        // It is copied if it gets an id.
        if held.fit(2 * body.len()).is_err() {
            return (body, None);
        }
        let (path, accounts) = (path.to_owned(), Arc::clone(&self.accounts));
        let (small, same) = (body.len() <= SMALL, body.clone());
        let name = move || named(&path, body, &*accounts);
        match small {
            true => name(),
            false => self.lane.run(name).await.unwrap_or((same, None)),
        }
    }
}

fn named(path: &str, body: Bytes, accounts: &dyn Accounts) -> (Bytes, Option<String>) {
    if let Some(id) = request_id(&body) {
        return (body, Some(id));
    }
    let new = accounts.new_id();
    match give_id(path, &body, &new) {
        Some(given) => (given.into(), Some(new)),
        None => (body, None),
    }
}

/// Whether the body is JSON that may have an id, and not too long.
fn is_readable(request: &Request) -> bool {
    let headers = request.headers();
    let kind = headers
        .get(CONTENT_TYPE)
        .map_or(b"".as_slice(), HeaderValue::as_bytes);
    let length = headers
        .get(CONTENT_LENGTH)
        .map(|length| length.to_str().ok()?.parse().ok());
    let is_short =
        length.is_none_or(|length| length.is_some_and(|length: usize| length <= LONGEST));
    request.method() == Method::POST
        && generates(request.uri().path())
        && !headers.contains_key(CONTENT_ENCODING)
        && !kind.starts_with(b"multipart/")
        && is_short
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Known;

    impl Accounts for Known {
        fn new_id(&self) -> String {
            "new".to_owned()
        }

        fn of(&self, _: String) -> Option<Asked> {
            None
        }
    }

    #[test]
    fn a_request_that_no_thread_reads_is_the_same() {
        let body = Bytes::from(format!(r#"{{"prompt":"{}"}}"#, "x".repeat(SMALL)));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        for (waiting, is_same) in [(0, true), (1, false)] {
            let usage = Usage {
                lane: Lane::new(1, waiting, Arc::default()),
                ..Usage::new(Arc::new(Known), 1 << 20)
            };
            let mut held = usage.room.enter();
            let named = usage.with_id("/v1/completions", body.clone(), &mut held);
            let (after, id) = runtime.block_on(named);
            assert_eq!((after == body, id.is_none()), (is_same, is_same));
        }
    }
}
