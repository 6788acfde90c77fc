//! The events that wait between the ledger's thread and the publishing thread.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use contextpilot_kv_events::KvEvent;

use super::Outlet;
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

#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) events: Vec<KvEvent>,
    /// Tokens and block hashes of these events.
    weight: usize,
    closed: bool,
}

impl Outlet {
    /// Takes events to be published. Returns false if there was no room: then these events and those
    /// that waited are dropped.
    pub(crate) fn push(&self, events: &mut Vec<KvEvent>) -> bool {
        let weight: usize = events.iter().map(weight).sum();
        let mut inbox = lock(&self.inbox);
        if inbox.weight > 0 && inbox.weight + weight > MOST_WAITING {
            inbox.events.clear();
            inbox.weight = 0;
            events.clear();
            self.started_over.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        inbox.weight += weight;
        inbox.events.append(events);
        self.filled.notify_one();
        true
    }

    /// Replaces all waiting events by one: nothing is cached.
    pub(crate) fn clear(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.events = vec![KvEvent::Cleared];
        inbox.weight = 1;
        self.filled.notify_one();
    }

    pub(crate) fn close(&self) {
        lock(&self.inbox).closed = true;
        self.filled.notify_one();
    }

    /// Waits before an address is tried again. `None`: the outlet was closed.
    pub(super) fn pause(&self) -> Option<()> {
        let until = Instant::now() + AGAIN;
        let mut inbox = lock(&self.inbox);
        loop {
            if inbox.closed {
                return None;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(());
            }
            let woken = self.filled.wait_timeout(inbox, left);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for events, at most until the next empty batch is due. Returns them, and whether the
    /// outlet was closed: then these are the last.
    pub(super) fn take(&self) -> (Vec<KvEvent>, bool) {
        let until = Instant::now() + HEARTBEAT;
        let mut inbox = lock(&self.inbox);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if inbox.closed || !inbox.events.is_empty() || left.is_zero() {
                inbox.weight = 0;
                let events = std::mem::take(&mut inbox.events);
                self.in_hand.store(events.len() as u64, Ordering::Release);
                return (events, inbox.closed);
            }
            let woken = self.filled.wait_timeout(inbox, left);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn weight(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { hashes, tokens, .. } => hashes.len() + tokens.len(),
        KvEvent::Removed { hashes, .. } => hashes.len(),
        KvEvent::Cleared => 1,
    }
}
