//! `/deduplicate`: finds documents that were in earlier turns of a conversation.

use std::collections::HashMap;

use contextpilot_order::Block;
use serde_json::{Value, json};

use crate::context::Context;
use crate::piece::{Next, Piece, REQUEST};
use crate::query::Reorder;
use crate::{Index, IndexAnswer};

const HINT: &str = "Please refer to [Doc {doc_id}] from the previous conversation turn.";

/// The sums over all results of a call.
#[derive(Debug, Default)]
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

/// A `/deduplicate` that is being answered.
#[derive(Debug)]
pub(crate) struct Deduplication {
    reorder: Reorder,
    ids: Vec<String>,
    sum: Sum,
    /// Requests that may make room for it came before this number.
    before: u64,
    refused: Option<IndexAnswer>,
}

impl Deduplication {
    pub(crate) fn next(&self) -> Next {
        let rest = match self.refused {
            Some(_) => !self.ids.is_empty(),
            None => self.ids.len() < self.reorder.contexts.len(),
        };
        if rest { Next::State } else { Next::Answer }
    }

    pub(crate) fn is_small(&self) -> bool {
        self.reorder.is_small()
    }

    pub(crate) fn answer(self) -> IndexAnswer {
        let Self {
            ids, sum, refused, ..
        } = self;
        if let Some(refused) = refused {
            return refused;
        }
        let summary = json!({
            "total_contexts": ids.len(),
            "new_conversations": ids.len() - sum.continued,
            "continued_conversations": sum.continued,
            "total_docs_deduplicated": sum.overlapping,
        });
        IndexAnswer::ok(json!({
            "status": "success",
            "message": "Contexts deduplicated",
            "request_ids": ids,
            "results": sum.results,
            "summary": summary,
        }))
    }
}

/// What a turn is about.
pub(crate) struct NewTurn<'a> {
    pub(crate) id: &'a str,
    /// Its documents, in the order of their blocks.
    pub(crate) context: &'a Context,
    pub(crate) blocks: &'a [Block],
    pub(crate) parent: Option<String>,
    pub(crate) hint: Option<&'a str>,
}

impl Index {
    /// Does not order, only finds new documents.
    pub(crate) fn deduplicate(&self, reorder: Reorder) -> Deduplication {
        Deduplication {
            ids: Vec::with_capacity(reorder.contexts.len()),
            reorder,
            sum: Sum::default(),
            before: self.requests.next_number(),
            refused: None,
        }
    }

    pub(crate) fn deduplicate_some(
        &mut self,
        job: &mut Deduplication,
        piece: &mut Piece,
        new_id: &mut dyn FnMut() -> String,
    ) {
        while job.refused.is_none() && !piece.is_full() {
            let Some(context) = job.reorder.contexts.get(job.ids.len()) else {
                return;
            };
            let blocks = match self.admit(context, 0, job.before) {
                Ok(blocks) => blocks,
                Err(answer) => {
                    self.counters.refused += 1;
                    job.refused = Some(*answer);
                    break;
                }
            };
            let id = new_id();
            let parent = job.reorder.parents.get(job.ids.len()).cloned().flatten();
            let turn = NewTurn {
                id: &id,
                context,
                blocks: &blocks,
                parent: parent.clone(),
                hint: job.reorder.hint.as_deref(),
            };
            let continued = self.turn(turn, &mut job.sum, piece);
            // Besides the members of a `/reorder`.
            if let Some(result) = job.sum.results.last_mut() {
                result["is_new_conversation"] = json!(!continued);
                result["parent_request_id"] = json!(parent.filter(|_| continued));
            }
            job.ids.push(id);
        }
        if job.refused.is_some() {
            self.end_turns(&mut job.ids, piece);
        }
    }

    /// Adds a turn, and to `sum` which of its documents were in earlier turns. Returns whether there were
    /// earlier turns.
    pub(crate) fn turn(&mut self, turn: NewTurn<'_>, sum: &mut Sum, piece: &mut Piece) -> bool {
        let NewTurn {
            id,
            context,
            blocks,
            parent,
            hint,
        } = turn;
        let mut first: HashMap<Block, (usize, &str)> = HashMap::new();
        let chain = parent.as_deref().map(|parent| self.turns.chain(parent));
        let chain = chain.unwrap_or_default();
        let continued = !chain.is_empty();
        sum.continued += usize::from(continued);
        for (at, (source, turn)) in chain.iter().enumerate() {
            piece.done(1 + turn.blocks.len());
            for block in &turn.blocks {
                first.entry(*block).or_insert((at + 1, *source));
            }
        }
        piece.done(REQUEST + blocks.len());
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
        if self.turns.len() > self.limits.turns {
            if let Some(oldest) = self.turns.oldest() {
                self.end_turn(&oldest);
            }
        }
        continued
    }

    /// Forgets a turn and those before it. Returns their number, and that of their blocks.
    pub(crate) fn end_conversation(&mut self, id: &str) -> (usize, usize) {
        let chain: Vec<String> = self
            .turns
            .chain(id)
            .iter()
            .map(|(id, _)| (*id).to_owned())
            .collect();
        let blocks = chain.iter().map(|id| self.end_turn(id)).sum();
        (chain.len(), blocks)
    }

    /// Forgets a turn. Returns the number of its blocks.
    pub(crate) fn end_turn(&mut self, id: &str) -> usize {
        let Some(turn) = self.turns.remove(id) else {
            return 0;
        };
        self.blocks.release_all(&turn.blocks, &self.frequency);
        turn.blocks.len()
    }

    /// Forgets these turns, without those before them.
    fn end_turns(&mut self, ids: &mut Vec<String>, piece: &mut Piece) {
        while !piece.is_full() {
            let Some(id) = ids.pop() else {
                return;
            };
            let blocks = self.end_turn(&id);
            piece.done(REQUEST + blocks);
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
