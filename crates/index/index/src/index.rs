//! The state of the index.

use contextpilot_order::{Block, Cached, Frequency};
use serde_json::{Value, json};

use crate::block::Blocks;
use crate::evict::Eviction;
use crate::metrics;
use crate::predict::Predictor;
use crate::query::Query;
use crate::requests::Requests;
use crate::status::Listing;
use crate::stored::StoredTier;
use crate::turns::Turns;
use crate::work::Work;
use crate::{Answer, Endpoint, Errors, Limits};

/// Whether the index keeps a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Contexts are ordered by what is cached.
    #[default]
    Live,
    /// Each batch is ordered by itself.
    Stateless,
}

/// The source of what is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truth {
    /// A guess: each context counts as cached once it was answered, until `/evict` says
    /// otherwise or too many others came after it.
    #[default]
    Guess,
    /// The engine's hook was reached, and is being asked for what the index tracks. Nothing counts as cached that
    /// it has not said yet.
    Learning,
    /// The engine's hook, which reports what becomes cached and what is evicted.
    Engine,
}

impl Truth {
    /// In answers.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Guess => "own guess",
            Self::Learning => "learning",
            Self::Engine => "engine",
        }
    }
}

/// Contexts after which a count halves.
const HALF_LIFE: f64 = 40.0;

/// Texts that wait to be tokenized: their number, the bytes of one, and of all.
const WANTED: usize = 1024;
const WANTED_BYTES: usize = 64 << 10;
const ALL_WANTED_BYTES: usize = 4 << 20;

/// How a request is answered.
#[derive(Debug)]
pub enum Outcome {
    /// At once.
    Answer(Answer),
    /// In some pieces.
    Work(Box<Work>),
    /// At once; what was forgotten is left to be dropped, which takes a while, without the state.
    Emptied(Answer, Forgotten),
}

/// The content of an index before a `/reset`.
#[derive(Debug)]
pub struct Forgotten {
    _index: Box<Index>,
}

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

    /// Answers a request. `new_id` draws unique ids for requests: `req-` and
    /// 12 hex digits. `now` is the time in seconds since 1970.
    pub fn answer(
        &mut self,
        query: Query,
        now: f64,
        new_id: &mut dyn FnMut() -> String,
    ) -> Outcome {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time since 1970"
        )]
        self.expire((now * 1e3) as u64);
        let work = |work: Work| Outcome::Work(Box::new(work));
        let answer = match query {
            Query::Plain(Endpoint::Root) => self.root(now),
            Query::Plain(Endpoint::Reset) => return self.reset(),
            Query::Plain(Endpoint::Health) => self.health(now),
            Query::Plain(Endpoint::Ready) => Self::ready(self.mode, self.truth),
            Query::Reorder(reorder) => {
                return match self.reorder(*reorder) {
                    Ok(job) => work(job.into()),
                    Err(answer) => self.refused(*answer),
                };
            }
            // Conversations have a state of their own.
            Query::Deduplicate(reorder) if self.mode == Mode::Live => {
                return work(self.deduplicate(*reorder).into());
            }
            // The others need an index.
            _ if self.mode == Mode::Stateless || !self.initialized => Answer::not_initialized(),
            Query::Plain(Endpoint::Requests) => return work(Listing::default().into()),
            Query::Plain(_) => self.stats(now),
            Query::Deduplicate(_) => Answer::not_initialized(),
            Query::Evict(ids) => return work(Eviction::new(ids).into()),
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

    fn reset(&mut self) -> Outcome {
        let message = if self.initialized {
            "Index reset to initial state"
        } else {
            "No index to reset (was not initialized)"
        };
        let fresh = Self::new(self.mode, self.limits);
        let before = std::mem::replace(self, fresh);
        // Keep what is known of the engine.
        self.truth = before.truth;
        self.set_store(before.has_store());
        self.initialized = before.initialized;
        self.warning.clone_from(&before.warning);
        self.errors = before.errors.clone();
        let answer = Answer::ok(json!({
            "status": "success",
            "message": message,
            "conversation_tracker": "reset",
        }));
        let before = Box::new(before);
        Outcome::Emptied(answer, Forgotten { _index: before })
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
