//! Tokens as they are written to a file.

use crate::bytes::{Bytes, put};
use crate::key::BLOCK;
use crate::tokens::Run;

/// Tokens in a row, and in a context: far more than any model has. Beyond it, a recording is damaged.
pub(crate) const LONGEST_ROW: u32 = 1 << 26;

/// Part of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This many tokens with new identities. Their numbers continue those of the last new segment.
    New(u32),
    /// The identities of tokens that were recorded before.
    Known(Run),
}

/// A row of tokens. It begins with whole blocks of an earlier row. Of the others it has the hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// How many rows before this one the row was written that begins with the same blocks. 0: none does.
    pub(crate) like: u32,
    /// The number of these blocks. So it is the number of the first block that has a hash here.
    pub(crate) first_block: u32,
    /// What follows these blocks.
    pub(crate) segments: Vec<Segment>,
    pub(crate) blocks: Vec<u64>,
}

impl Row {
    /// The number of tokens that it has in common with the earlier row. `None`: more than 2³² − 1, so the
    /// row is damaged.
    pub(crate) fn prefix(&self) -> Option<u32> {
        match self.like {
            0 => Some(0),
            _ => self.first_block.checked_mul(BLOCK as u32),
        }
    }

    /// The number of tokens. `None`: more than 2³² − 1, so the row is damaged.
    pub(crate) fn len(&self) -> Option<u32> {
        let lengths = self.segments.iter().map(|segment| match *segment {
            Segment::New(length) => length,
            Segment::Known(run) => run.length,
        });
        lengths
            .into_iter()
            .try_fold(self.prefix()?, u32::checked_add)
    }

    /// The number of tokens with new identities.
    pub(crate) fn new_tokens(&self) -> u64 {
        let new = self.segments.iter().map(|segment| match *segment {
            Segment::New(length) => u64::from(length),
            Segment::Known(_) => 0,
        });
        new.sum()
    }

    /// `next`: the identity of the first new token. A known segment is written by its distance from the
    /// next identity.
    pub(crate) fn encode(&self, mut next: u64, into: &mut Vec<u8>) {
        put(into, u64::from(self.like));
        put(into, u64::from(self.first_block));
        put(into, self.segments.len() as u64);
        for segment in &self.segments {
            match *segment {
                Segment::New(length) => {
                    put(into, u64::from(length) << 1);
                    next += u64::from(length);
                }
                Segment::Known(run) => {
                    put(into, u64::from(run.length) << 1 | 1);
                    put(into, next.saturating_sub(run.first));
                }
            }
        }
        put(into, self.blocks.len() as u64);
        for block in &self.blocks {
            into.extend(block.to_le_bytes());
        }
    }

    /// `version`: that of the format. Up to version 2, rows name no earlier ones, and the number of the first
    /// block follows the segments.
    pub(crate) fn decode(bytes: &mut Bytes<'_>, mut next: u64, version: u16) -> Option<Self> {
        let mut row = Self::default();
        if version >= 3 {
            row.like = bytes.small()?;
            row.first_block = bytes.small()?;
        }
        for _ in 0..bytes.count()? {
            let number = bytes.number()?;
            let length = u32::try_from(number >> 1).ok()?;
            row.segments.push(match number & 1 {
                0 => {
                    next = next.checked_add(u64::from(length))?;
                    Segment::New(length)
                }
                _ => Segment::Known(Run {
                    first: next.checked_sub(bytes.number()?)?,
                    length,
                }),
            });
        }
        if version < 3 {
            row.first_block = bytes.small()?;
        }
        for _ in 0..bytes.count()? {
            row.blocks.push(bytes.word()?);
        }
        row.len().filter(|length| *length <= LONGEST_ROW)?;
        Some(row)
    }
}
