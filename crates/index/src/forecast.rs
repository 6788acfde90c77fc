//! The forecast: how many tokens the engine is expected to reuse.

use contextpilot_order::{Block, Online};

use crate::Index;
use crate::reorder::Worked;
use crate::requests::Expected;

/// A query for the hook, which knows better than the index: how much would be reused for a prompt that
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
    /// A query whose answer makes the forecast more exact ([`Index::answered`]). Only for a single context,
    /// while the hook reports what is cached.
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

    /// The query for the prompt of these blocks: the request with the longest common prefix that
    /// is cached anywhere, whether the engine would reuse it or not.
    pub(crate) fn question(&self, blocks: &[Block]) -> Option<Question> {
        let (length, prompt) = self.cached.longest(blocks);
        let id = match prompt {
            Some(prompt) => self.requests.id(prompt)?,
            // Only the template is in common.
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
