//! From the bytes of a file to traffic.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::bytes::{self, Bytes, MAGIC, Next, VERSION};
use crate::change::SlotChange;
use crate::key::{BLOCK, GRAM, Key};
use crate::record::{self, Line, RequestRecord, SizeSample, Wished};
use crate::row::{Row, Segment};
use crate::setup::{Memory, Setup};
use crate::tokens::{Run, Tokens};

/// Tokens of all rows together: a thousand prompts of a million tokens.
const MOST_TOKENS: u64 = 1 << 30;
/// Batches in which they were evaluated.
const MOST_BATCHES: u64 = 1 << 22;
/// With more slots, each batch takes longer to simulate.
const SLOTS: u32 = 64;

/// A recording.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// The server's flags. `None` if the recording ends before they are written.
    pub setup: Option<Setup>,
    /// Sizes of saved sequences and checkpoints.
    pub sizes: Vec<SizeSample>,
    /// The requests, in the order of their launches.
    pub requests: Vec<TrafficRequest>,
    /// Other changes of slots, in the order in which they happened.
    pub changes: Vec<TrafficChange>,
    /// The tokens of requests for `/infill` as they would have been with `--spm-infill`, by the numbers of their launches.
    pub suffix_first: HashMap<u64, Arc<Tokens>>,
    /// The tokens of requests whose prompts got tokens of earlier answers, as they would have been with the tokenizer's own, by
    /// the numbers of their launches: see [`RequestRecord::kept`].
    pub canonical: HashMap<u64, Arc<Tokens>>,
    /// The key of the hashes, if the file keeps it.
    pub key: Option<Key>,
    /// How many tokens decide about an identity: the token, and those before it. Two rows that have so many
    /// tokens in common anywhere have the identity of the last of them in common. Below 2: a file of an
    /// older version, in which equal tokens may have different identities, except in a common prefix.
    pub gram: u32,
    /// Why the recording could not be read to the end of the file. `None`: it was.
    pub damage: Option<Damage>,
}

impl Traffic {
    /// Whether the server has a projector for images and sounds, as far as the recording says. Then it moves no chunks.
    #[must_use]
    pub fn has_projector(&self) -> bool {
        let is_named = self.setup.as_ref().is_some_and(|setup| setup.projector);
        is_named
            || self
                .requests
                .iter()
                .any(|request| !request.record.media.is_empty())
    }
}

/// A request of a recording.
#[derive(Clone, Debug)]
pub struct TrafficRequest {
    /// All but its tokens.
    pub record: RequestRecord,
    /// The tokens of its prompt, and those that were evaluated after it.
    pub tokens: Arc<Tokens>,
    /// If the context was shifted: the first tokens that are left after the kept ones. There they have
    /// other identities than in `tokens`.
    pub junction: Tokens,
}

/// A change of a slot in a recording.
#[derive(Clone, Debug)]
pub struct TrafficChange {
    /// All but the tokens.
    pub record: SlotChange,
    /// What the slot holds after the change. Empty after an erase, and where a refused request left the
    /// slot's content as it was.
    pub tokens: Arc<Tokens>,
}

impl TrafficRequest {
    /// Tokens that were evaluated after the prompt. The last generated token is not evaluated, so it is
    /// not among them.
    #[must_use]
    pub fn generated(&self) -> u32 {
        self.tokens.len().saturating_sub(self.record.prompt)
    }
}

