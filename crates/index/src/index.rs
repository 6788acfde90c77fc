//! The state.

use contextpilot_order::{Block, Cached, Frequency};
use serde_json::{Value, json};

use crate::block::Blocks;
use crate::deduplicate::Turns;
use crate::metrics;
use crate::predict::Predictor;
use crate::query::Query;
use crate::reorder::Outcome;
use crate::requests::Requests;
use crate::{Answer, Endpoint, Errors, Limits};

/// Whether there is a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Contexts are ordered by what is cached.
    #[default]
    Live,
    /// Batches are ordered among themselves.
    Stateless,
}

/// From where the index knows what is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truth {
    /// From nobody: each context is taken for cached once it was answered, until `/evict` says
    /// otherwise or too many came after it.
    #[default]
    Guess,
    /// From the engine: its hook says what becomes cached and what is evicted.
    Engine,
}

impl Truth {
    /// In answers.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Guess => "own guess",
            Self::Engine => "engine",
        }
    }
}

/// Contexts after which a count halves.
const HALF_LIFE: f64 = 40.0;

/// Texts that wait to be tokenized: their number, and the bytes of one.
const WANTED: usize = 1024;
const WANTED_BYTES: usize = 64 << 10;

/// An index.
#[derive(Debug)]
pub struct Index {
    pub(crate) mode: Mode,
    pub(crate) truth: Truth,
    pub(crate) limits: Limits,
    pub(crate) blocks: Blocks,
    pub(crate) requests: Requests,
    pub(crate) cached: Cached,
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
    /// What is said with every order, because of the model.
    pub(crate) warning: Option<String>,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) contexts: u64,
    /// Contexts that were ordered by what is cached.
    pub(crate) searches: u64,
    /// Of these, those for which something was.
    pub(crate) matches: u64,
    pub(crate) evictions: u64,
    pub(crate) refused: u64,
}

/// A block whose tokens nobody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub(crate) block: Block,
    pub(crate) number: u64,
    /// Its text.
    pub text: String,
}

impl Index {
    /// Without anything cached.
    #[must_use]
    pub fn new(mode: Mode, limits: Limits) -> Self {
        Self {
            mode,
            truth: Truth::default(),
            frequency: Frequency::new(HALF_LIFE, limits.blocks),
            limits,
            blocks: Blocks::default(),
            requests: Requests::default(),
            cached: Cached::new(),
            turns: Turns::default(),
            predictor: Predictor::default(),
            errors: Errors::default(),
            counters: Counters::default(),
            initialized: false,
            built: false,
            wanted: Vec::new(),
            warning: None,
        }
    }

    /// Says with every order that it may be worth little, and why.
    pub fn warn(&mut self, why: Option<String>) {
        self.warning = why;
    }

    /// What clients may make it keep.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How far its answers were from what the engine did.
    #[must_use]
    pub fn errors(&self) -> &Errors {
        &self.errors
    }

    /// Answers a request. `new_id` draws the ids of requests, which nobody else uses: `req-` and
    /// 12 hex digits. `now` is the time in seconds since 1970.
    pub fn answer(
        &mut self,
        query: Query,
        now: f64,
        new_id: &mut dyn FnMut() -> String,
    ) -> Outcome {
        let answer = match query {
            Query::Plain(Endpoint::Root) => self.root(now),
            Query::Plain(Endpoint::Reset) => self.reset(),
            Query::Plain(Endpoint::Health) => self.health(now),
            Query::Plain(Endpoint::Ready) => self.ready(),
            Query::Reorder(reorder) => {
                return match self.reorder(*reorder, new_id) {
                    Ok(outcome) => outcome,
                    Err(answer) => self.refused(*answer),
                };
            }
            // The others need an index.
            _ if self.mode == Mode::Stateless || !self.initialized => Answer::not_initialized(),
            Query::Plain(Endpoint::Requests) => self.list(),
            Query::Plain(_) => self.stats(now),
            Query::Deduplicate(reorder) => match self.deduplicate(*reorder, new_id) {
                Ok(answer) => answer,
                Err(answer) => return self.refused(*answer),
            },
            Query::Evict(ids) => self.evict(&ids),
            Query::Search(context) => self.search(&context),
            Query::Insert(context, tokens) => match self.insert(context, tokens, new_id) {
                Ok(answer) => answer,
                Err(answer) => return self.refused(*answer),
            },
        };
        Outcome::Answer(answer)
    }

    fn refused(&mut self, answer: Answer) -> Outcome {
        self.counters.refused += 1;
        Outcome::Answer(answer)
    }

    /// For Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::text(self)
    }

    fn reset(&mut self) -> Answer {
        let message = match self.initialized {
            true => "Index reset to initial state",
            false => "No index to reset (was not initialized)",
        };
        let fresh = Self::new(self.mode, self.limits);
        let before = std::mem::replace(self, fresh);
        // What is known of the engine stays.
        self.truth = before.truth;
        self.initialized = before.initialized;
        self.warning = before.warning;
        self.errors = before.errors;
        Answer::ok(json!({
            "status": "success",
            "message": message,
            "conversation_tracker": "reset",
        }))
    }

    /// Blocks whose tokens the engine may be asked for; each is given once.
    pub fn wishes(&mut self) -> Vec<Wish> {
        std::mem::take(&mut self.wanted)
    }

    /// What the engine said to a wish.
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
        if wanted && self.wanted.len() < WANTED {
            self.wanted.push(Wish {
                block,
                number: info.number,
                text: text.clone(),
            });
        }
    }
}
