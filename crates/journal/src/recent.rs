//! The ids that have just arrived, in memory that outlives the process.
//!
//! The journal is written a few times a second. What comes in between is here: a ring of
//! slots in a file on a `tmpfs`, mapped shared by the server. An id is put there by plain
//! stores, on the thread that received it, before anybody can be answered. Whatever ends
//! the process, the stores that it made stay in the file, and the next start reads them.
//! Once the journal has an id, its slot is released.
//!
//! ```text
//! slot   number: u64 (0: empty) | length: u16 | 0: u16 | CRC: u32 | id (up to 112 bytes)
//! ```
//! The checksum covers all of it, the format and the journal's identity. So a slot that a
//! kill left half written, or that two threads wrote at once, reads as empty, and no order
//! of the stores has to be relied on.
//!
//! **Why a `tmpfs`**, and not the journal itself, mapped. Whoever stores into a file on a
//! disk may have to wait, when a page was written back and is stored into again: for a
//! commit of the file system, for a snapshot that freezes it. And such a store is answered
//! with SIGBUS, which ends the server, when the disk fails or a file system that copies on
//! write is full. Pages of a `tmpfs` that were allocated beforehand have neither problem.
//! They do not outlive the machine; but after a power cut the journal itself is some
//! seconds behind. What remains is somebody who truncates the file: its folder is closed
//! to all but the user who runs the server, who can end it more simply.
//!
//! Where there is no such memory, or an id is too long for a slot, the caller is told so,
//! and has the journal written at once instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Identity;
use crate::record::Crc;

pub(crate) mod file;

/// Slots of the ring. They are released four times a second, or when half of them are
/// taken.
pub(crate) const SLOTS: usize = 2048;
const SLOT_WORDS: usize = 16;
const HEAD_WORDS: usize = 2;
/// The longest id that fits, bytes.
const MAX_BYTES: usize = (SLOT_WORDS - HEAD_WORDS) * 8;
const WORDS: usize = SLOTS * SLOT_WORDS;
/// Of all slots.
pub const BYTES: usize = WORDS * 8;
const FORMAT: &[u8] = b"contextpilot recent 1";

/// Lends the content of a file of this many bytes, as shared memory, for the life of the
/// process. That takes unsafe code, which this crate is without.
pub type Map = fn(&std::fs::File, usize) -> std::io::Result<&'static [AtomicU64]>;

/// The ring. Any thread may put ids into it: that takes no lock and no call of the system.
#[derive(Clone, Copy, Debug)]
pub struct Recent {
    words: &'static [AtomicU64],
    /// The checksum's beginning.
    seed: Crc,
}

impl Recent {
    /// `None`: the memory is too small.
    pub(crate) fn new(words: &'static [AtomicU64], identity: &Identity) -> Option<Self> {
        let seed = seed(identity);
        (words.len() >= WORDS).then_some(Self { words, seed })
    }

    /// Keeps the id of the request of this number, which no other one has; numbers
    /// are given in turn, from 1. The id of a request that came a whole ring earlier
    /// gives way. False: it is empty or too long, and not kept.
    pub fn note(&self, number: u64, id: &str) -> bool {
        if id.is_empty() || id.len() > MAX_BYTES || number == 0 {
            return false;
        }
        let [tag, head, body @ ..] = self.slot(number) else {
            return false;
        };
        // While it is written it is not that of the earlier one any more.
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

    /// Whether that request's id is kept.
    pub fn holds(&self, number: u64) -> bool {
        let tag = self.slot(number).first();
        number != 0 && tag.is_some_and(|tag| tag.load(Ordering::Acquire) == number)
    }

    /// That request's id need not be kept any more.
    pub fn release(&self, number: u64) {
        if let Some(tag) = self.slot(number).first() {
            // Unless a later one has the slot by now.
            let _ = tag.compare_exchange(number, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether so many numbers later the slots are in use again before long.
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

/// The ids in what a process left, in the order in which they came.
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

fn in_slot(slot: &[u8], seed: Crc) -> Option<(u64, Arc<str>)> {
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

fn seed(identity: &Identity) -> Crc {
    Crc::new().over(FORMAT).over(identity.bytes())
}

fn checksum(seed: Crc, number: u64, length: u16, id: &[u8]) -> u32 {
    let crc = seed.over(&number.to_le_bytes());
    crc.over(&length.to_le_bytes()).over(id).value()
}

#[cfg(test)]
mod tests;
