//! Bodies: our own, and those that pass through.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};

use crate::room::Held;

/// Bytes of a body that are received without a turn. Most requests have less.
const FIRST: usize = 16 << 10;
/// Bytes of a body that are received before others have their turn.
const TURN: usize = 64 << 10;

/// Why a body is cut off.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What is there of a body when it is polled.
pub(crate) type PolledFrame = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

/// Watches a body that passes through.
pub trait Tap: Send + 'static {
    /// The next bytes.
    fn data(&mut self, data: &[u8]);
    /// The body has ended. `complete`: it was complete; otherwise the client left, or the
    /// server closed the connection. Called once.
    fn end(&mut self, complete: bool);
}

/// The body of a request or of a response.
#[derive(Debug)]
pub struct Body(UnsyncBoxBody<Bytes, BoxError>);

/// A body is too large.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The limit, in bytes.
    pub limit: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit } = self;
        write!(
            f,
            "the body has more than {limit} bytes: send less at a time"
        )
    }
}

impl std::error::Error for TooLarge {}

/// What became of a body that can also pass as it is.
#[derive(Debug)]
pub enum Collected {
    /// All of it is there.
    Whole(Bytes),
    /// There is no room, or it is too long: the same body, of which some was received.
    Passing(Body),
}

/// Why a body was not received to its end.
enum Stopped {
    Broken(BoxError),
    /// It is too long, or there is no room for it. With what came last, for which there was none.
    Full(BoxError, Bytes),
}

impl Body {
    /// A complete body.
    pub fn full(data: impl Into<Bytes>) -> Self {
        Self::new(Full::new(data.into()))
    }

