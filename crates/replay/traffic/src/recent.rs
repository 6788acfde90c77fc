//! What was recorded last, in bounded memory.

use std::collections::VecDeque;

use crate::bytes::{self, Next};
use crate::record;
use crate::write::{Progress, Writer};

/// Bytes that a token takes in each half of the tables of identities: an entry, with its share of a table that has just
/// doubled.
const EACH_TOKEN: usize = 17 * 16 / 7;

/// The rows that a [`Writer::recent`](crate::Writer::recent) wrote last. The oldest are dropped.
#[derive(Debug)]
pub struct Recent {
    /// What a server is, and the sizes of its states: of the former the last counts.
    server: Vec<(u8, Box<[u8]>)>,
    rows: VecDeque<Box<[u8]>>,
    bytes: usize,
    limit: usize,
}

/// What another process [handed over](Recent::handover).
#[derive(Debug)]
pub struct Resumed {
    /// Its rows.
    pub recent: Recent,
    /// Gives tokens the identities that they had.
    pub writer: Writer,
    /// How far it had come.
    pub progress: Progress,
}

impl Recent {
    /// `limit`: bytes, with those of the writer's tables, which get three quarters of them. Also returns how many tokens
    /// the writer may remember.
    #[must_use]
    pub fn new(limit: usize) -> (Self, usize) {
        let rows = limit / 4;
        let recent = Self {
            server: Vec::new(),
            rows: VecDeque::new(),
            bytes: 0,
            limit: rows,
        };
        (recent, (limit - rows) / EACH_TOKEN)
    }

    /// Adds what was written at a time. What is larger than all that there is room for is left out.
    pub fn push(&mut self, written: &[u8]) {
        let mut row = Vec::new();
        let mut rest = written;
        while let Next::Frame(kind, _, after) = bytes::next(rest) {
            let frame = &rest[..rest.len() - after.len()];
            rest = after;
            if is_of_row(kind) {
                row.extend(frame)
            } else {
                self.know(kind, frame)
            }
        }
        if row.is_empty() {
            return;
        }
        self.bytes += cost(&row);
        self.rows.push_back(row.into());
        while self.bytes > self.limit {
            let Some(oldest) = self.rows.pop_front() else {
                break;
            };
            self.bytes -= cost(&oldest);
        }
    }

    /// Keeps what is no row.
    fn know(&mut self, kind: u8, frame: &[u8]) {
        let is_size = kind == record::SIZE;
        let known = self.server.iter_mut().find(|(other, _)| *other == kind);
        match known.filter(|_| !is_size) {
            Some((_, old)) => *old = frame.into(),
            None => self.server.push((kind, frame.into())),
        }
    }

    /// What the next process needs to go on with this: a recording with the writer's key and identities.
    #[must_use]
    pub fn handover(&self, writer: &Writer, progress: &Progress) -> Vec<u8> {
        let mut bytes = self.recording(&[]);
        bytes.extend(writer.identities(progress));
        bytes
    }

    /// Goes on with what another process [handed over](Self::handover). `limit`: as for [`Self::new`]. `None`: it is damaged,
    /// or of another version.
    #[must_use]
    pub fn resume(limit: usize, handover: &[u8]) -> Option<Resumed> {
        let (mut recent, tokens) = Self::new(limit);
        let (writer, progress) = Writer::resume(tokens, handover)?;
        let mut row = Vec::new();
        let mut rest = handover.get(bytes::header().len()..)?;
        while let Next::Frame(kind, _, after) = bytes::next(rest) {
            let frame = &rest[..rest.len() - after.len()];
            rest = after;
            match kind {
                // The server tells anew what it is.
                record::NAMED | record::SETUP | record::STORE => {}
                // The writer has these.
                record::KEY | record::BEGAN | record::GRAMS => {}
                _ if is_of_row(kind) => {
                    row.extend(frame);
                    // The last frame of its row.
                    if matches!(kind, record::REQUEST | record::CHANGE) {
                        recent.push(&std::mem::take(&mut row));
                    }
                }
                _ => recent.know(kind, frame),
            }
        }
        Some(Resumed {
            recent,
            writer,
            progress,
        })
    }

    /// The bytes of a recording. `open`: what was written of requests that are not over.
    #[must_use]
    pub fn recording(&self, open: &[u8]) -> Vec<u8> {
        let mut bytes = bytes::header();
        bytes.extend(record::named());
        let server = self.server.iter().map(|(_, frame)| frame);
        for frame in server.chain(&self.rows) {
            bytes.extend(frame);
        }
        bytes.extend(open);
        bytes
    }
}

/// Whether a frame is about one request or one change, and not about the server.
fn is_of_row(kind: u8) -> bool {
    matches!(
        kind,
        record::REQUEST
            | record::CHANGE
            | record::LOADED
            | record::WISHED
            | record::SUFFIX_FIRST
            | record::KEPT
    )
}

