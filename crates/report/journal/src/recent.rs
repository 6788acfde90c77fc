//! The ids that have just arrived, in memory that outlives the process.
//!
//! The journal is written a few times a second. Ids that arrive in between are here: in a ring
//! of slots, in a file on a `tmpfs` that the server has mapped shared. The thread that received
//! a request puts its id there by plain stores, before the request can be answered. Whatever
//! ends the process, the stores that it made stay in the file, and the next start reads them.
//! Once the journal has an id, its slot is released.
//!
//! ```text
//! slot   number: u64 (0: empty) | length: u16 | 0: u16 | CRC: u32 | id (up to 112 bytes)
//! ```
//! The checksum covers the number, the length and the id, the format, and the journal's
//! identity. So a slot that a kill left half written, or that two threads wrote at once, reads
//! as empty. The order in which the stores become visible does not matter.
//!
//! **Why a `tmpfs`, and not the journal's own file, mapped.** A store into a mapped file on a
//! disk may have to wait after its page was written back: for a commit of the file system, or
//! for a snapshot that freezes it. If the disk fails, or a copy-on-write file system is full,
//! the store ends the server with SIGBUS. Pages of a `tmpfs` that were allocated beforehand
//! have neither problem. They do not outlive the machine, but after a power cut the journal's
//! own file is some seconds behind as well. One risk remains: to truncate the file ends the
//! server, too. Its folder is closed to all but the user who runs the server, and that user
//! can end it more simply.
//!
//! If there is no such memory, or an id is too long for a slot, the caller has the journal
//! written as soon as it can instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Identity;

pub(crate) mod file;

/// Slots of the ring. They are released when the journal was written: up to four times a
/// second, or when half of the slots are taken.
pub(crate) const SLOTS: usize = 2048;
const SLOT_WORDS: usize = 16;
const HEAD_WORDS: usize = 2;
/// The longest id that fits, bytes.
const MAX_BYTES: usize = (SLOT_WORDS - HEAD_WORDS) * 8;
const WORDS: usize = SLOTS * SLOT_WORDS;
/// The size of all slots, bytes.
pub const BYTES: usize = WORDS * 8;
const FORMAT: &[u8] = b"contextpilot recent 1";

/// Maps this many bytes of a file as shared memory, for the life of the process. The caller
/// supplies it: it takes unsafe code, which this crate does not have.
pub type Map = fn(&std::fs::File, usize) -> std::io::Result<&'static [AtomicU64]>;

/// The ring. Any thread may put ids into it, without a lock and without a system call.
#[derive(Clone, Copy, Debug)]
pub struct Recent {
    words: &'static [AtomicU64],
    /// The checksum of the format and the identity. The checksum of each slot continues from it.
    seed: u32,
}

impl Recent {
    /// `None`: the memory is too small.
    pub(crate) fn new(words: &'static [AtomicU64], identity: &Identity) -> Option<Self> {
        let seed = seed(identity);
        (words.len() >= WORDS).then_some(Self { words, seed })
    }

    /// Keeps the id of a request. Each request has a number of its own, counted from 1. An id
    /// that was put into the same slot a whole ring earlier is overwritten. Returns false if the
    /// id is not kept: it is empty or too long, or the number is 0.
    pub fn note(&self, number: u64, id: &str) -> bool {
        if id.is_empty() || id.len() > MAX_BYTES || number == 0 {
            return false;
        }
        let [tag, head, body @ ..] = self.slot(number) else {
            return false;
        };
        // While the slot is written, it no longer counts as that of the earlier request.
        tag.store(0, Ordering::Relaxed);
        for (word, bytes) in body.iter().zip(id.as_bytes().chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        let length = id.len() as u16;
        let crc = checksum(self.seed, number, length, id.as_bytes());
        head.store(u64::from(length) | u64::from(crc) << 32, Ordering::Relaxed);
        tag.store(number, Ordering::Release);
        true
    }

    /// Whether the id of this request is kept.
    pub fn holds(&self, number: u64) -> bool {
        let tag = self.slot(number).first();
        number != 0 && tag.is_some_and(|tag| tag.load(Ordering::Acquire) == number)
    }

    /// Releases the slot of this request: the journal has its id.
    pub fn release(&self, number: u64) {
        if let Some(tag) = self.slot(number).first() {
            // A later request may have the slot by now: then it stays as it is.
            let _ = tag.compare_exchange(number, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether two requests are at least half a ring apart, so that the slot of the earlier one will
    /// soon be used again.
    pub fn is_far(number: u64, later: u64) -> bool {
        number.abs_diff(later) >= SLOTS as u64 / 2
    }

    fn slot(&self, number: u64) -> &'static [AtomicU64] {
        let first = (number % SLOTS as u64) as usize * SLOT_WORDS;
        self.words
            .get(first..first + SLOT_WORDS)
            .unwrap_or_default()
    }
}

/// The ids in the ring of a dead process, in the order in which they came.
pub(crate) fn read(bytes: &[u8], identity: &Identity) -> Vec<Arc<str>> {
    let seed = seed(identity);
    let mut found: Vec<(u64, Arc<str>)> = bytes
        .chunks_exact(SLOT_WORDS * 8)
        .take(SLOTS)
        .filter_map(|slot| in_slot(slot, seed))
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, id)| id).collect()
}

fn in_slot(slot: &[u8], seed: u32) -> Option<(u64, Arc<str>)> {
    let (number, rest) = slot.split_first_chunk()?;
    let number = u64::from_le_bytes(*number);
    let (length, rest) = rest.split_first_chunk()?;
    let length = u16::from_le_bytes(*length);
    let ([0, 0], rest) = rest.split_first_chunk()? else {
        return None;
    };
    let (crc, body) = rest.split_first_chunk()?;
    let id = body.get(..usize::from(length))?;
    let right = checksum(seed, number, length, id) == u32::from_le_bytes(*crc);
    let id = std::str::from_utf8(id).ok()?;
    (number != 0 && right && !id.is_empty()).then(|| (number, id.into()))
}

fn seed(identity: &Identity) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(FORMAT);
    crc.update(identity.bytes());
    crc.finalize()
}

fn checksum(seed: u32, number: u64, length: u16, id: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new_with_initial(seed);
    crc.update(&number.to_le_bytes());
    crc.update(&length.to_le_bytes());
    crc.update(id);
    crc.finalize()
}

#[cfg(test)]
mod tests;
