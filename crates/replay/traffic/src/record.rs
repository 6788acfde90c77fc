//! What the bodies of frames hold.

use crate::bytes::{self, Bytes, put, put_signed};
use crate::row::Row;

/// 36 years in microseconds. What is later is damage: sums of times must fit into 64 bits.
pub(crate) const LATEST: u64 = 1 << 50;
/// Launches in a recording.
pub(crate) const MOST_LAUNCHES: u64 = 1 << 32;

pub(crate) const KEY: u8 = 1;
pub(crate) const SETUP: u8 = 2;
pub(crate) const SIZE: u8 = 3;
pub(crate) const REQUEST: u8 = 4;
/// Since version 2 of the format.
pub(crate) const CHANGE: u8 = 5;
/// Only in recordings of servers with a prefix store. Readers that know no stores leave these out.
pub(crate) const STORE: u8 = 6;
pub(crate) const LOADED: u8 = 7;
/// Only of requests that wish something. Readers that know no wishes leave these out.
pub(crate) const WISHED: u8 = 8;
/// Only in [recent](crate::Recent) traffic: identities up to this number are named without having been new before.
pub(crate) const NAMED: u8 = 9;
/// Only of requests for `/infill`. Since version 4 of the format.
pub(crate) const SUFFIX_FIRST: u8 = 10;
/// Only of prompts that got tokens of earlier answers. Since version 5 of the format.
pub(crate) const KEPT: u8 = 11;
/// Only in what a process hands over ([`Writer`](crate::Writer::handover)): grams and their identities.
pub(crate) const GRAMS: u8 = 12;
/// Only there: how far the recording had come ([`Progress`](crate::Progress)).
pub(crate) const BEGAN: u8 = 13;
/// More tokens than a server evaluates in its life.
pub(crate) const MOST_NAMED: u64 = 1 << 48;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeKind {
    /// The state of a sequence, as the host prompt cache holds it.
    State,
    /// A context checkpoint.
    Checkpoint,
}

/// The frame that says that rows name identities which were given before.
pub(crate) fn named() -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, MOST_NAMED);
    bytes::frame(NAMED, &body).unwrap_or_default()
}

/// How large a saved sequence or a checkpoint was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeSample {
    /// What was measured.
    pub kind: SizeKind,
    /// Tokens in it.
    pub tokens: u32,
    /// Its size in bytes.
    pub bytes: u64,
}

impl SizeSample {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut into = vec![u8::from(self.kind == SizeKind::Checkpoint)];
        put(&mut into, u64::from(self.tokens));
        put(&mut into, self.bytes);
        into
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(body);
        let kind = match bytes.small()? {
            0 => SizeKind::State,
            1 => SizeKind::Checkpoint,
            _ => return None,
        };
        Some(Self {
            kind,
            tokens: bytes.small()?,
            bytes: bytes.number()?,
        })
    }
}

