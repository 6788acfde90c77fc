//! Puts an answer's usage right after a load from a prefix store.
//!
//! The server evaluates, as it believes, what the hook has loaded, and says so: *4 of 1,520 tokens were cached*. With the
//! hook's account of the request it is known how many were loaded, and these count as cached then. Only the numbers
//! change; every other byte of an answer stays. Numbers that are not those of the account (several prompts in one request,
//! say) stay as well.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use contextpilot_usage::{Account, correct, correct_lines, has_figures, has_final_figures};
use hyper::StatusCode;
use hyper::body::{Frame, SizeHint};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};

use crate::body::PolledFrame;
use crate::{Body, BoxError, Held, Response, error_response};

/// Bytes of an answer in one piece, and of one event of a stream. Longer ones pass as they are.
const LONGEST: usize = 16 << 20;
const LONGEST_EVENT: usize = 1 << 20;

/// The account of a request, when its answer needs it. `None` if it does not come.
pub type Asked = Pin<Box<dyn Future<Output = Option<Account>> + Send>>;

/// Where accounts come from.
pub trait Accounts: Send + Sync {
    /// Whether the server may load anything. If not, requests pass as they are.
    fn are_needed(&self) -> bool;
    /// An id for a request without one.
    fn new_id(&self) -> String;
    /// The account of a request with this answer, asked for when this is polled. `None`: nothing is ever loaded, the server has
    /// counted what was, or no server can be asked.
    fn ask(&self, id: String, answer: &Response) -> Option<Asked>;
}

/// How an answer that may have figures comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In one piece, of so many bytes.
    Whole(usize),
    /// As a stream of events.
    Streamed,
}

impl Form {
    /// `None`: nothing of it is looked at.
    #[must_use]
    pub fn from_headers(response: &Response) -> Option<Self> {
        let headers = response.headers();
        if response.status() != StatusCode::OK || headers.contains_key(CONTENT_ENCODING) {
            return None;
        }
        let kind = headers.get(CONTENT_TYPE)?.as_bytes();
        if kind.starts_with(b"text/event-stream") {
            return Some(Self::Streamed);
        }
        let length: usize = headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
        let is_looked_at = kind.starts_with(b"application/json") && length <= LONGEST;
        is_looked_at.then_some(Self::Whole(length))
    }
}

/// The same answer with the right usage. `ask` is polled when the answer's first figures are there; the answer waits
/// for it. `held` has what is kept of an answer in one piece.
pub async fn correct_usage(
    mut response: Response,
    ask: impl Future<Output = Option<Account>> + Send + 'static,
    mut held: Held,
) -> Response {
    let length = match Form::from_headers(&response) {
        Some(Form::Whole(length)) => length,
        Some(Form::Streamed) => {
            // What follows may have another length.
            response.headers_mut().remove(CONTENT_LENGTH);
            return response.map(|body| {
                Body::new(Events {
                    body,
                    ask: Some(Box::pin(ask)),
                    account: None,
                    waiting: Vec::new(),
                    lines: Vec::new(),
                    is_over: false,
                })
            });
        }
        None => return response,
    };
    if held.fit(2 * length).is_err() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let whole = match body.collect(LONGEST).await {
        Ok(whole) => whole,
        Err(error) => {
            let why = format!("the answer of llama-server broke off: {error}");
            return error_response(502, "proxy_error", &why);
        }
    };
    let account = if has_figures(&whole) { ask.await } else { None };
    let whole = match account.and_then(|account| correct(&whole, account)) {
        Some(right) => {
            head.headers
                .insert(CONTENT_LENGTH, HeaderValue::from(right.len()));
            Bytes::from(right)
        }
        None => whole,
    };
    Response::from_parts(head, Body::full(whole).holding(held))
}

/// A stream of events. Each `data:` line is a JSON text.
struct Events {
    body: Body,
    /// `None`: was asked.
    ask: Option<Asked>,
    account: Option<Account>,
    /// The beginning of a line.
    waiting: Vec<u8>,
    /// Whole lines with figures, which wait for the account.
    lines: Vec<u8>,
    /// Whatever comes now passes as it is.
    is_over: bool,
}

impl Events {
    /// The lines that are complete now, with those that wait.
    fn take(&mut self, data: &[u8]) {
        self.waiting.extend_from_slice(data);
        if let Some(end) = self.waiting.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.waiting.split_off(end + 1);
            self.lines.append(&mut self.waiting);
            self.waiting = rest;
        }
        if self.waiting.len() > LONGEST_EVENT {
            self.end();
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        self.lines.append(&mut self.waiting);
    }

    /// Whether these lines need the account, and it was not asked for.
    fn must_ask(&self) -> bool {
        self.ask.is_some() && split(&self.lines).any(has_final_figures)
    }

    fn corrected(&mut self) -> Bytes {
        let lines = std::mem::take(&mut self.lines);
        let right = self.account.and_then(|it| correct_lines(&lines, it));
        right.unwrap_or(lines).into()
    }
}

fn split(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines.split_inclusive(|byte| *byte == b'\n')
}

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        loop {
            if self.must_ask() {
                let ask = self.ask.as_mut().map(|ask| ask.as_mut().poll(context));
                match ask {
                    Some(Poll::Pending) => return Poll::Pending,
                    Some(Poll::Ready(account)) => self.account = account,
                    None => {}
                }
                self.ask = None;
            }
            if !self.lines.is_empty() {
                let data = self.corrected();
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if self.is_over => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Ok(data) => self.take(&data),
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Poll::Ready(None) if !self.waiting.is_empty() => self.end(),
                other => return other,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.lines.is_empty() && self.waiting.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::new()
    }
}

#[cfg(test)]
mod tests;
