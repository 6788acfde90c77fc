//! Replays: a router that missed batches asks for all from a number on.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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
    asked: AtomicU64,
    answered: AtomicU64,
    /// Questions whose answers have not ended.
    open: AtomicUsize,
}

/// A question whose answer has not ended.
struct Open<'a>(&'a Replays);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Release);
    }
}

/// The right to one replay, returned on drop.
struct Turn<'a>(&'a Replays);

impl Replays {
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until all answers are sent and nothing was asked for this time, at most for `longest`. A router that gets a
    /// part of an answer and no end may wait for the end for ever, and hear of nothing else: Dynamo's indexer 1.6.1 does.
    pub(crate) fn settle(&self, silence: Duration, longest: Duration) {
        const STEP: Duration = Duration::from_millis(1);
        let until = Instant::now() + longest;
        let mut quiet = (Instant::now(), self.asked.load(Ordering::Acquire));
        while quiet.0.elapsed() < silence && Instant::now() < until {
            thread::sleep(STEP);
            let asked = self.asked.load(Ordering::Acquire);
            if asked != quiet.1 || self.open.load(Ordering::Acquire) > 0 {
                quiet = (Instant::now(), asked);
            }
        }
    }

    fn begin(&self) -> Open<'_> {
        self.open.fetch_add(1, Ordering::Release);
        self.asked.fetch_add(1, Ordering::Release);
        Open(self)
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
    let _open = replays.begin();
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
    fn the_end_waits_for_answers_and_not_for_ever() {
        const LONG: Duration = Duration::from_secs(3600);
        const SOON: Duration = Duration::from_millis(20);
        let replays = Replays::default();
        replays.settle(SOON, LONG);
        let open = replays.begin();
        let start = Instant::now();
        replays.settle(Duration::from_millis(1), SOON);
        assert!(start.elapsed() >= SOON);
        thread::scope(|scope| {
            let waits = scope.spawn(|| replays.settle(SOON, LONG));
            thread::sleep(5 * SOON);
            assert!(!waits.is_finished());
            drop(open);
            waits.join().expect("it ends");
        });
    }

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
