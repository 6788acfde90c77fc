//! Requests for generation are read, and perhaps edited, before they are passed on.

use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};

use crate::{Body, BoxError, Collected, Held, Lane, Request, Room, Stabiliser, generates};

/// Bodies up to this length are read where they were received.
const SMALL: usize = 8 << 10;
/// Longer ones that are read at a time, and those that may wait with them.
const THREADS: usize = 2;
const WAITING: usize = 1024;
/// How often a body is in memory while it is edited: as it came, and with an id. With rules also with its texts put right,
/// and those texts.
const COPIES: usize = 2;
const COPIES_BY_RULES: usize = 4;

/// Reads requests before they are passed on. The server would take them anyhow, so none is refused: a request that is
/// too long, or for which there is no room or no thread, passes as it is.
#[derive(Clone, Debug)]
pub struct Reading {
    longest: usize,
    rules: Option<Arc<Stabiliser>>,
    lane: Lane,
    room: Room,
}

impl Reading {
    /// `longest`: bytes of a request. `bytes`: of all of them together. `rules`: by which their texts are put right.
    #[must_use]
    pub fn new(longest: usize, bytes: usize, rules: Option<Arc<Stabiliser>>) -> Self {
        Self {
            longest,
            rules,
            // No request is refused when it is full.
            lane: Lane::new(THREADS, WAITING, Arc::default()),
            room: Room::new(bytes),
        }
    }

    /// The rules by which texts are put right.
    #[must_use]
    pub fn rules(&self) -> Option<&Stabiliser> {
        self.rules.as_deref()
    }

    /// The memory of the requests that are read.
    #[must_use]
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// The request with its body as `edit` leaves it, and what `edit` found. `edit` gets the request's path and its body,
    /// with its texts put right.
    /// `None`: the request passes as it is.
    ///
    /// # Errors
    /// The client's connection broke, or its body came too slowly ([`TooSlow`](crate::TooSlow)).
    pub async fn read<T: Send + 'static>(
        &self,
        request: Request,
        edit: impl FnOnce(&str, Bytes) -> (Bytes, T) + Send + 'static,
    ) -> Result<(Request, Option<T>), BoxError> {
        if !self.is_readable(&request) {
            return Ok((request, None));
        }
        let (mut head, body) = request.into_parts();
        let mut held = self.room.enter();
        let body = match body.collect_or_pass(self.longest, &mut held).await? {
            Collected::Whole(body) => body,
            Collected::Passing(body) => {
                return Ok((Request::from_parts(head, body.holding(held)), None));
            }
        };
        let (body, found) = self.edited(head.uri.path(), body, &mut held, edit).await;
        // It is passed on as a whole, also if it came in chunks.
        let length = HeaderValue::from(body.len());
        head.headers.insert(CONTENT_LENGTH, length);
        let request = Request::from_parts(head, Body::full(body).holding(held));
        Ok((request, found))
    }

    async fn edited<T: Send + 'static>(
        &self,
        path: &str,
        body: Bytes,
        held: &mut Held,
        edit: impl FnOnce(&str, Bytes) -> (Bytes, T) + Send + 'static,
    ) -> (Bytes, Option<T>) {
        let copies = match self.rules {
            Some(_) => COPIES_BY_RULES,
            None => COPIES,
        };
        if held.fit(copies * body.len()).is_err() {
            return (body, None);
        }
        let (path, is_small, same) = (path.to_owned(), body.len() <= SMALL, body.clone());
        let rules = self.rules.clone();
        let edit = move || {
            let stable = rules.and_then(|rules| rules.apply(&path, &body));
            let (body, found) = edit(&path, stable.map_or(body, Bytes::from));
            (body, Some(found))
        };
        if is_small {
            edit()
        } else {
            self.lane.run(edit).await.unwrap_or((same, None))
        }
    }

    /// Whether the body is JSON of a request for generation, and not too long. One in chunks says its length at its end
    /// only.
    fn is_readable(&self, request: &Request) -> bool {
        let headers = request.headers();
        // curl sends JSON with the content type of a form.
        let kind = headers
            .get(CONTENT_TYPE)
            .map_or(b"".as_slice(), HeaderValue::as_bytes);
        let length = headers
            .get(CONTENT_LENGTH)
            .map(|length| length.to_str().ok()?.parse().ok());
        let is_short =
            length.is_none_or(|length| length.is_some_and(|length: usize| length <= self.longest));
        request.method() == Method::POST
            && generates(request.uri().path())
            && !headers.contains_key(CONTENT_ENCODING)
            && !kind.starts_with(b"multipart/")
            && is_short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_no_thread_reads_is_the_same() {
        let body = Bytes::from("x".repeat(SMALL + 1));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        for (waiting, is_read) in [(0, false), (1, true)] {
            let reading = Reading {
                lane: Lane::new(1, waiting, Arc::default()),
                ..Reading::new(1 << 20, 1 << 20, None)
            };
            let mut held = reading.room.enter();
            let edited = reading.edited("/", body.clone(), &mut held, |_, _| ("read".into(), ()));
            let (after, found) = runtime.block_on(edited);
            assert_eq!((after == body, found.is_none()), (!is_read, !is_read));
        }
    }
}