/// Where reading a file had to end, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Bytes from the beginning of the file.
    pub at: usize,
    /// What is wrong there.
    pub kind: DamageKind,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The file does not begin as a recording does.
    NotARecording,
    /// The file has a version that this reader does not know.
    Version(u16),
    /// The file ends within its header or a frame.
    Cut,
    /// A checksum is wrong, or a length is impossible.
    Checksum,
    /// A frame with a good checksum has impossible content.
    Content,
    /// With the next request it has more tokens, or more batches, than can be simulated.
    TooMuch,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match self.kind {
            DamageKind::NotARecording => f.write_str("this is not a recording of traffic"),
            DamageKind::Version(version) => write!(
                f,
                "the recording has version {version}, and this program reads up to {VERSION}: use the \
                 one that came with the hook that recorded it"
            ),
            DamageKind::Cut => write!(f, "the recording was cut off at byte {at}"),
            DamageKind::Checksum => write!(f, "the recording is damaged at byte {at}"),
            DamageKind::Content => write!(f, "the recording has impossible content at byte {at}"),
            DamageKind::TooMuch => write!(
                f,
                "what the recording has from byte {at} on is too much to simulate (more than {} million \
                 tokens, or millions of batches): it is left out",
                MOST_TOKENS / 1_000_000
            ),
        }
    }
}

/// Reads a recording, up to the first damage.
#[must_use]
pub fn read(bytes: &[u8]) -> Traffic {
    let mut traffic = Traffic::default();
    traffic.damage = read_into(&mut traffic, bytes);
    traffic.requests.sort_by_key(|request| request.record.order);
    traffic.changes.sort_by_key(|change| change.record.order);
    traffic
}

/// Whether a file is a recording, or the beginning of one, without any traffic: it ends before its first
/// request. `start`: all of the file, or its first bytes.
#[must_use]
pub fn is_empty(start: &[u8]) -> bool {
    let Some(mut rest) = start.strip_prefix(MAGIC).and_then(|rest| rest.get(2..)) else {
        return false;
    };
    loop {
        match bytes::next(rest) {
            Next::Frame(record::KEY | record::SETUP | record::STORE | record::NAMED, _, after) => {
                rest = after
            }
            Next::End => return true,
            _ => return false,
        }
    }
}

