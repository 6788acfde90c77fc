//! Reads small whole numbers.

use super::member::Member;

/// The members of a body that are whole numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    /// `id_slot`; `None` if there is none, or it is not a whole number.
    pub slot: Option<i32>,
    /// `n_cache_reuse`; `None` likewise.
    pub cache_reuse: Option<i32>,
    /// `n_keep`; 0 likewise.
    pub keep: i32,
    /// `n_discard`; 0 likewise.
    pub discard: i32,
}

/// The same members, as far as they were read.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    slot: Option<Number>,
    cache_reuse: Option<Number>,
    keep: Option<Number>,
    discard: Option<Number>,
}

impl Reading {
    pub(super) const fn new() -> Self {
        Self {
            slot: None,
            cache_reuse: None,
            keep: None,
            discard: None,
        }
    }

    pub(super) fn number_of(&mut self, member: Member) -> Option<&mut Option<Number>> {
        match member {
            Member::Slot => Some(&mut self.slot),
            Member::CacheReuse => Some(&mut self.cache_reuse),
            Member::Keep => Some(&mut self.keep),
            Member::Discard => Some(&mut self.discard),
            _ => None,
        }
    }

    pub(super) fn get(&self) -> Numbers {
        let get = |number: &Option<Number>| number.as_ref().and_then(Number::get);
        Numbers {
            slot: get(&self.slot),
            cache_reuse: get(&self.cache_reuse),
            keep: get(&self.keep).unwrap_or(0),
            discard: get(&self.discard).unwrap_or(0),
        }
    }
}

/// Room for the longest number of 32 bits.
const BYTES: usize = 11;

/// The text of a number, as it streams past.
#[derive(Debug, Clone, Default)]
pub(super) struct Number {
    text: [u8; BYTES],
    length: usize,
    /// A blank has followed.
    ended: bool,
    /// It is not a number, not whole, or too large.
    refused: bool,
}

impl Number {
    pub(super) fn push(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => self.ended = true,
            b'0'..=b'9' | b'-' if !self.ended && self.length < BYTES => {
                self.text[self.length] = byte;
                self.length += 1;
            }
            _ => self.refused = true,
        }
    }

    pub(super) fn get(&self) -> Option<i32> {
        let text = std::str::from_utf8(&self.text[..self.length]).ok()?;
        text.parse().ok().filter(|_| !self.refused)
    }
}
