//! The figures of the publication since its start.

use std::sync::atomic::{AtomicU64, Ordering};

use contextpilot_control::KvEvents;
use contextpilot_kv_events::{KvEvent, Medium};
use contextpilot_zmtp::{Publisher, Router};

use super::Outlet;
use crate::shared::lock;

impl Outlet {
    pub(super) fn count(&self, events: &[KvEvent]) {
        if !events.is_empty() {
            self.batches.fetch_add(1, Ordering::Relaxed);
        }
        for event in events {
            let (counter, hashes) = match event {
                KvEvent::Stored { hashes, .. } => (&self.stored, hashes),
                KvEvent::Removed { hashes, .. } => (&self.removed, hashes),
                KvEvent::Cleared => continue,
            };
            counter.fetch_add(hashes.len() as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn figures(&self) -> KvEvents {
        let inbox = lock(&self.inbox);
        let waiting = inbox.events.len() as u64 + self.in_hand.load(Ordering::Acquire);
        drop(inbox);
        let sockets = lock(&self.sockets);
        let publisher = sockets.publisher.as_ref();
        let router = sockets.router.as_ref();
        let sent = publisher.map(Publisher::figures).unwrap_or_default();
        let feed = lock(&self.feed);
        let blocks = |medium| feed.as_ref().map_or(0, |feed| feed.blocks(medium) as u64);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KvEvents {
            publish: publisher.map(|publisher| url(publisher.address())),
            replay: router.map(|router| url(router.address())),
            problem: sockets.problem.clone(),
            block_size: self.block_size,
            subscribers: sent.subscribers,
            gpu_blocks: blocks(Medium::Gpu),
            cpu_blocks: blocks(Medium::Cpu),
            sequence: feed
                .as_ref()
                .and_then(|feed| feed.next_sequence().checked_sub(1)),
            waiting,
            batches: of(&self.batches),
            stored: of(&self.stored),
            removed: of(&self.removed),
            dropped: sent.dropped,
            replays: of(&self.replays),
            started_over: of(&self.started_over),
            refused: sent.refused + sent.expelled + router.map_or(0, Router::refused),
        }
    }
}

fn url(address: std::net::SocketAddr) -> String {
    format!("tcp://{address}")
}