fn read_into(traffic: &mut Traffic, bytes: &[u8]) -> Option<Damage> {
    let damage = |at, kind| Some(Damage { at, kind });
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return damage(0, DamageKind::NotARecording);
    };
    if magic != MAGIC {
        return damage(0, DamageKind::NotARecording);
    }
    let Some((&version, mut rest)) = rest.split_first_chunk::<2>() else {
        return damage(8, DamageKind::Cut);
    };
    let version = u16::from_le_bytes(version);
    if !(1..=VERSION).contains(&version) {
        return damage(8, DamageKind::Version(version));
    }
    if version >= 3 {
        traffic.gram = GRAM as u32;
    }
    let mut identities = Identities {
        version,
        ..Identities::default()
    };
    let mut rows = Rows::default();
    let mut store = None;
    let mut loaded: HashMap<u64, u32> = HashMap::new();
    let mut wished: HashMap<u64, Wished> = HashMap::new();
    let mut kept: HashMap<u64, u32> = HashMap::new();
    let damage = loop {
        let at = bytes.len() - rest.len();
        let (kind, body) = match bytes::next(rest) {
            Next::Frame(kind, body, after) => {
                rest = after;
                (kind, body)
            }
            Next::End => break None,
            Next::Cut => break damage(at, DamageKind::Cut),
            Next::Damaged => break damage(at, DamageKind::Checksum),
        };
        let good = match kind {
            record::KEY => body
                .try_into()
                .map(|key| traffic.key = Some(Key::new(key)))
                .ok(),
            record::SETUP => Setup::decode(body).map(|setup| traffic.setup = Some(setup)),
            record::SIZE => SizeSample::decode(body).map(|size| traffic.sizes.push(size)),
            record::REQUEST => identities.request(body).map(|request| {
                rows.request(at, request.record.prompt, request.generated());
                traffic.requests.push(request);
            }),
            record::CHANGE => identities.change(body).map(|change| {
                if let Some(change) = change {
                    rows.change(at, change.tokens.len());
                    traffic.changes.push(change);
                }
            }),
            record::SUFFIX_FIRST => identities.suffix_first(body).map(|(order, tokens)| {
                traffic.suffix_first.insert(order, tokens);
            }),
            record::KEPT => identities.kept(body).map(|(order, tokens, canonical)| {
                kept.insert(order, tokens);
                traffic.canonical.insert(order, canonical);
            }),
            record::NAMED => identities.named(body),
            record::STORE => Bytes(body).number().map(|limit| store = Some(limit)),
            record::LOADED => RequestRecord::decode_loaded(body).map(|(order, tokens)| {
                loaded.insert(order, tokens);
            }),
            record::WISHED => Wished::decode(body).map(|(order, what)| {
                wished.insert(order, what);
            }),
            // A frame of a later program.
            _ => Some(()),
        };
        if good.is_none() {
            break damage(at, DamageKind::Content);
        }
    };
    let beyond = rows.beyond(traffic.setup.as_ref().unwrap_or(&Setup::default()));
    let damage = match beyond {
        Some(beyond) => {
            traffic.requests.truncate(beyond.requests);
            traffic.changes.truncate(beyond.changes);
            Some(Damage {
                at: beyond.at,
                kind: DamageKind::TooMuch,
            })
        }
        None => damage,
    };
    if let Some(setup) = &mut traffic.setup {
        setup.store = store;
    }
    // What has as many tokens as its request takes no more time to simulate.
    let of_requests = traffic.requests.iter().filter_map(|request| {
        let order = request.record.order;
        let tokens = traffic.suffix_first.remove(&order)?;
        (tokens.len() == request.tokens.len()).then_some((order, tokens))
    });
    traffic.suffix_first = of_requests.collect();
    // At most twice as much to simulate.
    let of_requests = traffic.requests.iter().filter_map(|request| {
        let order = request.record.order;
        let canonical = traffic.canonical.remove(&order)?;
        let most = request.tokens.len().saturating_mul(2);
        let lengths = request.generated()..=most;
        lengths
            .contains(&canonical.len())
            .then_some((order, canonical))
    });
    traffic.canonical = of_requests.collect();
    for request in &mut traffic.requests {
        let record = &mut request.record;
        let is_known = traffic.canonical.contains_key(&record.order);
        record.kept = kept
            .get(&record.order)
            .copied()
            .filter(|_| is_known)
            .unwrap_or(0)
            .min(record.prompt);
        let tokens = loaded.get(&record.order).copied().unwrap_or(0);
        record.loaded = tokens.min(record.evaluated);
        record.wished = wished.get(&record.order).copied().unwrap_or_default();
    }
    damage
}

/// The identities of all tokens read so far.
#[derive(Default)]
struct Identities {
    /// The version of the format.
    version: u16,
    /// All rows.
    rows: Vec<Arc<Tokens>>,
    /// The identity of the next new token, as the writer counts.
    next: u64,
    /// The tokens of each block, by its hash.
    blocks: HashMap<u64, Tokens>,
    /// Stretches that the writer wrote as new and that the hashes show to be known. The key is the
    /// first identity that the writer gave, the value the run that it stands for.
    aliases: BTreeMap<u64, Run>,
}

impl Identities {
    fn named(&mut self, body: &[u8]) -> Option<()> {
        let next = Bytes(body).number()?;
        self.next = next.max(self.next);
        (next <= record::MOST_NAMED).then_some(())
    }

    fn request(&mut self, body: &[u8]) -> Option<TrafficRequest> {
        let line = Line::decode(body, self.next, self.version)?;
        Some(TrafficRequest {
            tokens: self.row(&line.row)?,
            junction: self.tokens(&line.junction)?,
            record: line.request,
        })
    }

    /// The number of a launch, and its tokens.
    fn suffix_first(&mut self, body: &[u8]) -> Option<(u64, Arc<Tokens>)> {
        let mut bytes = Bytes(body);
        let order = bytes.number()?;
        let row = Row::decode(&mut bytes, self.next, self.version)?;
        let tokens = self.row(&row)?;
        bytes.0.is_empty().then_some((order, tokens))
    }

