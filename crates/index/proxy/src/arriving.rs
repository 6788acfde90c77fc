//! The body of a client's request, while it arrives.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::body::PolledFrame;
use crate::places::{Places, Progress, Step};
use crate::{BoxError, Response, error_response};

/// A body may take a second more for so many bytes.
const EACH_SECOND: u64 = 64 << 10;

/// A body took longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSlow {
    /// Seconds for a short body.
    pub seconds: u64,
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds } = self;
        write!(
            f,
            "the body took longer than {seconds} s, and a second for each 64 KiB: send it faster"
        )
    }
}

impl std::error::Error for TooSlow {}

/// Why the body of a request broke off, if that is the client's fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault(Arc<OnceLock<(u16, String)>>);

impl Fault {
    /// The answer to the client.
    pub(crate) fn answer(&self) -> Option<Response> {
        let (status, why) = self.0.get()?;
        Some(error_response(*status, "invalid_request_error", why))
    }
}

pub(crate) struct Arriving {
    body: Incoming,
    progress: Arc<Progress>,
    places: Arc<Places>,
    fault: Fault,
    time: Duration,
    received: u64,
    begun: Instant,
    /// Until when it may take. Made when the body is waited for.
    late: Option<Pin<Box<Sleep>>>,
}

impl Arriving {
    pub(crate) fn new(
        body: Incoming,
        time: Duration,
        progress: Arc<Progress>,
        places: Arc<Places>,
    ) -> Self {
        let whole = hyper::body::Body::is_end_stream(&body);
        progress.step(if whole { Step::Answer } else { Step::Body });
        Self {
            body,
            progress,
            places,
            fault: Fault::default(),
            time,
            received: 0,
            begun: Instant::now(),
            late: None,
        }
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault.clone()
    }

    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let more = Duration::from_secs(self.received / EACH_SECOND);
        let deadline = self.begun + self.time + more;
        let late = match &mut self.late {
            Some(late) => {
                if late.deadline() != deadline {
                    late.as_mut().reset(deadline);
                }
                late
            }
            none => none.insert(Box::pin(tokio::time::sleep_until(deadline))),
        };
        late.as_mut().poll(context).is_ready()
    }
}

impl hyper::body::Body for Arriving {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
                if hyper::body::Body::is_end_stream(&self.body) {
                    self.progress.body_ended();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                let why = format!("the body of the request broke off or is malformed ({error})");
                let _ = self.fault.0.set((400, why));
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                self.progress.body_ended();
                Poll::Ready(None)
            }
            Poll::Pending if self.is_late(context) => {
                let seconds = self.time.as_secs();
                let slow = TooSlow { seconds };
                if self.fault.0.set((408, slow.to_string())).is_ok() {
                    self.places.tally.late();
                }
                Poll::Ready(Some(Err(Box::new(slow))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        // What is left of it is not waited for.
        self.progress.body_ended();
    }
}
