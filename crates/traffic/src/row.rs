//! Tokens as they are written to a file.

use crate::bytes::{Bytes, put};
use crate::history::Segment;
use crate::tokens::Run;

/// The segments of a row of tokens. If some are new, also the hashes of its whole blocks, from the
/// first that does not lie within the known prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) segments: Vec<Segment>,
    /// The number of the first block that has a hash here.
    pub(crate) first_block: u32,
    pub(crate) blocks: Vec<u64>,
}

impl Row {
    /// The number of tokens. `None`: more than 2³² − 1, so the row is damaged.
    pub(crate) fn len(&self) -> Option<u32> {
        let lengths = self.segments.iter().map(|segment| match *segment {
            Segment::New(length) => length,
            Segment::Known(run) => run.length,
        });
        lengths.into_iter().try_fold(0, u32::checked_add)
    }

    /// `next`: the identity of the first new token. A known segment is written by its distance from the
    /// next identity.
    pub(crate) fn encode(&self, mut next: u64, into: &mut Vec<u8>) {
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
        put(into, u64::from(self.first_block));
        put(into, self.blocks.len() as u64);
        for block in &self.blocks {
            into.extend(block.to_le_bytes());
        }
    }

    pub(crate) fn decode(bytes: &mut Bytes<'_>, mut next: u64) -> Option<Self> {
        let mut row = Self::default();
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
        row.first_block = bytes.small()?;
        for _ in 0..bytes.count()? {
            row.blocks.push(bytes.word()?);
        }
        row.len().map(|_| row)
    }
}
