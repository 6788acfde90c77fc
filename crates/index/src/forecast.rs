//! What the engine is expected to reuse.

use contextpilot_order::{Block, Online};

use crate::Index;
use crate::reorder::Worked;
use crate::requests::Expected;

/// What the engine's hook knows better than the index: what would be reused for a prompt that
/// begins like this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The id of a request that is cached.
    pub id: String,
    /// Tokens that the new prompt has in common with it.
    pub common: u64,
    /// Tokens of the new prompt, about.
    pub tokens: u64,
    /// The blocks in these.
    blocks: usize,
}

impl Worked {
    /// What the answer may say more exactly ([`Index::answered`]). Only of a context that is alone,
    /// while the engine tells what is cached.
    #[must_use]
    pub fn question(&self) -> Option<&Question> {
        self.question.as_ref()
    }
}

impl Index {
    pub(crate) fn expected(&self, ordered: &Online) -> Expected {
        let beginning = &ordered.blocks[..ordered.cached];
        let tokens = match ordered.cached {
            0 if self.cached.prompts() == 0 => 0,
            _ => self.predictor.tokens(beginning, &self.blocks),
        };
        Expected {
            blocks: ordered.cached,
            tokens,
            whole: true,
        }
    }

    /// What to ask of the prompt that these blocks make: it has the longest beginning that is
    /// cached anywhere in common with a request, be it of use or not.
    pub(crate) fn question(&self, blocks: &[Block]) -> Option<Question> {
        let (length, prompt) = self.cached.longest(blocks);
        let id = match prompt {
            Some(prompt) => self.requests.id(prompt)?,
            // The template alone.
            None => self.requests.cached_ids().next_back()?.1,
        };
        Some(Question {
            id: id.to_owned(),
            common: self.predictor.tokens(&blocks[..length], &self.blocks),
            tokens: self.predictor.prompt(blocks, &self.blocks),
            blocks: length,
        })
    }

    /// The engine's hook has answered [`Worked::question`]: so many tokens would be reused.
    pub fn answered(&mut self, worked: &mut Worked, reused: u64) {
        let Some(question) = worked.question.take() else {
            return;
        };
        let whole = reused >= question.common;
        for placed in &mut worked.placed {
            if let Some(request) = self.requests.get_mut(&placed.id) {
                request.expected = Some(Expected {
                    blocks: question.blocks,
                    tokens: reused,
                    whole,
                });
            }
            placed.expected = reused;
            if reused == 0 || question.blocks == 0 {
                placed.from = None;
            } else if whole {
                placed.from = Some(question.id.clone());
            }
        }
    }
}
