//! An index, and requests to it, in one thread.

use contextpilot_index::{
    Endpoint, Found, Index, IndexAnswer, Limits, Mode, Next, Outcome, Query, Question,
};
use serde_json::Value;

/// What the engine's hook answers.
pub(crate) type Hook = Box<dyn Fn(&Question) -> Found>;

pub(crate) struct Asked {
    pub(crate) index: Index,
    /// What the engine's hook says to a question, if there is one.
    pub(crate) hook: Option<Hook>,
    /// How many questions were asked for the last request.
    pub(crate) questions: usize,
    /// The time of requests, in seconds since 1970.
    pub(crate) now: f64,
    ids: u64,
}

impl Asked {
    pub(crate) fn new(mode: Mode, limits: Limits) -> Self {
        Self {
            index: Index::new(mode, limits),
            hook: None,
            questions: 0,
            now: 0.0,
            ids: 0,
        }
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> IndexAnswer {
        let endpoint = match Endpoint::find(method, path) {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) => return IndexAnswer::error(404, "Not Found"),
            Err(answer) => return answer,
        };
        let query = match Query::parse(endpoint, body, self.index.limits()) {
            Ok(query) => query,
            Err(answer) => return answer,
        };
        let ids = &mut self.ids;
        let mut new_id = || {
            *ids += 1;
            format!("req-{ids:012x}")
        };
        let mut work = match self.index.answer(query, self.now, &mut new_id) {
            Outcome::Answer(answer) | Outcome::Emptied(answer, _) => return answer,
            Outcome::Work(work) => work,
        };
        loop {
            match work.next() {
                Next::State => self.index.proceed(&mut work, &mut new_id),
                Next::Alone => work.compute(),
                Next::Answer => break,
            }
        }
        self.questions = 0;
        while let (Some(hook), Some(question)) = (&self.hook, work.question()) {
            let found = hook(question);
            self.questions += 1;
            self.index.answered(&mut work, found);
        }
        work.answer()
    }

    /// From now on the hook says of each question that so many tokens would be reused. There is no store.
    pub(crate) fn reuses(&mut self, reused: impl Fn(&Question) -> u64 + 'static) {
        self.hook = Some(Box::new(move |question| Found {
            tokens: question.tokens.max(1),
            reused: reused(question),
            loaded: None,
            kept: None,
        }));
    }

    pub(crate) fn post(&mut self, path: &str, body: Value) -> IndexAnswer {
        self.ask("POST", path, body.to_string().as_bytes())
    }
}