/// One prompt that a slot took on, and what became of it. Times are microseconds since the
/// recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRecord {
    /// The number of its launch, from 0. Launches of requests that are refused count too.
    pub order: u64,
    /// When its task was numbered, before it entered the server's queue.
    pub arrived: u64,
    /// When a slot took it on.
    pub launched: u64,
    /// When the last batch of its prompt was evaluated.
    pub prompted: u64,
    /// When the last of its tokens was evaluated.
    pub ended: u64,
    /// The slot that took it on.
    pub slot: u32,
    /// The slot that the client asked for.
    pub id_slot: Option<u32>,
    /// It says `"cache_prompt": false`.
    pub uncached: bool,
    /// It is an embedding or a reranking. The server reuses nothing for it, and does not exchange the
    /// slot's content with the host prompt cache.
    pub embedding: bool,
    /// It is a further answer to a prompt (`n`): its prompt was copied from another slot.
    pub child: bool,
    /// Its prompt was not evaluated to the end: the client left before.
    pub abandoned: bool,
    /// The server compares its LoRA adapters with those of the slot: it names some, or the server
    /// compares those of every request.
    pub names_adapters: bool,
    /// The LoRA adapters that are applied to it.
    pub adapters: Applied,
    /// The position in the prompt from which they are applied, if tokens of the prompt activate them.
    pub activated_at: Option<u32>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the prompt that were reused.
    pub reused: u32,
    /// Tokens of the prompt that the server asked the engine to evaluate.
    pub evaluated: u32,
    /// Those of them that the engine did not evaluate, because the prefix store had them.
    pub loaded: u32,
    /// Tokens of the prompt that are an answer's own, where the tokenizer has others (`CONTEXTPILOT_KEEP_TOKENS`).
    pub kept: u32,
    /// Tokens that a context shift kept at the beginning (`n_keep`).
    pub keep: u32,
    /// Tokens after these that context shifts discarded, in all. Since version 3 of the format.
    pub gone: u32,
    /// What it asked for itself.
    pub wished: Wished,
    /// Where batches ended, in the part of the prompt that was evaluated: one past the last position of
    /// each.
    pub breaks: Vec<u32>,
    /// Media in the prompt: the tokens `[begin, end)` of each.
    pub media: Vec<(u32, u32)>,
}

impl RequestRecord {
    /// Tokens of the prompt that the engine evaluated.
    #[must_use]
    pub fn computed(&self) -> u32 {
        self.evaluated.saturating_sub(self.loaded)
    }

    /// The frames that come before its own, by their kinds.
    pub(crate) fn before(&self) -> Vec<(u8, Vec<u8>)> {
        let mut frames = Vec::new();
        if self.loaded > 0 {
            frames.push((LOADED, self.encode_loaded()));
        }
        if self.wished != Wished::default() {
            frames.push((WISHED, self.wished.encode(self.order)));
        }
        frames
    }

    /// The number of the launch, and how many tokens were loaded for it.
    fn encode_loaded(&self) -> Vec<u8> {
        let mut into = Vec::new();
        put(&mut into, self.order);
        put(&mut into, u64::from(self.loaded));
        into
    }

    pub(crate) fn decode_loaded(body: &[u8]) -> Option<(u64, u32)> {
        let mut bytes = Bytes(body);
        Some((bytes.number()?, bytes.small()?))
    }
}

/// What a request asks for, in place of what the server's flags say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wished {
    /// The smallest chunk that is moved (`n_cache_reuse`); 0: none is.
    pub cache_reuse: Option<u32>,
    /// Tokens that a context shift keeps (`n_keep`); negative: the prompt.
    pub keep: i32,
    /// Tokens that it discards (`n_discard`); 0: half of the others.
    pub discard: u32,
}

impl Wished {
    /// `order`: the number of the launch.
    fn encode(self, order: u64) -> Vec<u8> {
        let mut into = Vec::new();
        put(&mut into, order);
        put(
            &mut into,
            self.cache_reuse.map_or(0, |least| u64::from(least) + 1),
        );
        put_signed(&mut into, i64::from(self.keep));
        put(&mut into, u64::from(self.discard));
        into
    }

    pub(crate) fn decode(body: &[u8]) -> Option<(u64, Self)> {
        let mut bytes = Bytes(body);
        let order = bytes.number()?;
        let cache_reuse = match bytes.number()?.checked_sub(1) {
            Some(least) => Some(u32::try_from(least).ok()?),
            None => None,
        };
        let wished = Self {
            cache_reuse,
            keep: i32::try_from(bytes.signed()?).ok()?,
            discard: bytes.small()?,
        };
        Some((order, wished))
    }
}

/// LoRA adapters that are applied together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// A keyed hash of the adapters and their scales. 0: none is applied.
    pub hash: u64,
    /// At least one is applied with a positive scale.
    pub enabled: bool,
    /// There is at least one, and tokens of the prompt activate all of them.
    pub invoked: bool,
}

