//! Memory for bodies, bounded for all requests together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a request may hold without being counted: so much is bounded by the number of connections, and small
/// requests are answered however many large ones there are.
pub const FREE: usize = 128 << 10;

/// Large bodies that are received at the same time.
const RECEIVED: usize = 2;

/// How long nothing is received after each piece of a large body if others wait for their turn.
const REST: Duration = Duration::from_millis(1);

/// Bytes that requests may hold together.
#[derive(Clone, Debug)]
pub struct Room(Arc<RoomState>);

#[derive(Debug)]
struct RoomState {
    most: usize,
    held: AtomicUsize,
    refused: AtomicU64,
    received: Arc<Semaphore>,
    /// Those who wait for their turn to be received.
    waiting: AtomicUsize,
}

/// What one request holds. Given back when this is dropped.
#[derive(Debug)]
pub struct Held {
    room: Room,
    /// Beyond [`FREE`].
    bytes: usize,
}

/// One more waits, until this is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn among(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request may not hold that much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// It would not fit even if no other request held anything.
    Ever {
        /// Bytes that it takes.
        needs: usize,
        /// Bytes that all may take.
        most: usize,
    },
    /// Other requests hold too much now.
    Now {
        /// Bytes that all may take.
        most: usize,
    },
}

impl NoRoom {
    /// 413 or 429.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Ever { .. } => 413,
            Self::Now { .. } => 429,
        }
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        match self {
            Self::Ever { needs, most } => write!(
                f,
                "this takes {} MiB of memory while it is worked on, and {} are allowed: send less at a time",
                mib(*needs),
                mib(*most)
            ),
            Self::Now { most } => write!(
                f,
                "requests take all of the {} MiB of memory that they may: try again in a moment",
                mib(*most)
            ),
        }
    }
}

impl std::error::Error for NoRoom {}

impl Room {
    /// For so many bytes.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(RoomState {
            most,
            held: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            received: Arc::new(Semaphore::new(RECEIVED)),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// For a request that holds nothing yet.
    #[must_use]
    pub fn enter(&self) -> Held {
        Held {
            room: self.clone(),
            bytes: 0,
        }
    }

    /// Bytes that requests hold now, beyond [`FREE`] for each.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// How often something was refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

impl Held {
    /// Waits until more of a large body may be received. No thread may wait for a client while it keeps this.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let state = &*self.room.0;
        let received = Arc::clone(&state.received);
        let _waiting = Waiting::among(&state.waiting);
        // It is never closed.
        received.acquire_owned().await.ok()
    }

    /// Lets others be served behind a piece of a large body, before the turn goes to the next one. If there is one, all of
    /// them together want more than is received of them: then the threads that serve have nothing to do for a while,
    /// and neither do the processors.
    pub(crate) async fn rest(&self) {
        match self.room.0.waiting.load(Ordering::Relaxed) {
            0 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(REST).await,
        }
    }

    /// Counts a request as refused that is too large for another reason.
    pub fn refuse(&self) {
        self.room.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Holds so many bytes in all from now on, more or fewer than before.
    ///
    /// # Errors
    /// There is no room. It holds what it did before.
    pub fn hold(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let fits = self.fit(bytes);
        if fits.is_err() {
            self.refuse();
        }
        fits
    }

    /// The same, for what can also be left: nothing counts as refused.
    ///
    /// # Errors
    /// There is no room. It holds what it did before.
    pub fn fit(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let state = &*self.room.0;
        let counted = bytes.saturating_sub(FREE);
        if counted <= self.bytes {
            state
                .held
                .fetch_sub(self.bytes - counted, Ordering::Relaxed);
            self.bytes = counted;
            return Ok(());
        }
        let most = state.most;
        if counted > most {
            return Err(NoRoom::Ever { needs: bytes, most });
        }
        let more = counted - self.bytes;
        let taken = |held: usize| held.checked_add(more).filter(|all| *all <= most);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        match state.held.fetch_update(set, fetch, taken) {
            Ok(_) => {
                self.bytes = counted;
                Ok(())
            }
            Err(_) => Err(NoRoom::Now { most }),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.0.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn all_together_hold_no_more_than_there_is_room() {
        let room = Room::new(10 * MIB);
        let (mut first, mut second) = (room.enter(), room.enter());
        first.hold(6 * MIB).expect("room");
        assert_eq!(second.hold(6 * MIB), Err(NoRoom::Now { most: 10 * MIB }));
        second.hold(4 * MIB).expect("room");
        second.hold(FREE).expect("what is free");
        assert_eq!(room.held(), 6 * MIB - FREE);
        first.hold(10 * MIB).expect("room");
        first.hold(MIB).expect("less");
        drop(first);
        assert_eq!((room.held(), room.refused()), (0, 1));
    }

    #[test]
    fn what_never_fits_is_told_apart_and_small_requests_always_fit() {
        let room = Room::new(MIB);
        let mut large = room.enter();
        let refused = large.hold(MIB + FREE + 1).expect_err("too much");
        assert_eq!(refused.status(), 413);
        assert!(refused.to_string().contains("takes 2 MiB"), "{refused}");
        large.hold(MIB + FREE).expect("all of it");
        room.enter().hold(FREE).expect("free");
        let refused = room.enter().hold(FREE + 1).expect_err("nothing is left");
        assert_eq!(refused.status(), 429);
        assert!(refused.to_string().contains("1 MiB"), "{refused}");
    }
}
