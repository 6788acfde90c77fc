//! The figures of the publication since its start.

use std::sync::atomic::{AtomicU64, Ordering};

use contextpilot_control::KvEvents;
use contextpilot_kv_events::{KvEvent, Medium};
use contextpilot_zmtp::Router;

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
        let waiting = self.inbox.count();
        let sockets = lock(&self.sockets);
        let publisher = sockets.publisher.as_ref();
        let router = sockets.router.as_ref();
        let sent = publisher
            .map(|publisher| publisher.figures())
            .unwrap_or_default();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let blocks = |medium: Medium| of(&self.blocks[medium as usize]);
        KvEvents {
            publish: publisher.map(|publisher| url(publisher.address())),
            replay: router.map(|router| url(router.address())),
            problem: sockets.problem.clone(),
            block_size: self.block_size,
            subscribers: sent.subscribers,
            gpu_blocks: blocks(Medium::Gpu),
            cpu_blocks: blocks(Medium::Cpu),
            disk_blocks: blocks(Medium::Disk),
            sequence: of(&self.next).checked_sub(1),
            waiting,
            batches: of(&self.batches),
            stored: of(&self.stored),
            removed: of(&self.removed),
            dropped: sent.dropped,
            replays: self.replays.answered(),
            started_over: of(&self.inbox.started_over),
            refused: sent.refused + sent.expelled + router.map_or(0, Router::refused),
            displaced: sent.displaced + router.map_or(0, Router::displaced),
            work_us: sent.work_us + router.map_or(0, Router::work_us),
        }
    }
}

fn url(address: std::net::SocketAddr) -> String {
    format!("tcp://{address}")
}
