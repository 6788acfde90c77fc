//! Writes requests and changes as the bytes of a file.

use crate::bytes::{self, Bytes, Next, put};
use crate::change::SlotChange;
use crate::history::{History, MOST_TOKENS, RecentGrams};
use crate::key::{GRAM, Key};
use crate::read::read;
use crate::record::{self, Line, RequestRecord, SizeSample};
use crate::row::Row;
use crate::setup::Setup;

/// The result of recording something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Append these bytes to the file.
    Bytes(Vec<u8>),
    /// The file would exceed its limit, or a body is longer than a frame can be. Nothing was written:
    /// the recording ends here.
    Full,
}

/// How far a recording has come, with which another process goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of the next launch.
    pub launches: u64,
    /// When it was handed over, microseconds since the recording began.
    pub ended: u64,
    /// When the recording began, milliseconds since 1970.
    pub began_ms: u64,
    /// Bytes of its file. 0: there is none.
    pub written: u64,
}

impl Progress {
    fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        for number in [self.launches, self.ended, self.began_ms, self.written] {
            put(&mut into, number);
        }
        into
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(body);
        Some(Self {
            launches: bytes.number()?,
            ended: bytes.number()?,
            began_ms: bytes.number()?,
            written: bytes.number()?,
        })
    }
}

/// Makes the bytes of a file, piece by piece. The caller appends each piece to the file.
#[derive(Debug)]
pub struct Writer {
    key: Key,
    names: Names,
    /// The identity of the next new token.
    next: u64,
    written: u64,
    limit: u64,
    full: bool,
}

/// What gives tokens their identities.
#[derive(Debug)]
enum Names {
    /// A file: rows refer to rows before them.
    History(History),
    /// What came last: each row stands by itself.
    Recent(RecentGrams),
}

impl Names {
    fn row(&mut self, key: &Key, tokens: &[i32]) -> Row {
        match self {
            Self::History(history) => history.relate(key, tokens),
            Self::Recent(grams) => grams.row(key, tokens, 0),
        }
    }

    fn part(&mut self, key: &Key, tokens: &[i32], from: usize) -> Row {
        match self {
            Self::History(history) => Row {
                segments: history.part(key, tokens, from),
                ..Row::default()
            },
            Self::Recent(grams) => grams.row(key, tokens, from),
        }
    }
}

impl Writer {
    /// `limit`: the most bytes that the file may have. `keep_key`: whether the file contains its key.
    /// Also returns the beginning of the file.
    #[must_use]
    pub fn new(key: Key, keep_key: bool, limit: u64) -> (Self, Vec<u8>) {
        let mut begin = bytes::header();
        if keep_key {
            begin.extend(bytes::frame(record::KEY, key.bytes()).unwrap_or_default());
        }
        let writer = Self {
            key,
            names: Names::History(History::new()),
            next: 0,
            written: begin.len() as u64,
            limit,
            full: false,
        };
        (writer, begin)
    }

    /// A writer for [`Recent`](crate::Recent), where rows are dropped: none refers to another. `tokens`: how many
    /// are remembered at most.
    #[must_use]
    pub fn recent(key: Key, tokens: usize) -> Self {
        Self {
            key,
            names: Names::Recent(RecentGrams::new(tokens / 2)),
            next: record::MOST_NAMED,
            written: 0,
            limit: u64::MAX,
            full: false,
        }
    }

    /// As [`Self::new`], for a file with which another process may go on: what gives tokens their identities can be
    /// [handed over](Self::handover). No row refers to another, and there are no hashes of blocks: tokens that are forgotten
    /// are new when they come again. Once [`MOST_TOKENS`] are remembered, the older half of them is forgotten.
    #[must_use]
    pub fn handed_on(key: Key, keep_key: bool, limit: u64) -> (Self, Vec<u8>) {
        let (writer, mut begin) = Self::new(key.clone(), keep_key, limit);
        begin.extend(record::named());
        let writer = Self {
            written: begin.len() as u64,
            limit,
            ..Self::recent(writer.key, MOST_TOKENS)
        };
        (writer, begin)
    }

    /// What another process needs to go on with a file that is [handed on](Self::handed_on).
    #[must_use]
    pub fn handover(&self, progress: &Progress) -> Vec<u8> {
        let mut bytes = bytes::header();
        bytes.extend(self.identities(progress));
        bytes
    }

    /// Goes on with what another process handed over. `tokens`: how many are remembered at most. `None`: it is damaged, or of
    /// another version.
    #[must_use]
    pub fn resume(tokens: usize, handover: &[u8]) -> Option<(Self, Progress)> {
        let traffic = read(handover);
        if traffic.damage.is_some() {
            return None;
        }
        let mut writer = Self::recent(traffic.key?, tokens);
        let mut progress = None;
        let mut rest = handover.get(bytes::header().len()..)?;
        while let Next::Frame(kind, body, after) = bytes::next(rest) {
            rest = after;
            match kind {
                record::BEGAN => progress = Progress::decode(body),
                record::GRAMS => writer.remember(body)?,
                _ => {}
            }
        }
        Some((writer, progress?))
    }

    /// Writes to a file of so many bytes, up to the limit.
    #[must_use]
    pub fn appending(mut self, written: u64, limit: u64) -> Self {
        (self.written, self.limit) = (written, limit);
        self
    }

