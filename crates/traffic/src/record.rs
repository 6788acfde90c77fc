//! What frames hold.

use crate::bytes::{Bytes, put};
use crate::row::Row;

pub(crate) const KEY: u8 = 1;
pub(crate) const SETUP: u8 = 2;
pub(crate) const SIZE: u8 = 3;
pub(crate) const REQUEST: u8 = 4;
/// Since version 2.
pub(crate) const CHANGE: u8 = 5;

/// What a size is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeKind {
    /// The state of a sequence, as the host cache holds it.
    State,
    /// A context checkpoint.
    Checkpoint,
}

/// A size that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeSample {
    /// Of what.
    pub kind: SizeKind,
    /// Tokens in it.
    pub tokens: u32,
    /// Bytes.
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
    /// Counts launches, from 0.
    pub order: u64,
    /// Its task was numbered, to be put into the server's queue.
    pub arrived: u64,
    /// A slot took it on.
    pub launched: u64,
    /// Its prompt was evaluated.
    pub prompted: u64,
    /// The last of its tokens was evaluated.
    pub ended: u64,
    /// The slot.
    pub slot: u32,
    /// The slot that the client asked for.
    pub id_slot: Option<u32>,
    /// `"cache_prompt": false`.
    pub uncached: bool,
    /// It is an embedding or a reranking: nothing is reused, and nothing saved for it.
    pub embedding: bool,
    /// One of several answers to a prompt (`n`), and not the first: its prompt was copied.
    pub child: bool,
    /// The client went away before it was answered.
    pub abandoned: bool,
    /// The server compares its LoRA adapters with those of the slot: it names some.
    pub names_adapters: bool,
    /// The LoRA adapters that are applied to it.
    pub adapters: Applied,
    /// From which token of the prompt on: they are activated by tokens.
    pub activated_at: Option<u32>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Of these, reused.
    pub reused: u32,
    /// Of these, evaluated.
    pub evaluated: u32,
    /// Tokens to keep at a context shift (`n_keep`).
    pub keep: u32,
    /// Where batches ended within the prompt, as far as it was evaluated.
    pub breaks: Vec<u32>,
    /// Where media begin and end in the prompt.
    pub media: Vec<(u32, u32)>,
}

/// LoRA adapters that are applied together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// A keyed hash; 0: none.
    pub hash: u64,
    /// Some is applied with a positive scale.
    pub enabled: bool,
    /// There are some, and all of them are activated by tokens of the prompt.
    pub invoked: bool,
}

/// A request, and its tokens as they stand in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) request: RequestRecord,
    /// Of prompt and answer.
    pub(crate) row: Row,
}

impl Line {
    /// `next`: the identity that the first new token gets.
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
        into
    }

    pub(crate) fn decode(body: &[u8], next: u64) -> Option<Self> {
        let mut bytes = Bytes(body);
        let order = bytes.number()?;
        let arrived = bytes.number()?;
        let launched = arrived.checked_add(bytes.number()?)?;
        let prompted = launched.checked_add(bytes.number()?)?;
        let ended = prompted.checked_add(bytes.number()?)?;
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
            keep: bytes.small()?,
            breaks: Vec::new(),
            media: Vec::new(),
        };
        for _ in 0..bytes.count()? {
            request.breaks.push(bytes.small()?);
        }
        for _ in 0..bytes.count()? {
            request.media.push((bytes.small()?, bytes.small()?));
        }
        let row = Row::decode(&mut bytes, next)?;
        let fits = row.len()? >= request.prompt && bytes.0.is_empty();
        fits.then_some(Self { request, row })
    }
}
