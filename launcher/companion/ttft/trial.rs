use contextpilot_client::{Completion, LlamaServer, Prompt, Result};
use serde::{Deserialize, Serialize};

use super::contexts::Contexts;
use super::hook::{Claim, Hook};

/// One answer, measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Measured {
    /// Milliseconds to the first token, as seen from here.
    pub(super) first_token_ms: f64,
    pub(super) prompt_tokens: u64,
    pub(super) cached: u64,
    pub(super) evaluated: u64,
}

/// What the hook said of [A, B], and what the engine showed afterwards.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) said: Claim,
    /// Whether it was cached.
    pub(super) cached: bool,
    pub(super) right: bool,
}

impl Verdict {
    fn new(said: Claim, cached: bool) -> Self {
        let right = said.is_cached() == Some(cached);
        Self {
            said,
            cached,
            right,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Trial {
    pub(super) number: u32,
    pub(super) slot: Option<u32>,
    pub(super) hit: Measured,
    pub(super) miss: Measured,
    /// The hit's prompt once more after the miss, if the prefix store had it.
    pub(super) store: Option<Measured>,
    /// Before the hit.
    pub(super) before: Option<Verdict>,
    /// After the miss.
    pub(super) after: Option<Verdict>,
}

impl Trial {
    pub(super) fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.before.iter().chain(&self.after)
    }
}

pub(super) struct Experiment<'a> {
    pub(super) server: &'a LlamaServer,
    pub(super) hook: Option<Hook>,
    pub(super) contexts: Contexts,
    /// The slot that requests name.
    pub(super) slot: Option<u32>,
}

impl Experiment<'_> {
    pub(super) fn trial(&mut self, number: u32) -> Result<Trial> {
        let (a, b) = (self.contexts.next(), self.contexts.next());
        let [warm, hit, miss] = ["warm", "hit", "miss"]
            .map(|what| format!("ttft-{}-{number}-{what}", std::process::id()));
        let both = Contexts::ask(&[&a, &b]);

        let warmed = self.complete(&(a + &b), Some(&warm), self.slot)?;
        let before = self.claim(&warm, &warm)?;
        let hit_answer = self.complete(&both, Some(&hit), self.slot)?;
        let miss_answer = self.complete(&Contexts::ask(&[&b]), Some(&miss), self.slot)?;
        let mut store = None;
        let after = match self.claim(&hit, &miss)? {
            Some(claim) => {
                let before = self.loaded()?;
                // This request has no id: it only asks the engine for the truth. If the hook knows a copy
                // outside of the slot, the request names no slot, so that the engine can find the copy.
                let slot = self.slot.filter(|_| !claim.is_elsewhere(self.slot));
                let again = self.complete(&both, None, slot)?;
                let loaded = self.loaded()?.zip(before);
                store = loaded.and_then(|(after, before)| from_store(&again, after - before));
                Some(Verdict::new(claim, has_all(&again, again.prompt_tokens)))
            }
            None => None,
        };
        Ok(Trial {
            number,
            slot: hit_answer.slot,
            store,
            before: before.map(|said| {
                // Not all: the tokens at the beginning of the question may be split differently.
                let enough = warmed.prompt_tokens * 9 / 10;
                Verdict::new(said, has_all(&hit_answer, enough))
            }),
            after,
            hit: measured(&hit_answer),
            miss: measured(&miss_answer),
        })
    }

    fn claim(&self, about: &str, when_known: &str) -> Result<Option<Claim>> {
        let hook = self.hook.as_ref();
        hook.map(|hook| hook.claim(about, when_known)).transpose()
    }

    fn loaded(&self) -> Result<Option<u64>> {
        Ok(self.hook.as_ref().map(Hook::loaded).transpose()?.flatten())
    }

    fn complete(&self, text: &str, id: Option<&str>, slot: Option<u32>) -> Result<Completion> {
        let mut prompt = Prompt::new(text).predict(1);
        if let Some(id) = id {
            prompt = prompt.id(id);
        }
        if let Some(slot) = slot {
            prompt = prompt.slot(slot);
        }
        self.server.complete(&prompt)
    }
}

/// The engine evaluates the last token again in any case.
fn has_all(answer: &Completion, tokens: u64) -> bool {
    answer.timings.cached + 1 >= tokens
}

/// An answer whose prompt came from the prefix store, nearly all of it. The engine counts these tokens as
/// evaluated.
fn from_store(answer: &Completion, loaded: u64) -> Option<Measured> {
    let mut measured = measured(answer);
    measured.cached += loaded;
    measured.evaluated = measured.evaluated.saturating_sub(loaded);
    (10 * loaded >= 9 * answer.prompt_tokens).then_some(measured)
}

pub(super) fn measured(answer: &Completion) -> Measured {
    Measured {
        first_token_ms: answer.first_token.as_secs_f64() * 1e3,
        prompt_tokens: answer.prompt_tokens,
        cached: answer.timings.cached,
        evaluated: answer.timings.evaluated,
    }
}
