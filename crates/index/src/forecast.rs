//! The forecast: how many tokens the engine is expected to reuse.

use contextpilot_order::{Block, Online};

use crate::Index;
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

impl Question {
    /// The forecast after the hook's answer: so many tokens would be reused.
    pub(crate) fn expected(&self, reused: u64) -> Expected {
        Expected {
            blocks: self.blocks,
            tokens: reused,
            whole: reused >= self.common,
        }
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
}
