//! What becomes of a request: answered at once, or worked on.

use serde_json::json;

use crate::evict::Eviction;
use crate::query::Query;
use crate::status::Listing;
use crate::work::Work;
use crate::{Endpoint, Index, IndexAnswer, Mode};

/// How a request is answered.
#[derive(Debug)]
pub enum Outcome {
    /// At once.
    Answer(IndexAnswer),
    /// In some pieces.
    Work(Box<Work>),
    /// At once; what was forgotten is left to be dropped, which takes a while, without the state.
    Emptied(IndexAnswer, Forgotten),
}

/// The content of an index before a `/reset`.
#[derive(Debug)]
pub struct Forgotten {
    _index: Box<Index>,
}

impl Index {
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
            _ if self.mode == Mode::Stateless || !self.initialized => {
                IndexAnswer::not_initialized()
            }
            Query::Plain(Endpoint::Requests) => return work(Listing::default().into()),
            Query::Plain(_) => self.stats(now),
            Query::Deduplicate(_) => IndexAnswer::not_initialized(),
            Query::Evict(ids) => return work(Eviction::new(ids).into()),
            Query::Search(context) => self.search(&context),
            Query::Insert(context, tokens) => match self.insert(context, tokens, new_id) {
                Ok(answer) => answer,
                Err(answer) => return self.refused(*answer),
            },
        };
        Outcome::Answer(answer)
    }

    fn refused(&mut self, answer: IndexAnswer) -> Outcome {
        self.counters.refused += 1;
        Outcome::Answer(answer)
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
        let answer = IndexAnswer::ok(json!({
            "status": "success",
            "message": message,
            "conversation_tracker": "reset",
        }));
        let before = Box::new(before);
        Outcome::Emptied(answer, Forgotten { _index: before })
    }
}
