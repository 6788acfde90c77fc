//! Replays: a router that missed batches asks for all from a number on.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use contextpilot_kv_events::{Batch, Feed};

use crate::shared::{lock, now};

/// The number in the last message of a replay: −1 in eight bytes, as in vLLM.
const END: [u8; 8] = [0xff; 8];

/// Replays at a time. Each holds all that is cached in memory until the router has read it.
pub const REPLAYS: usize = 2;
/// How long a router may wait for its turn. It is disconnected then, and asks again.
const TURN: Duration = Duration::from_secs(10);

/// What the threads that answer share.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    running: Mutex<usize>,
    ended: Condvar,
    answered: AtomicU64,
}

/// The right to one replay, returned on drop.
struct Turn<'a>(&'a Replays);

impl Replays {
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    fn turn(&self, longest: Duration) -> io::Result<Turn<'_>> {
        let is_full = |running: &mut usize| *running >= REPLAYS;
        let running = lock(&self.running);
        let waited = self.ended.wait_timeout_while(running, longest, is_full);
        let (mut running, late) = waited.unwrap_or_else(PoisonError::into_inner);
        if late.timed_out() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        *running += 1;
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.running) -= 1;
        self.0.ended.notify_one();
    }
}

/// Answers a message with all batches from a number on. Ignores a message that is no request for a replay.
pub(crate) fn answer(
    replays: &Replays,
    feed: &Mutex<Option<Feed>>,
    topic: &[u8],
    question: &[Vec<u8>],
    send: &mut dyn FnMut(&[&[u8]]) -> io::Result<()>,
) -> io::Result<()> {
    // REQ sockets, and DEALER sockets that imitate them, send an empty part before the number.
    let (start, envelope) = match question {
        [empty, start] if empty.is_empty() => (start, true),
        [start] => (start, false),
        _ => return Ok(()),
    };
    let Ok(start) = <[u8; 8]>::try_from(start.as_slice()) else {
        return Ok(());
    };
    let _turn = replays.turn(TURN)?;
    let start = u64::from_be_bytes(start);
    let batches: Vec<Batch> = match &*lock(feed) {
        Some(feed) => feed.replay(start, now()).collect(),
        None => Vec::new(),
    };
    let mut send = |parts: &[&[u8]; 4]| send(if envelope { &parts[..] } else { &parts[1..] });
    for batch in batches {
        send(&[b"", topic, &batch.sequence.to_be_bytes(), &batch.payload])?;
    }
    send(&[b"", b"", &END, b""])?;
    replays.answered.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_a_time() {
        let replays = Replays::default();
        let soon = Duration::from_millis(20);
        let first = replays.turn(soon).expect("there is room");
        let _second = replays.turn(soon).expect("there is room");
        let late = replays.turn(soon).map(|_| ()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        std::thread::scope(|scope| {
            let third = scope.spawn(|| replays.turn(Duration::from_secs(60)).is_ok());
            drop(first);
            assert!(third.join().expect("it ends"));
        });
    }
}
