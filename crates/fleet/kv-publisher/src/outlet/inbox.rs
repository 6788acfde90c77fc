//! The events that wait between the ledger's thread and the publishing thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_kv_events::KvEvent;

use crate::shared::lock;

/// Tokens and block hashes of events that may wait for the publishing thread. If more would wait, all
/// are dropped, and everything that is cached is announced again. A single call may push more than
/// this if nothing waits.
pub const MOST_WAITING: usize = 4 << 20;
/// After so long without events an empty batch is published. By its number a subscriber that came
/// late or missed a batch learns that there is something to ask for.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long to wait before an address is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Where the ledger's thread, and that of a prefix store, put events.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    /// How often events were dropped because there was no room.
    pub(super) started_over: AtomicU64,
    /// Events that were taken from here and are not published yet.
    pub(super) in_hand: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    events: Vec<KvEvent>,
    /// Tokens and block hashes of these events.
    weight: usize,
    closed: bool,
    /// How often it was said that nothing is cached.
    beginnings: u64,
    /// Something was pushed beside.
    beside: bool,
}

/// What became of events that were pushed beside those of the ledger's thread.
#[derive(Debug)]
pub(crate) enum Beside {
    Taken,
    /// There is no room now.
    Full,
    /// They were not taken: since the number that was named, everything begins anew, and this is the number now.
    Anew(u64),
}

impl Inbox {
    /// Takes events to be published. Returns false if there was no room: then these events and those
    /// that waited are dropped.
    pub(crate) fn push(&self, events: &mut Vec<KvEvent>) -> bool {
        let weight: usize = events.iter().map(KvEvent::weight).sum();
        let mut waiting = lock(&self.waiting);
        if events.first() == Some(&KvEvent::Cleared) {
            // Whatever waits is undone by this.
            waiting.events.clear();
            waiting.weight = 0;
            waiting.beginnings += 1;
        }
        if waiting.weight > 0 && waiting.weight + weight > MOST_WAITING {
            waiting.events.clear();
            waiting.weight = 0;
            events.clear();
            self.started_over.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        waiting.weight += weight;
        waiting.events.append(events);
        self.filled.notify_one();
        true
    }

    /// Takes the first `count` of these events to be published, if everything has begun as often as the other side
    /// believes. Nothing is taken before the first beginning.
    pub(crate) fn push_beside(
        &self,
        events: &mut Vec<KvEvent>,
        count: usize,
        beginnings: u64,
    ) -> Beside {
        let weight: usize = events[..count].iter().map(KvEvent::weight).sum();
        let mut waiting = lock(&self.waiting);
        if waiting.beginnings != beginnings {
            return Beside::Anew(waiting.beginnings);
        }
        let is_full = waiting.weight > 0 && waiting.weight + weight > MOST_WAITING;
        if beginnings == 0 || is_full || waiting.closed {
            return Beside::Full;
        }
        if count > 0 {
            waiting.beside = true;
            waiting.weight += weight;
            waiting.events.extend(events.drain(..count));
            self.filled.notify_one();
        }
        Beside::Taken
    }

    /// Replaces all waiting events by one: nothing is cached.
    pub(crate) fn clear(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.events = vec![KvEvent::Cleared];
        waiting.weight = 1;
        waiting.beginnings += 1;
        self.filled.notify_one();
    }

    pub(crate) fn close(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        if waiting.beside {
            // What a store has is not loaded any more.
            waiting.events = vec![KvEvent::Cleared];
        }
        self.filled.notify_one();
    }

    /// Events that wait here, or were taken and are not published yet.
    pub(super) fn count(&self) -> u64 {
        let waiting = lock(&self.waiting);
        waiting.events.len() as u64 + self.in_hand.load(Ordering::Acquire)
    }

    /// Waits before an address is tried again. `None`: it was closed.
    pub(super) fn pause(&self) -> Option<()> {
        let until = Instant::now() + AGAIN;
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.closed {
                return None;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(());
            }
            let woken = self.filled.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for events, at most until the next empty batch is due. Returns them, and whether
    /// it was closed: then these are the last.
    pub(super) fn take(&self) -> (Vec<KvEvent>, bool) {
        let until = Instant::now() + HEARTBEAT;
        let mut waiting = lock(&self.waiting);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if waiting.closed || !waiting.events.is_empty() || left.is_zero() {
                waiting.weight = 0;
                let events = std::mem::take(&mut waiting.events);
                self.in_hand.store(events.len() as u64, Ordering::Release);
                return (events, waiting.closed);
            }
            let woken = self.filled.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
