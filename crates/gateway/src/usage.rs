//! The usage in answers of a server with a prefix store.

use std::sync::Arc;

use bytes::Bytes;
use contextpilot_proxy::{
    Accounts, Asked, Body, Lane, NoRoom, Request, Response, Room, Tally, TooLarge, TooSlow,
    Upstream, correct_usage, error_response, generates, give_id, request_id,
};
use hyper::Method;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};

use crate::BODIES;

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
    accounts: Arc<dyn Accounts>,
    lane: Lane,
    pub(crate) room: Room,
}

impl Usage {
    pub(crate) fn new(accounts: Arc<dyn Accounts>, tally: Arc<Tally>) -> Self {
        Self {
            accounts,
            lane: Lane::new(THREADS, WAITING, tally),
            room: Room::new(BODIES / 4),
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

    /// The request with an id, and the account to ask for.
    async fn named(&self, request: Request) -> Result<(Request, Option<Asked>), Response> {
        let (mut head, body) = request.into_parts();
        let mut held = self.room.enter();
        let body = body.collect_in(LONGEST, &mut held).await;
        let body = body.map_err(|error| match error.downcast_ref::<NoRoom>() {
            Some(why) => error_response(why.status(), INVALID, &why.to_string()),
            None => {
                let status = match () {
                    () if error.is::<TooLarge>() => 413,
                    () if error.is::<TooSlow>() => 408,
                    () => 400,
                };
                error_response(status, INVALID, &error.to_string())
            }
        })?;
        // It is copied if it gets an id.
        held.hold(2 * body.len())
            .map_err(|why| error_response(why.status(), INVALID, &why.to_string()))?;
        let (path, accounts) = (head.uri.path().to_owned(), Arc::clone(&self.accounts));
        let small = body.len() <= SMALL;
        let name = move || named(&path, body, &*accounts);
        let (body, id) = match small {
            true => name(),
            false => {
                let done = self.lane.run(name).await;
                done.map_err(|why| error_response(why.status(), INVALID, &why.to_string()))?
            }
        };
        let length = HeaderValue::from(body.len());
        head.headers.insert(CONTENT_LENGTH, length);
        let ask = id.and_then(|id| self.accounts.of(id));
        let request = Request::from_parts(head, Body::full(body).holding(held));
        Ok((request, ask))
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
