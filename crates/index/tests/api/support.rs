//! An index, and requests to it, in one thread.

use contextpilot_index::{Answer, Endpoint, Index, Limits, Mode, Outcome, Query, Question};
use serde_json::Value;

pub(crate) struct Asked {
    pub(crate) index: Index,
    /// What the engine's hook says to a question, if there is one.
    pub(crate) hook: Option<fn(&Question) -> u64>,
    ids: u64,
}

impl Asked {
    pub(crate) fn new(mode: Mode, limits: Limits) -> Self {
        Self {
            index: Index::new(mode, limits),
            hook: None,
            ids: 0,
        }
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        let endpoint = match Endpoint::of(method, path) {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) => return Answer::error(404, "Not Found"),
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
        match self.index.answer(query, 0.0, &mut new_id) {
            Outcome::Answer(answer) => answer,
            Outcome::Work(work) => {
                let mut worked = work.run();
                loop {
                    match self.index.finish(&mut worked, &mut new_id) {
                        Ok(true) => return worked.answer(),
                        Ok(false) => {}
                        Err(answer) => return *answer,
                    }
                }
            }
            Outcome::Worked(mut worked) => {
                let said = self.hook.and_then(|hook| worked.question().map(hook));
                if let Some(reused) = said {
                    self.index.answered(&mut worked, reused);
                }
                worked.answer()
            }
        }
    }

    pub(crate) fn post(&mut self, path: &str, body: Value) -> Answer {
        self.ask("POST", path, body.to_string().as_bytes())
    }
}