/// What a row takes, with its place in the list and the overhead of its allocation.
fn cost(row: &[u8]) -> usize {
    const AROUND: usize = 2 * size_of::<Box<[u8]>>() + 16;
    row.len() + AROUND
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::read::read;
    use crate::record::{RequestRecord, Wished};
    use crate::setup::Setup;
    use crate::write::Recorded;

    fn request(order: u64, tokens: usize) -> RequestRecord {
        RequestRecord {
            order,
            prompt: tokens as u32,
            evaluated: tokens as u32,
            wished: Wished {
                cache_reuse: Some(order as u32),
                ..Wished::default()
            },
            ..RequestRecord::default()
        }
    }

    fn bytes(recorded: Recorded) -> Vec<u8> {
        match recorded {
            Recorded::Bytes(bytes) => bytes,
            Recorded::Full => panic!("it has no limit"),
        }
    }

    #[test]
    fn the_oldest_rows_are_dropped_and_the_others_keep_what_they_have_in_common() {
        let (mut recent, tokens) = Recent::new(1 << 15);
        assert!(tokens > 600 && recent.limit == 1 << 13, "{tokens}");
        let mut writer = Writer::recent(Key::new([3; 16]), tokens);
        recent.push(&bytes(writer.setup(&Setup::default())));
        recent.push(&bytes(writer.setup(&Setup {
            parallel: 7,
            ..Setup::default()
        })));
        for order in 0..500 {
            let mut prompt: Vec<i32> = (0..100).collect();
            prompt.extend((0..20).map(|nth| 1000 + order as i32 * 20 + nth));
            recent.push(&bytes(writer.request(request(order, 120), &prompt, None)));
            assert!(recent.bytes <= recent.limit);
        }
        let mut prompt: Vec<i32> = (0..100).collect();
        prompt.push(7);
        let open = bytes(writer.request(request(500, 101), &prompt, None));
        let traffic = read(&recent.recording(&open));
        assert_eq!(traffic.damage, None);
        assert_eq!(traffic.setup.map(|setup| setup.parallel), Some(7));
        let orders: Vec<u64> = traffic
            .requests
            .iter()
            .map(|request| request.record.order)
            .collect();
        assert_eq!(orders.last(), Some(&500));
        assert!(orders.len() > 20 && orders.len() < 400, "{}", orders.len());
        for request in &traffic.requests {
            let wished = request.record.wished.cache_reuse;
            assert_eq!(wished, Some(request.record.order as u32));
        }
        let first = &traffic.requests[0].tokens;
        for other in &traffic.requests[1..] {
            assert_eq!(first.common_prefix(&other.tokens), 100);
        }
    }

    /// What a process hands over is gone on with to the token, also in the middle of a block and behind a difference.
    #[test]
    fn another_process_goes_on_with_the_same_identities() {
        let (mut recent, tokens) = Recent::new(1 << 15);
        let mut writer = Writer::recent(Key::new([4; 16]), tokens);
        recent.push(&bytes(writer.setup(&Setup::default())));
        let first: Vec<i32> = (0..150).collect();
        let mut record = request(7, 150);
        (
            record.arrived,
            record.launched,
            record.prompted,
            record.ended,
        ) = (10, 20, 30, 40);
        recent.push(&bytes(writer.request(record, &first, None)));
        let progress = Progress {
            launches: 8,
            ended: 55,
            began_ms: 1_000,
            written: 0,
        };
        let handed = recent.handover(&writer, &progress);
        let resumed = Recent::resume(1 << 15, &handed).expect("it is whole");
        assert_eq!(resumed.progress, progress);
        let Resumed {
            mut recent,
            mut writer,
            ..
        } = resumed;
        recent.push(&bytes(writer.setup(&Setup::default())));
        let mut second = first.clone();
        second[101] = 5_000;
        recent.push(&bytes(writer.request(request(8, 150), &second, None)));
        let traffic = read(&recent.recording(&[]));
        assert_eq!(traffic.damage, None);
        let [one, two] = [0, 1].map(|nth| &traffic.requests[nth].tokens);
        assert_eq!(one.common_prefix(two), 101);
        assert_eq!(one.at(149), two.at(149));
        assert_ne!(one.at(110), two.at(110));
        let wished = |nth: usize| traffic.requests[nth].record.wished.cache_reuse;
        assert_eq!((wished(0), wished(1)), (Some(7), Some(8)));
        for cut in [9, 40, handed.len() - 1] {
            assert!(Recent::resume(1 << 15, &handed[..cut]).is_none(), "{cut}");
        }
    }

    #[test]
    fn another_process_goes_on_with_what_prompts_would_have_been_without_kept_tokens() {
        let (mut recent, tokens) = Recent::new(1 << 15);
        let mut writer = Writer::recent(Key::new([4; 16]), tokens);
        recent.push(&bytes(writer.setup(&Setup::default())));
        for order in 0..2 {
            let prompt: Vec<i32> = (0..150 + order as i32).collect();
            let mut canonical = prompt.clone();
            canonical[70] = 900 + order as i32;
            let mut row = bytes(writer.kept(order, 3, &canonical));
            row.extend(bytes(writer.request(
                request(order, prompt.len()),
                &prompt,
                None,
            )));
            recent.push(&row);
        }
        let handed = recent.handover(&writer, &Progress::default());
        let resumed = Recent::resume(1 << 15, &handed).expect("it is whole");
        let [before, after] = [&recent, &resumed.recent].map(|recent| read(&recent.recording(&[])));
        assert_eq!(after.damage, None);
        for (before, after) in before.requests.iter().zip(&after.requests) {
            assert_eq!((before.record.kept, after.record.kept), (3, 3));
            assert_eq!(before.tokens, after.tokens);
        }
        assert_eq!(before.canonical.len(), 2);
        assert_eq!(before.canonical, after.canonical);
    }
}
