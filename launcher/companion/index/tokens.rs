//! Asks the server how many tokens documents have, on a thread of its own.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use contextpilot_index::Wish;

use super::{Behind, SharedIndex};

/// Documents that may wait. Others are estimated from their length.
const WAITING: usize = 4096;

/// A thread that asks.
pub(super) fn start(server: Behind, shared: SharedIndex) -> SyncSender<Wish> {
    let (sender, wishes) = sync_channel(WAITING);
    thread::spawn(move || answer(&wishes, &server, &shared));
    sender
}

fn answer(wishes: &Receiver<Wish>, server: &Behind, shared: &SharedIndex) {
    for wish in wishes {
        // If the server does not answer, the estimate from the length stays.
        let counted = server
            .client()
            .map(|client| client.count_tokens(&wish.text));
        if let Some(Ok(tokens)) = counted {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            shared.wait().tokenized(&wish, tokens);
        }
    }
}
