//! Asks the server how many tokens documents have, on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use contextpilot_index::Wish;

use super::behind::Behind;
use super::shared::SharedIndex;

/// Documents that may wait, and bytes of all their texts. Others are estimated from their length.
const WAITING: usize = 4096;
const WAITING_BYTES: usize = 16 << 20;

/// What is to be asked for.
pub(super) struct Wishes {
    sender: SyncSender<Wish>,
    bytes: Arc<AtomicUsize>,
}

impl Wishes {
    /// Those for which there is no more room are left out.
    pub(super) fn pass(&self, wishes: Vec<Wish>) {
        for wish in wishes {
            let length = wish.text.len();
            let before = self.bytes.fetch_add(length, Ordering::Relaxed);
            if before + length > WAITING_BYTES || self.sender.try_send(wish).is_err() {
                self.bytes.fetch_sub(length, Ordering::Relaxed);
            }
        }
    }
}

/// A thread that asks.
pub(super) fn start(server: Behind, shared: SharedIndex) -> Wishes {
    let (sender, wishes) = sync_channel(WAITING);
    let bytes = Arc::<AtomicUsize>::default();
    let waiting = Arc::clone(&bytes);
    thread::spawn(move || answer(&wishes, &waiting, &server, &shared));
    Wishes { sender, bytes }
}

fn answer(wishes: &Receiver<Wish>, waiting: &AtomicUsize, server: &Behind, shared: &SharedIndex) {
    for wish in wishes {
        // If the server does not answer, the estimate from the length stays.
        let counted = server
            .client()
            .map(|client| client.count_tokens(&wish.text));
        if let Some(Ok(tokens)) = counted {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            shared.wait().tokenized(&wish, tokens);
        }
        waiting.fetch_sub(wish.text.len(), Ordering::Relaxed);
    }
}
