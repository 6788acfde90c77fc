//! `/search` and `/insert`, which exist for compatibility with the Python index.

use contextpilot_order::Block;
use serde_json::json;

use crate::context::Context;
use crate::{Index, IndexAnswer};

impl Index {
    /// Where a context's blocks are cached, in the order in which they come.
    pub(crate) fn search(&mut self, context: &Context) -> IndexAnswer {
        self.counters.searches += 1;
        let known: Vec<Option<Block>> = context
            .keys
            .iter()
            .map(|key| self.blocks.known(*key))
            .collect();
        let known: Vec<Block> = known.into_iter().map_while(|block| block).collect();
        let (length, prompt) = self.cached.beginning_of(&known, |_| 1, 0);
        let prompt = prompt.filter(|_| length > 0);
        IndexAnswer::ok(json!({
            "status": "success",
            // Positions in a tree, which only the index itself could use.
            "search_path": (0..length).map(|_| 0).collect::<Vec<u8>>(),
            "node_id": prompt.map_or(-1, |prompt| i64::try_from(prompt).unwrap_or(i64::MAX)),
            "prefix_length": length,
            "has_prefix": length > 0,
            "request_id": prompt.and_then(|prompt| self.requests.id(prompt)),
        }))
    }

    /// Tracks a context in its order, and counts it as cached.
    pub(crate) fn insert(
        &mut self,
        context: Context,
        tokens: u64,
        new_id: &mut dyn FnMut() -> String,
    ) -> Result<IndexAnswer, Box<IndexAnswer>> {
        let before = self.requests.next_number();
        let blocks = self.admit(&context, 1, before)?;
        let (path, _) = self.cached.beginning_of(&blocks, |_| 1, 0);
        let id = self.track(blocks, tokens, new_id);
        self.cached(&id, tokens);
        let number = self.requests.get(&id).map(|request| request.number);
        Ok(IndexAnswer::ok(json!({
            "status": "success",
            "node_id": number,
            "search_path": (0..path).map(|_| 0).collect::<Vec<u8>>(),
            "request_id": id,
        })))
    }
}