/// A request, and its tokens as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) request: RequestRecord,
    /// The tokens of the prompt and of the answer.
    pub(crate) row: Row,
    /// The first tokens that a context shift left after the kept ones. Their identities are others than in
    /// the row, because other tokens are before them.
    pub(crate) junction: Row,
}

impl Line {
    /// `next`: the identity of the first new token.
    pub(crate) fn encode(&self, next: u64) -> Vec<u8> {
        let request = &self.request;
        let flags = u64::from(request.uncached)
            | u64::from(request.embedding) << 1
            | u64::from(request.child) << 2
            | u64::from(request.abandoned) << 3
            | u64::from(request.names_adapters) << 4
            | u64::from(request.adapters.enabled) << 5
            | u64::from(request.adapters.invoked) << 6;
        let mut into = Vec::new();
        for number in [
            request.order,
            request.arrived,
            request.launched.saturating_sub(request.arrived),
            request.prompted.saturating_sub(request.launched),
            request.ended.saturating_sub(request.prompted),
            u64::from(request.slot),
            request.id_slot.map_or(0, |slot| u64::from(slot) + 1),
            flags,
            request.adapters.hash,
            request.activated_at.map_or(0, |at| u64::from(at) + 1),
            u64::from(request.prompt),
            u64::from(request.reused),
            u64::from(request.evaluated),
            u64::from(request.keep),
            request.breaks.len() as u64,
        ] {
            put(&mut into, number);
        }
        for &at in &request.breaks {
            put(&mut into, u64::from(at));
        }
        put(&mut into, request.media.len() as u64);
        for &(begin, end) in &request.media {
            put(&mut into, u64::from(begin));
            put(&mut into, u64::from(end));
        }
        self.row.encode(next, &mut into);
        put(&mut into, u64::from(request.gone));
        if request.gone > 0 {
            let next = next + self.row.new_tokens();
            self.junction.encode(next, &mut into);
        }
        into
    }

    /// `version`: that of the format.
    pub(crate) fn decode(body: &[u8], next: u64, version: u16) -> Option<Self> {
        let mut bytes = Bytes(body);
        let order = bytes.number()?;
        let arrived = bytes.number()?;
        let launched = arrived.checked_add(bytes.number()?)?;
        let prompted = launched.checked_add(bytes.number()?)?;
        let ended = prompted.checked_add(bytes.number()?)?;
        if ended > LATEST || order > MOST_LAUNCHES {
            return None;
        }
        let slot = bytes.small()?;
        let id_slot = bytes.small()?.checked_sub(1);
        let flags = bytes.number()?;
        let mut request = RequestRecord {
            order,
            arrived,
            launched,
            prompted,
            ended,
            slot,
            id_slot,
            uncached: flags & 1 != 0,
            embedding: flags & 2 != 0,
            child: flags & 4 != 0,
            abandoned: flags & 8 != 0,
            names_adapters: flags & 16 != 0,
            adapters: Applied {
                hash: bytes.number()?,
                enabled: flags & 32 != 0,
                invoked: flags & 64 != 0,
            },
            activated_at: bytes.small()?.checked_sub(1),
            prompt: bytes.small()?,
            reused: bytes.small()?,
            evaluated: bytes.small()?,
            loaded: 0,
            kept: 0,
            keep: bytes.small()?,
            gone: 0,
            wished: Wished::default(),
            breaks: Vec::new(),
            media: Vec::new(),
        };
        for _ in 0..bytes.count()? {
            request.breaks.push(bytes.small()?);
        }
        for _ in 0..bytes.count()? {
            request.media.push((bytes.small()?, bytes.small()?));
        }
        let row = Row::decode(&mut bytes, next, version)?;
        if version >= 3 {
            request.gone = bytes.small()?;
        }
        let junction = match request.gone {
            0 => Row::default(),
            _ => Row::decode(&mut bytes, next.checked_add(row.new_tokens())?, version)?,
        };
        let fits = row.len()? >= request.prompt && bytes.0.is_empty();
        fits.then_some(Self {
            request,
            row,
            junction,
        })
    }
}
