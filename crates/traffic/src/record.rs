//! What frames hold.

use crate::bytes::{Bytes, put, put_signed, put_text};
use crate::history::Segment;
use crate::tokens::Run;

pub(crate) const KEY: u8 = 1;
pub(crate) const SETUP: u8 = 2;
pub(crate) const SIZE: u8 = 3;
pub(crate) const REQUEST: u8 = 4;

/// How a model's context remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Every position.
    #[default]
    Full,
    /// The last tokens only, in some layers (`llama_model_n_swa`).
    Window(u32),
    /// One state, at the last position.
    Recurrent,
}

/// The server as it was started. Its flags have their names, in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// What the hook calls the engine.
    pub engine: String,
    /// `--parallel`: slots.
    pub parallel: u32,
    /// That was not said, so slots share the context by default; with `--parallel` they do not.
    pub auto_parallel: bool,
    /// Tokens that fit into the context, for all slots (`llama_n_ctx`).
    pub context: u32,
    /// Tokens that a slot can have (`llama_n_ctx_seq`).
    pub slot_context: u32,
    /// `--kv-unified`: slots share the context.
    pub kv_unified: bool,
    /// `--cache-ram`: MiB; 0: no host cache, negative: no limit. `None`: the server has no such cache.
    pub cache_ram: Option<i64>,
    /// `--cache-idle-slots`.
    pub cache_idle_slots: bool,
    /// `--slot-prompt-similarity`, in thousandths.
    pub slot_prompt_similarity: u32,
    /// `--cache-reuse`: tokens.
    pub cache_reuse: u32,
    /// `--context-shift`.
    pub context_shift: bool,
    /// `--ctx-checkpoints`.
    pub ctx_checkpoints: u32,
    /// `--checkpoint-min-step`: tokens.
    pub checkpoint_min_step: u32,
    /// `--batch-size`: tokens.
    pub batch_size: u32,
    /// `--ubatch-size`: tokens.
    pub ubatch_size: u32,
    /// What the context remembers.
    pub memory: Memory,
}

impl Default for Setup {
    /// llama-server 0.7.0 without flags.
    fn default() -> Self {
        Self {
            engine: String::new(),
            parallel: 4,
            auto_parallel: true,
            context: 4096,
            slot_context: 4096,
            kv_unified: true,
            cache_ram: Some(8192),
            cache_idle_slots: true,
            slot_prompt_similarity: 100,
            cache_reuse: 0,
            context_shift: false,
            ctx_checkpoints: 32,
            checkpoint_min_step: 8192,
            batch_size: 2048,
            ubatch_size: 512,
            memory: Memory::Full,
        }
    }
}

impl Setup {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        put_text(&mut into, &self.engine);
        let (memory, window) = match self.memory {
            Memory::Full => (0, 0),
            Memory::Window(window) => (1, window),
            Memory::Recurrent => (2, 0),
        };
        for number in [
            self.parallel,
            u32::from(self.auto_parallel),
            self.context,
            self.slot_context,
            u32::from(self.kv_unified),
            u32::from(self.cache_ram.is_some()),
            u32::from(self.cache_idle_slots),
            self.slot_prompt_similarity,
            self.cache_reuse,
            u32::from(self.context_shift),
            self.ctx_checkpoints,
            self.checkpoint_min_step,
            self.batch_size,
            self.ubatch_size,
            memory,
            window,
        ] {
            put(&mut into, u64::from(number));
        }
        put_signed(&mut into, self.cache_ram.unwrap_or(0));
        into
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(body);
        let engine = bytes.text()?;
        let mut number = || bytes.small();
        let parallel = number()?;
        let auto_parallel = number()? != 0;
        let context = number()?;
        let slot_context = number()?;
        let kv_unified = number()? != 0;
        let has_cache = number()? != 0;
        let cache_idle_slots = number()? != 0;
        let slot_prompt_similarity = number()?;
        let cache_reuse = number()?;
        let context_shift = number()? != 0;
        let ctx_checkpoints = number()?;
        let checkpoint_min_step = number()?;
        let batch_size = number()?;
        let ubatch_size = number()?;
        let memory = match (number()?, number()?) {
            (0, _) => Memory::Full,
            (1, window) => Memory::Window(window),
            (2, _) => Memory::Recurrent,
            _ => return None,
        };
        let cache_ram = bytes.signed()?;
        Some(Self {
            engine,
            parallel,
            auto_parallel,
            context,
            slot_context,
            kv_unified,
            cache_ram: has_cache.then_some(cache_ram),
            cache_idle_slots,
            slot_prompt_similarity,
            cache_reuse,
            context_shift,
            ctx_checkpoints,
            checkpoint_min_step,
            batch_size,
            ubatch_size,
            memory,
        })
    }
}

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
    pub(crate) segments: Vec<Segment>,
    /// The number of the first block that has a hash here.
    pub(crate) first_block: u32,
    pub(crate) blocks: Vec<u64>,
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
        put(&mut into, self.segments.len() as u64);
        let mut next = next;
        for segment in &self.segments {
            match *segment {
                Segment::New(length) => {
                    put(&mut into, u64::from(length) << 1);
                    next += u64::from(length);
                }
                Segment::Known(run) => {
                    put(&mut into, u64::from(run.length) << 1 | 1);
                    put(&mut into, next.saturating_sub(run.first));
                }
            }
        }
        put(&mut into, u64::from(self.first_block));
        put(&mut into, self.blocks.len() as u64);
        for block in &self.blocks {
            into.extend(block.to_le_bytes());
        }
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
        let mut segments = Vec::new();
        let mut next = next;
        let mut tokens = 0_u32;
        for _ in 0..bytes.count()? {
            let number = bytes.number()?;
            let length = u32::try_from(number >> 1).ok()?;
            tokens = tokens.checked_add(length)?;
            segments.push(match number & 1 {
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
        let first_block = bytes.small()?;
        let mut blocks = Vec::new();
        for _ in 0..bytes.count()? {
            blocks.push(bytes.word()?);
        }
        (tokens >= request.prompt && bytes.0.is_empty()).then_some(Self {
            request,
            segments,
            first_block,
            blocks,
        })
    }
}
