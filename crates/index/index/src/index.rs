//! The state of the index.

use contextpilot_order::{Block, Cached, Frequency};
use serde_json::Value;

use crate::block::Blocks;
use crate::predict::Predictor;
use crate::requests::Requests;
use crate::tier::StoredTier;
use crate::turns::Turns;
use crate::{Errors, Limits, Mode, Truth};

/// Contexts after which a count halves.
const HALF_LIFE: f64 = 40.0;

/// Texts that wait to be tokenized: their number, the bytes of one, and of all.
const WANTED: usize = 1024;
const WANTED_BYTES: usize = 64 << 10;
const ALL_WANTED_BYTES: usize = 4 << 20;

/// An index.
#[derive(Debug)]
pub struct Index {
    pub(crate) mode: Mode,
    pub(crate) truth: Truth,
    /// How many requests were cached when the engine was heard last, while that is not known.
    pub(crate) heard: usize,
    pub(crate) limits: Limits,
    pub(crate) blocks: Blocks,
    pub(crate) requests: Requests,
    pub(crate) cached: Cached,
    /// Prompts that have left the engine; `None`: it has no prefix store.
    pub(crate) stored: Option<StoredTier>,
    pub(crate) frequency: Frequency,
    pub(crate) turns: Turns,
    pub(crate) predictor: Predictor,
    pub(crate) errors: Errors,
    pub(crate) counters: Counters,
    /// There was a `/reorder` since the start.
    pub(crate) initialized: bool,
    /// There was one since the start or the last `/reset`.
    pub(crate) built: bool,
    pub(crate) wanted: Vec<Wish>,
    wanted_bytes: usize,
    /// A warning in every answer, because of the model.
    pub(crate) warning: Option<String>,
}

/// Counts since the start, or since the last `/reset`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) contexts: u64,
    /// Contexts that were ordered by what is cached.
    pub(crate) searches: u64,
    /// Of these, contexts for which something was cached.
    pub(crate) matches: u64,
    pub(crate) evictions: u64,
    pub(crate) refused: u64,
}

/// A block whose number of tokens is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub(crate) block: Block,
    pub(crate) number: u64,
    /// Its text.
    pub text: String,
}

impl Index {
    /// Creates an index. Nothing is cached.
    #[must_use]
    pub fn new(mode: Mode, limits: Limits) -> Self {
        Self {
            mode,
            truth: Truth::default(),
            heard: 0,
            frequency: Frequency::new(HALF_LIFE, limits.blocks),
            limits,
            blocks: Blocks::default(),
            requests: Requests::default(),
            cached: Cached::new(),
            stored: None,
            turns: Turns::default(),
            predictor: Predictor::default(),
            errors: Errors::default(),
            counters: Counters::default(),
            initialized: false,
            built: false,
            wanted: Vec::new(),
            wanted_bytes: 0,
            warning: None,
        }
    }

    /// Adds this warning to every answer: an order may be worth little, and why.
    pub fn warn(&mut self, why: Option<String>) {
        self.warning = why;
    }

    /// The limits for clients.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The errors of its forecasts.
    #[must_use]
    pub fn errors(&self) -> &Errors {
        &self.errors
    }

    /// Blocks whose tokens the engine may be asked for; each is given once.
    pub fn wishes(&mut self) -> Vec<Wish> {
        self.wanted_bytes = 0;
        std::mem::take(&mut self.wanted)
    }

    /// The engine's answer to a wish.
    pub fn tokenized(&mut self, wish: &Wish, tokens: u32) {
        let same = |info: &crate::block::Info| info.number == wish.number;
        if self.blocks.info(wish.block).is_some_and(same) {
            self.blocks.set_tokens(wish.block, tokens);
        }
    }

    pub(crate) fn wish(&mut self, block: Block, value: &Value) {
        let (Value::String(text), Some(info)) = (value, self.blocks.info(block)) else {
            return;
        };
        let wanted = info.tokens.is_none() && text.len() <= WANTED_BYTES;
        let room = self.wanted.len() < WANTED && self.wanted_bytes < ALL_WANTED_BYTES;
        if wanted && room {
            self.wanted_bytes += text.len();
            self.wanted.push(Wish {
                block,
                number: info.number,
                text: text.clone(),
            });
        }
    }
}
