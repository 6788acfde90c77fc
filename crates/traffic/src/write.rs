//! Writes requests and changes as the bytes of a file.

use crate::change::SlotChange;
use crate::frame;
use crate::history::{History, Segment};
use crate::key::{BLOCK, Key};
use crate::record::{self, Line, RequestRecord, SizeSample};
use crate::row::Row;
use crate::setup::Setup;
use crate::tokens::{Run, Tokens};

/// The result of recording something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Append these bytes to the file.
    Bytes(Vec<u8>),
    /// The file would exceed its limit, or a body is longer than a frame can be. Nothing was written:
    /// the recording ends here.
    Full,
}

/// Makes the bytes of a file, piece by piece. The caller appends each piece to the file.
#[derive(Debug)]
pub struct Writer {
    key: Key,
    history: History,
    /// The identity of the next new token.
    next: u64,
    written: u64,
    limit: u64,
    full: bool,
}

impl Writer {
    /// `limit`: the most bytes that the file may have. `keep_key`: whether the file contains its key.
    /// Also returns the beginning of the file.
    #[must_use]
    pub fn new(key: Key, keep_key: bool, limit: u64) -> (Self, Vec<u8>) {
        let mut begin = frame::header();
        if keep_key {
            begin.extend(frame::frame(record::KEY, key.bytes()).unwrap_or_default());
        }
        let writer = Self {
            key,
            history: History::new(),
            next: 0,
            written: begin.len() as u64,
            limit,
            full: false,
        };
        (writer, begin)
    }

    /// Replaces the history, to bound its memory differently. Call it before anything is recorded.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Records the server's flags. May be called again when more of them is known: the last call counts.
    pub fn setup(&mut self, setup: &Setup) -> Recorded {
        self.frame(record::SETUP, &setup.encode())
    }

    /// Records the size of a saved sequence or a checkpoint.
    pub fn size(&mut self, sample: SizeSample) -> Recorded {
        self.frame(record::SIZE, &sample.encode())
    }

    /// A keyed hash, for a text that must not be readable in the file.
    #[must_use]
    pub fn hash(&self, text: &[u8]) -> u64 {
        self.key.hash(text)
    }

    /// Records a request. `tokens`: those of its prompt, and those that were evaluated after it.
    /// `shift`: if the context was shifted, how many tokens at the beginning were kept, and how many
    /// after these were discarded.
    pub fn request(
        &mut self,
        request: RequestRecord,
        tokens: &[i32],
        shift: Option<(u32, u32)>,
    ) -> Recorded {
        if self.full {
            return Recorded::Full;
        }
        let line = Line {
            request,
            row: self.row(tokens),
        };
        let body = line.encode(self.next);
        let row = self.number(&line.row);
        if let Some((keep, gone)) = shift {
            let mut left = Tokens::new();
            left.extend(&row, 0, keep);
            left.extend(&row, keep.saturating_add(gone), row.len());
            self.history.graft(&left);
        }
        self.frame(record::REQUEST, &body)
    }

    /// Records the change of a slot. `tokens`: what the slot holds after it; empty after an erase, and
    /// where the content did not change.
    pub fn change(&mut self, change: &SlotChange, tokens: &[i32]) -> Recorded {
        if self.full {
            return Recorded::Full;
        }
        let row = self.row(tokens);
        let body = change.encode(&row, self.next);
        self.number(&row);
        self.frame(record::CHANGE, &body)
    }

    /// Splits tokens into segments. If some are new, hashes the blocks after the known prefix.
    fn row(&mut self, tokens: &[i32]) -> Row {
        let segments = self.history.relate(tokens);
        let known = segments.iter().map_while(|segment| match segment {
            Segment::Known(run) => Some(run.length as usize),
            Segment::New(_) => None,
        });
        let first_block = known.sum::<usize>() / BLOCK;
        let is_new = segments.iter().any(|s| matches!(s, Segment::New(_)));
        let mut blocks = match is_new {
            true => self.key.blocks(tokens),
            false => Vec::new(),
        };
        blocks.drain(..first_block.min(blocks.len()));
        Row {
            segments,
            first_block: first_block as u32,
            blocks,
        }
    }

    /// Gives the new tokens their identities.
    fn number(&mut self, row: &Row) -> Tokens {
        let mut tokens = Tokens::new();
        for segment in &row.segments {
            match *segment {
                Segment::Known(run) => tokens.push(run),
                Segment::New(length) => {
                    let first = self.next;
                    tokens.push(Run { first, length });
                    self.next += u64::from(length);
                }
            }
        }
        tokens
    }

    fn frame(&mut self, kind: u8, body: &[u8]) -> Recorded {
        let room = self.limit.saturating_sub(self.written);
        let bytes = frame::frame(kind, body).filter(|bytes| bytes.len() as u64 <= room);
        match bytes {
            Some(bytes) if !self.full => {
                self.written += bytes.len() as u64;
                Recorded::Bytes(bytes)
            }
            _ => {
                // Later segments would name identities of tokens that are not in the file.
                self.full = true;
                Recorded::Full
            }
        }
    }
}