    /// A body of any other kind, such as a stream of events.
    pub fn new<B>(body: B) -> Self
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }

    /// The same body, watched as it passes.
    #[must_use]
    pub fn tapped(self, tap: impl Tap) -> Self {
        Self::new(Tapped {
            body: self,
            tap,
            ended: false,
        })
    }

    /// Waits for all of it.
    ///
    /// # Errors
    /// [`TooLarge`], or the error of the connection.
    pub async fn collect(self, limit: usize) -> Result<Bytes, BoxError> {
        // If the client gives the length, the body need not be read for this check.
        if hyper::body::Body::size_hint(&self).lower() > limit as u64 {
            return Err(Box::new(TooLarge { limit }));
        }
        match Limited::new(self, limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Box::new(TooLarge { limit })),
            Err(error) => Err(error),
        }
    }

    /// The same, for a client's request: what has arrived counts as held.
    ///
    /// Of clients that send more than 16 KiB, as fast as they can, two have their turn at a time. A thread that serves
    /// always has only a few pieces of bodies before it, and then serves others. A client that has
    /// nothing to send loses its turn.
    ///
    /// # Errors
    /// [`TooLarge`], [`NoRoom`](crate::NoRoom), or the error of the connection.
    pub async fn collect_in(mut self, limit: usize, held: &mut Held) -> Result<Bytes, BoxError> {
        let mut all = Vec::new();
        match self.receive(limit, held, &mut all).await {
            Ok(()) => Ok(all.into()),
            Err(Stopped::Broken(error)) => Err(error),
            Err(Stopped::Full(why, _)) => {
                held.refuse();
                Err(why)
            }
        }
    }

    /// The same, for a body that can also pass as it is: it does where there is no room for it, or it is too long
    /// ([`Collected::Passing`]). This counts as refused nowhere.
    ///
    /// # Errors
    /// The error of the connection.
    pub async fn collect_or_pass(
        mut self,
        limit: usize,
        held: &mut Held,
    ) -> Result<Collected, BoxError> {
        let mut all = Vec::new();
        match self.receive(limit, held, &mut all).await {
            Ok(()) => Ok(Collected::Whole(all.into())),
            Err(Stopped::Broken(error)) => Err(error),
            Err(Stopped::Full(_, next)) => {
                let received = [all.into(), next].into_iter();
                let body = Received {
                    received,
                    rest: self,
                };
                Ok(Collected::Passing(Self::new(body)))
            }
        }
    }

    async fn receive(
        &mut self,
        limit: usize,
        held: &mut Held,
        all: &mut Vec<u8>,
    ) -> Result<(), Stopped> {
        let too_large = |next| Err(Stopped::Full(Box::new(TooLarge { limit }), next));
        let declared = hyper::body::Body::size_hint(self);
        if declared.lower() > limit as u64 {
            return too_large(Bytes::new());
        }
        // A client may declare more than it ever sends, so the buffer grows as the body arrives.
        let most = usize::try_from(declared.upper().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let (mut in_turn, mut turn) = (0, None);
        loop {
            let there = poll_fn(|context| {
                let polled = hyper::body::Body::poll_frame(Pin::new(&mut *self), context);
                Poll::Ready(polled)
            });
            let frame = match there.await {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    turn = None;
                    self.frame().await
                }
            };
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(Stopped::Broken)?.into_data() else {
                continue;
            };
            let length = all.len() + data.len();
            if length > limit {
                return too_large(data);
            }
            if length > all.capacity() {
                let capacity = (2 * length).min(most.min(limit)).max(length);
                if let Err(why) = held.fit(capacity) {
                    return Err(Stopped::Full(Box::new(why), data));
                }
                all.reserve_exact(capacity - all.len());
            }
            all.extend_from_slice(&data);
            in_turn += data.len();
            if in_turn >= if turn.is_some() { TURN } else { FIRST } {
                in_turn = 0;
                // With the turn, or the next would have it before any other is looked at.
                match turn {
                    Some(_) => held.rest().await,
                    None => tokio::task::yield_now().await,
                }
                drop(turn.take());
                turn = held.turn().await;
            }
        }
        if turn.is_some() {
            held.rest().await;
        }
        Ok(())
    }

    /// The same body; what its request holds is given back once it was sent.
    #[must_use]
    pub fn holding(self, held: Held) -> Self {
        struct Until(#[expect(dead_code, reason = "it is held")] Held);
        impl Tap for Until {
            fn data(&mut self, _: &[u8]) {}
            fn end(&mut self, _: bool) {}
        }
        self.tapped(Until(held))
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// A body whose beginning was received.
struct Received {
    received: std::array::IntoIter<Bytes, 2>,
    rest: Body,
}

impl hyper::body::Body for Received {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        match self.received.find(|data| !data.is_empty()) {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.received.as_slice().iter().all(Bytes::is_empty) && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let received: usize = self.received.as_slice().iter().map(Bytes::len).sum();
        let (rest, received) = (self.rest.size_hint(), received as u64);
        let mut all = SizeHint::new();
        all.set_lower(rest.lower() + received);
        if let Some(upper) = rest.upper() {
            all.set_upper(upper + received);
        }
        all
    }
}

struct Tapped<T: Tap> {
    body: Body,
    tap: T,
    ended: bool,
}

// Nothing in it is pinned by its address.
impl<T: Tap> Unpin for Tapped<T> {}

impl<T: Tap> Tapped<T> {
    fn end(&mut self, complete: bool) {
        if !std::mem::replace(&mut self.ended, true) {
            self.tap.end(complete);
        }
    }
}

impl<T: Tap> hyper::body::Body for Tapped<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.tap.data(data);
                }
            }
            Poll::Ready(Some(Err(_))) => self.end(false),
            Poll::Ready(None) => self.end(true),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<T: Tap> Drop for Tapped<T> {
    fn drop(&mut self) {
        // A body of known length is not polled again after its last byte.
        let complete = hyper::body::Body::is_end_stream(&self.body);
        self.end(complete);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Room;

    const PIECE: usize = 16 << 10;

    /// So many pieces of a body, as fast as they are read, with a pause before each one that is a multiple of `pause`.
    struct Flood {
        left: usize,
        pause: usize,
        /// Nothing comes behind them, and no end.
        is_stuck: bool,
        received: Arc<AtomicUsize>,
    }

    impl hyper::body::Body for Flood {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
            if self.pause > 0 && self.left.is_multiple_of(self.pause) {
                // Next time there is something.
                self.pause = 0;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.left == 0 {
                return if self.is_stuck {
                    Poll::Pending
                } else {
                    Poll::Ready(None)
                };
            }
            self.left -= 1;
            self.received.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; PIECE])))))
        }
    }

    #[tokio::test]
    async fn large_bodies_are_received_in_turn() {
        let room = Room::new(1 << 30);
        let received = Arc::<AtomicUsize>::default();
        let clients: Vec<_> = (0..200)
            .map(|client| {
                let (mut held, received) = (room.enter(), Arc::clone(&received));
                let flood = Flood {
                    left: 64,
                    pause: client % 5,
                    is_stuck: false,
                    received,
                };
                let body = Body::new(flood);
                tokio::spawn(async move { body.collect_in(64 * PIECE, &mut held).await })
            })
            .collect();
        // Each may begin. From then on a neighbour has its turn after a few pieces, and not after some of each client.
        while received.load(Ordering::Relaxed) < 2 * clients.len() * FIRST / PIECE {
            tokio::task::yield_now().await;
        }
        let mut most = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            let before = received.load(Ordering::Relaxed);
            tokio::task::yield_now().await;
            most = most.max(received.load(Ordering::Relaxed) - before);
        }
        assert!(most <= 16, "{most} pieces before the neighbour");
        for client in clients {
            let body = client.await.expect("it ends").expect("a body");
            assert_eq!(body.len(), 64 * PIECE);
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_nothing_more_keeps_nobody_waiting() {
        let room = Room::new(1 << 30);
        let flood = |left, is_stuck| Flood {
            left,
            pause: 0,
            is_stuck,
            received: Arc::default(),
        };
        for pieces in [5, 6, 9] {
            let mut held = room.enter();
            let stuck = Body::new(flood(pieces, true));
            tokio::spawn(async move { stuck.collect_in(1 << 20, &mut held).await });
        }
        tokio::task::yield_now().await;
        let flood = flood(20, false);
        let mut held = room.enter();
        let body = Body::new(flood).collect_in(1 << 20, &mut held).await;
        assert_eq!(body.expect("a body").len(), 20 * PIECE);
    }

    #[tokio::test]
    async fn a_body_that_can_pass_does_with_all_that_was_received() {
        let room = Room::new(10 * PIECE);
        // Too long, no room, and neither.
        for (left, limit, passes) in [
            (20, 10 * PIECE, true),
            (100, 1 << 30, true),
            (9, 1 << 30, false),
        ] {
            let mut held = room.enter();
            let flood = Flood {
                left,
                pause: 3,
                is_stuck: false,
                received: Arc::default(),
            };
            let body = Body::new(flood).collect_or_pass(limit, &mut held).await;
            let all = match body.expect("no error") {
                Collected::Whole(all) => (all, false),
                Collected::Passing(body) => (body.collect(1 << 30).await.expect("a body"), true),
            };
            assert_eq!((all.0.len(), all.1), (left * PIECE, passes));
        }
        assert_eq!((room.held(), room.refused()), (0, 0));
    }
}