    /// The number of a launch, how many tokens of its prompt were kept, and its tokens without that.
    fn kept(&mut self, body: &[u8]) -> Option<(u64, u32, Arc<Tokens>)> {
        let mut bytes = Bytes(body);
        let (order, kept) = (bytes.number()?, bytes.small()?);
        let row = Row::decode(&mut bytes, self.next, self.version)?;
        let tokens = self.row(&row)?;
        bytes.0.is_empty().then_some((order, kept, tokens))
    }

    /// `Some(None)`: the change is of an unknown kind. `None`: the body is damaged.
    fn change(&mut self, body: &[u8]) -> Option<Option<TrafficChange>> {
        let (row, change) = SlotChange::decode(body, self.next, self.version)?;
        let tokens = self.row(&row)?;
        Some(change.map(|record| TrafficChange { record, tokens }))
    }

    fn row(&mut self, row: &Row) -> Option<Arc<Tokens>> {
        let tokens = Arc::new(self.tokens(row)?);
        self.rows.push(Arc::clone(&tokens));
        Some(tokens)
    }

    fn tokens(&mut self, row: &Row) -> Option<Tokens> {
        let mut tokens = self.prefix(row)?;
        let mut new = Vec::new();
        let mut next = self.next;
        for segment in &row.segments {
            match *segment {
                Segment::New(length) => {
                    let run = Run {
                        first: next,
                        length,
                    };
                    new.push((tokens.len(), run));
                    tokens.push(run);
                    next += u64::from(length);
                }
                Segment::Known(run) => {
                    if run.first.checked_add(u64::from(run.length))? > next {
                        return None;
                    }
                    self.resolve(run, &mut tokens);
                }
            }
        }
        self.next = next;
        Some(self.recognise(row, tokens, &new))
    }

    /// What a row has in common with an earlier one.
    fn prefix(&self, row: &Row) -> Option<Tokens> {
        let mut tokens = Tokens::new();
        let length = row.prefix()?;
        if length > 0 {
            let earlier = self.rows.len().checked_sub(row.like as usize)?;
            let earlier = self.rows.get(earlier)?;
            tokens.extend(earlier, 0, length);
        }
        (tokens.len() == length).then_some(tokens)
    }

    /// Appends a run, with aliases replaced by what they stand for.
    fn resolve(&self, run: Run, into: &mut Tokens) {
        let (mut at, end) = (run.first, run.first + u64::from(run.length));
        while at < end {
            let alias = self.aliases.range(..=at).next_back();
            let alias = alias.filter(|(first, to)| at - **first < u64::from(to.length));
            let (first, until) = match alias {
                Some((&begin, to)) => (to.first + (at - begin), begin + u64::from(to.length)),
                None => {
                    let next = self.aliases.range(at..).next();
                    (at, next.map_or(end, |(&begin, _)| begin))
                }
            };
            let length = (until.min(end) - at) as u32;
            into.push(Run { first, length });
            at += u64::from(length);
        }
    }

    /// Replaces the blocks whose hashes are known by the tokens that had these hashes first.
    fn recognise(&mut self, row: &Row, mut tokens: Tokens, new: &[(u32, Run)]) -> Tokens {
        for (nth, hash) in row.blocks.iter().enumerate() {
            let begin = (row.first_block as usize + nth) * BLOCK;
            let (Ok(begin), Ok(end)) = (u32::try_from(begin), u32::try_from(begin + BLOCK)) else {
                return tokens;
            };
            if end > tokens.len() {
                return tokens;
            }
            let Some(known) = self.blocks.get(hash) else {
                let mut block = Tokens::new();
                block.extend(&tokens, begin, end);
                self.blocks.insert(*hash, block);
                continue;
            };
            if tokens.matching(begin, known, 0) >= BLOCK as u32 {
                continue;
            }
            let mut whole = tokens.clone();
            whole.truncate(begin);
            whole.extend(known, 0, BLOCK as u32);
            whole.extend(&tokens, end, tokens.len());
            let mut at = begin;
            for run in known.runs() {
                alias(&mut self.aliases, new, at, *run);
                at += run.length;
            }
            tokens = whole;
        }
        tokens
    }
}

