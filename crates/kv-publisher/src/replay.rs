//! Replays: a router that missed batches asks for all from a number on.

use std::io;
use std::sync::Mutex;

use contextpilot_kv_events::{Batch, Feed};

use crate::shared::{lock, now};

/// The number in the last message of a replay: −1 in eight bytes, as in vLLM.
const END: [u8; 8] = [0xff; 8];

/// Answers a message with all batches from a number on. Returns false if the message is no request for
/// a replay.
pub(crate) fn answer(
    feed: &Mutex<Option<Feed>>,
    topic: &[u8],
    question: &[Vec<u8>],
    send: &mut dyn FnMut(&[&[u8]]) -> io::Result<()>,
) -> io::Result<bool> {
    // REQ sockets, and DEALER sockets that imitate them, send an empty part before the number.
    let (start, envelope) = match question {
        [empty, start] if empty.is_empty() => (start, true),
        [start] => (start, false),
        _ => return Ok(false),
    };
    let Ok(start) = <[u8; 8]>::try_from(start.as_slice()) else {
        return Ok(false);
    };
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
    Ok(true)
}
