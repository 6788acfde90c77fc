//! Conversations: finds documents that were in earlier turns.

use std::collections::{BTreeMap, HashMap};

use contextpilot_order::Block;
use serde_json::{Value, json};

use crate::context::Context;
use crate::query::Reorder;
use crate::{Answer, Index};

const HINT: &str = "Please refer to [Doc {doc_id}] from the previous conversation turn.";

/// How many earlier turns are searched.
const CHAIN: usize = 1000;

#[derive(Debug)]
struct Turn {
    number: u64,
    parent: Option<String>,
    blocks: Vec<Block>,
}

/// All turns, by the ids of their requests.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    by_id: HashMap<String, Turn>,
    ids: BTreeMap<u64, String>,
    next: u64,
}

impl Turns {
    /// A turn and those before it, the earliest first.
    fn chain<'a>(&'a self, id: &'a str) -> Vec<(&'a str, &'a Turn)> {
        let mut chain = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next.filter(|_| chain.len() < CHAIN) {
            let Some(turn) = self.by_id.get(id) else {
                break;
            };
            chain.push((id, turn));
            next = turn.parent.as_deref();
        }
        chain.reverse();
        chain
    }

    fn remove(&mut self, id: &str) -> Option<Turn> {
        let turn = self.by_id.remove(id)?;
        self.ids.remove(&turn.number);
        Some(turn)
    }

    fn add(&mut self, id: &str, parent: Option<String>, blocks: Vec<Block>) {
        let number = self.next;
        self.next += 1;
        self.ids.insert(number, id.to_owned());
        let turn = Turn {
            number,
            parent,
            blocks,
        };
        self.by_id.insert(id.to_owned(), turn);
    }
}

/// The sums over all results of a call.
#[derive(Default)]
pub(crate) struct Sum {
    results: Vec<Value>,
    overlapping: usize,
    continued: usize,
}

impl Sum {
    /// The member `deduplication` of a `/reorder`.
    pub(crate) fn member(self) -> Value {
        json!({
            "enabled": true,
            "results": self.results,
            "total_docs_deduplicated": self.overlapping,
            "total_blocks_deduped": 0,
        })
    }
}

impl Index {
    /// `POST /deduplicate`: does not order, only finds new documents.
    pub(crate) fn deduplicate(
        &mut self,
        reorder: Reorder,
        new_id: &mut dyn FnMut() -> String,
    ) -> Result<Answer, Box<Answer>> {
        let blocks = reorder
            .contexts
            .iter()
            .map(|context| context.keys.len())
            .sum();
        self.make_room(0, blocks)?;
        let mut sum = Sum::default();
        let mut ids = Vec::with_capacity(reorder.contexts.len());
        for (at, context) in reorder.contexts.iter().enumerate() {
            let id = new_id();
            let blocks = self.intern(context);
            let parent = reorder.parents.get(at).cloned().flatten();
            let hint = reorder.hint.as_deref();
            let continued = self.turn(&id, context, &blocks, parent.clone(), hint, &mut sum);
            // Besides the members of a `/reorder`.
            if let Some(result) = sum.results.last_mut() {
                result["is_new_conversation"] = json!(!continued);
                result["parent_request_id"] = json!(parent.filter(|_| continued));
            }
            ids.push(id);
        }
        let summary = json!({
            "total_contexts": ids.len(),
            "new_conversations": ids.len() - sum.continued,
            "continued_conversations": sum.continued,
            "total_docs_deduplicated": sum.overlapping,
        });
        Ok(Answer::ok(json!({
            "status": "success",
            "message": "Contexts deduplicated",
            "request_ids": ids,
            "results": sum.results,
            "summary": summary,
        })))
    }

    /// Adds a turn, and to `sum` which of its documents were in earlier turns. `context` has the
    /// documents in the order of `blocks`. Returns whether there were earlier turns.
    pub(crate) fn turn(
        &mut self,
        id: &str,
        context: &Context,
        blocks: &[Block],
        parent: Option<String>,
        hint: Option<&str>,
        sum: &mut Sum,
    ) -> bool {
        let mut first: HashMap<Block, (usize, String)> = HashMap::new();
        let chain = parent.as_deref().map(|parent| self.turns.chain(parent));
        let chain = chain.unwrap_or_default();
        let continued = !chain.is_empty();
        sum.continued += usize::from(continued);
        for (at, (source, turn)) in chain.iter().enumerate() {
            for block in &turn.blocks {
                first
                    .entry(*block)
                    .or_insert_with(|| (at + 1, (*source).to_owned()));
            }
        }
        let (mut old, mut new, mut hints) = (Vec::new(), Vec::new(), Vec::new());
        for (block, value) in blocks.iter().zip(&context.values) {
            match first.get(block) {
                Some((turn, source)) => {
                    hints.push(self.hint(hint.unwrap_or(HINT), *block, value, *turn, source));
                    old.push(value);
                }
                None => new.push(value),
            }
        }
        sum.overlapping += old.len();
        sum.results.push(json!({
            "request_id": id,
            "original_docs": context.values,
            "deduplicated_docs": new,
            "overlapping_docs": old,
            "new_docs": new,
            "reference_hints": hints,
            "blocks_deduped": 0,
            "blocks_total": 0,
            "block_chars_saved": 0,
        }));
        // Contexts with the same blocks share an id in a first batch.
        self.end_turn(id);
        self.blocks.use_all(blocks);
        self.turns.add(id, parent, blocks.to_vec());
        if self.turns.ids.len() > self.limits.turns {
            let oldest = self.turns.ids.values().next().cloned();
            if let Some(oldest) = oldest {
                self.end_turn(&oldest);
            }
        }
        continued
    }

    /// Forgets a turn and those before it. Returns their number.
    pub(crate) fn end_conversation(&mut self, id: &str) -> usize {
        let chain: Vec<String> = self
            .turns
            .chain(id)
            .iter()
            .map(|(id, _)| (*id).to_owned())
            .collect();
        for id in &chain {
            self.end_turn(id);
        }
        chain.len()
    }

    fn end_turn(&mut self, id: &str) {
        if let Some(turn) = self.turns.remove(id) {
            self.blocks.release_all(&turn.blocks);
        }
    }

    /// The name of a text is its number in the order of first appearance.
    fn hint(&self, hint: &str, block: Block, value: &Value, turn: usize, source: &str) -> String {
        let name = match (value, self.blocks.info(block)) {
            (Value::String(_), Some(info)) => info.number.to_string(),
            (value, _) => value.to_string(),
        };
        hint.replace("{doc_id}", &name)
            .replace("{turn_number}", &turn.to_string())
            .replace("{source_request}", source)
    }
}