    /// How far it has come, its key, and its grams, as frames.
    pub(crate) fn identities(&self, progress: &Progress) -> Vec<u8> {
        /// So many in a frame.
        const GRAMS: usize = 1 << 16;
        let Names::Recent(grams) = &self.names else {
            return Vec::new();
        };
        let mut bytes = bytes::frame(record::BEGAN, &progress.encode()).unwrap_or_default();
        bytes.extend(bytes::frame(record::KEY, self.key.bytes()).unwrap_or_default());
        let all: Vec<(u64, u64)> = grams.all().collect();
        for some in all.chunks(GRAMS) {
            let mut body = Vec::with_capacity(16 * some.len());
            for (gram, identity) in some {
                body.extend(gram.to_le_bytes());
                body.extend(identity.to_le_bytes());
            }
            bytes.extend(bytes::frame(record::GRAMS, &body).unwrap_or_default());
        }
        bytes
    }

    /// Goes on with the identities of another writer. `body`: of a frame of [`Self::identities`]. `None`: it is damaged.
    fn remember(&mut self, body: &[u8]) -> Option<()> {
        let Names::Recent(grams) = &mut self.names else {
            return None;
        };
        let mut bytes = Bytes(body);
        while !bytes.0.is_empty() {
            let (gram, identity) = (bytes.word()?, bytes.word()?);
            if identity >= record::MOST_NAMED {
                return None;
            }
            grams.remember(gram, identity);
        }
        Some(())
    }

    /// Replaces the history, to bound its memory differently. Call it before anything is recorded.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.names = Names::History(history);
        self
    }

    /// Records the server's flags. May be called again when more of them is known: the last call counts.
    pub fn setup(&mut self, setup: &Setup) -> Recorded {
        self.frame(record::SETUP, &setup.encode())
    }

    /// Records that the server has a prefix store, and how many bytes that may take.
    pub fn store(&mut self, limit: u64) -> Recorded {
        let mut body = Vec::new();
        put(&mut body, limit);
        self.frame(record::STORE, &body)
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
        mut request: RequestRecord,
        tokens: &[i32],
        shift: Option<(u32, u32)>,
    ) -> Recorded {
        if self.full {
            return Recorded::Full;
        }
        let mut bytes = Vec::new();
        for (kind, body) in request.before() {
            match self.frame(kind, &body) {
                Recorded::Bytes(frame) => bytes.extend(frame),
                Recorded::Full => return Recorded::Full,
            }
        }
        let row = self.names.row(&self.key, tokens);
        let junction = shift.map(|(keep, gone)| {
            request.keep = keep;
            request.gone = gone;
            self.junction(tokens, keep as usize, gone as usize)
        });
        let line = Line {
            request,
            row,
            junction: junction.unwrap_or_default(),
        };
        let body = line.encode(self.next);
        self.next += line.row.new_tokens() + line.junction.new_tokens();
        match self.frame(record::REQUEST, &body) {
            Recorded::Bytes(request) => {
                bytes.extend(request);
                Recorded::Bytes(bytes)
            }
            Recorded::Full => Recorded::Full,
        }
    }

    /// Records a request's tokens as they would have been with `--spm-infill`. `order`: the number of its launch.
    pub fn suffix_first(&mut self, order: u64, tokens: &[i32]) -> Recorded {
        self.other_tokens(record::SUFFIX_FIRST, &[order], tokens)
    }

    /// Records that of a prompt so many tokens were kept as they were generated, and the request's tokens as they would have been
    /// with the tokenizer's own. `order`: the number of its launch.
    pub fn kept(&mut self, order: u64, kept: u32, tokens: &[i32]) -> Recorded {
        self.other_tokens(record::KEPT, &[order, kept.into()], tokens)
    }

    /// What else a request's tokens could have been. `numbers`: what stands before them.
    fn other_tokens(&mut self, kind: u8, numbers: &[u64], tokens: &[i32]) -> Recorded {
        if self.full {
            return Recorded::Full;
        }
        let row = self.names.row(&self.key, tokens);
        let mut body = Vec::new();
        numbers.iter().for_each(|number| put(&mut body, *number));
        row.encode(self.next, &mut body);
        self.next += row.new_tokens();
        self.frame(kind, &body)
    }

    /// Records the change of a slot. `tokens`: what the slot holds after it; empty after an erase, and
    /// where the content did not change.
    pub fn change(&mut self, change: &SlotChange, tokens: &[i32]) -> Recorded {
        if self.full {
            return Recorded::Full;
        }
        let row = self.names.row(&self.key, tokens);
        let body = change.encode(&row, self.next);
        self.next += row.new_tokens();
        self.frame(record::CHANGE, &body)
    }

    /// The tokens after the kept ones, once the shift has moved them there: as many as have other tokens
    /// before them than they had.
    fn junction(&mut self, tokens: &[i32], keep: usize, gone: usize) -> Row {
        let (keep, moved) = (keep.min(tokens.len()), keep.saturating_add(gone));
        let moved = tokens.get(moved..).unwrap_or_default();
        let moved = &moved[..moved.len().min(GRAM - 1)];
        let left = [&tokens[..keep], moved].concat();
        self.names.part(&self.key, &left, keep)
    }

    fn frame(&mut self, kind: u8, body: &[u8]) -> Recorded {
        let room = self.limit.saturating_sub(self.written);
        let bytes = bytes::frame(kind, body).filter(|bytes| bytes.len() as u64 <= room);
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