/// Notes that the new tokens at the positions `[at, at + run.length)` stand for those of `run`. `new`:
/// where the row's new tokens begin, and their identities.
fn alias(aliases: &mut BTreeMap<u64, Run>, new: &[(u32, Run)], at: u32, run: Run) {
    for &(begin, fresh) in new {
        let (from, to) = (
            begin.max(at),
            (begin + fresh.length).min(at.saturating_add(run.length)),
        );
        if from < to {
            let meant = Run {
                first: run.first + u64::from(from - at),
                length: to - from,
            };
            aliases.insert(fresh.first + u64::from(from - begin), meant);
        }
    }
}

/// The rows that were read so far, which say how much of a recording is read.
///
/// A few bytes of a file can stand for any number of tokens, and a simulation of a recording takes time and memory for
/// each token and each batch. No server has ever served what is beyond these bounds into one file.
#[derive(Debug, Default)]
struct Rows(Vec<Weight>);

/// A row that is beyond the bounds.
#[derive(Debug, PartialEq, Eq)]
struct Beyond {
    /// Where in the file it stands.
    at: usize,
    /// The requests before it.
    requests: usize,
    /// The changes before it.
    changes: usize,
}

#[derive(Debug)]
struct Weight {
    /// Where in the file it stands.
    at: usize,
    is_change: bool,
    prompt: u32,
    /// Tokens after the prompt.
    generated: u32,
}

impl Rows {
    fn request(&mut self, at: usize, prompt: u32, generated: u32) {
        self.0.push(Weight {
            at,
            is_change: false,
            prompt,
            generated,
        });
    }

    /// `tokens`: what the slot holds after it.
    fn change(&mut self, at: usize, tokens: u32) {
        self.0.push(Weight {
            at,
            is_change: true,
            prompt: tokens,
            generated: 0,
        });
    }

    /// The first row that is beyond the bounds.
    fn beyond(&self, setup: &Setup) -> Option<Beyond> {
        let batch = u64::from(setup.batch_size.min(setup.ubatch_size).max(1));
        let of_slots = u64::from((setup.parallel / SLOTS).max(1));
        let (mut tokens, mut batches) = (0_u64, 0_u64);
        let is_beyond = |weight: &Weight| {
            let (prompt, generated) = (u64::from(weight.prompt), u64::from(weight.generated));
            let alone = match setup.memory {
                Memory::Window(_) => generated,
                Memory::Full | Memory::Recurrent => 0,
            };
            tokens += prompt + generated;
            batches += (prompt.div_ceil(batch) + alone) * of_slots;
            tokens > MOST_TOKENS || batches > MOST_BATCHES
        };
        let nth = self.0.iter().position(is_beyond)?;
        let changes = self.0[..nth]
            .iter()
            .filter(|weight| weight.is_change)
            .count();
        Some(Beyond {
            at: self.0[nth].at,
            requests: nth - changes,
            changes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_bounds_is_left_out_and_what_is_before_stays() {
        let mut rows = Rows::default();
        for nth in 0..20 {
            rows.request(100 * nth, 1 << 26, 0);
            rows.change(100 * nth + 50, 0);
        }
        let usual = Setup::default();
        let beyond = |at, before| Beyond {
            at,
            requests: before,
            changes: before,
        };
        assert_eq!(rows.beyond(&usual), Some(beyond(1600, 16)));
        let small = Setup {
            ubatch_size: 8,
            ..usual.clone()
        };
        assert_eq!(rows.beyond(&small), Some(beyond(0, 0)));
        // A million requests of a conversation.
        let mut rows = Rows::default();
        (0..1_000_000).for_each(|nth| rows.request(nth, 700, 300));
        assert_eq!(rows.beyond(&usual), None);
    }
}
