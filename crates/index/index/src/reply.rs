//! The answer to a `/reorder`.

use contextpilot_order::{Block, importance_note};
use serde_json::{Value, json};

use crate::IndexAnswer;
use crate::numbering::are_texts;
use crate::reorder::{Facts, Kind, Placed, Reordering};

impl Reordering {
    fn len(&self) -> usize {
        self.reorder.contexts.len()
    }

    /// The contexts in their new order. Takes their documents, as they may be large.
    fn take_contexts(&mut self, schedule: &[usize]) -> Value {
        let contexts = schedule.iter().map(|at| {
            let values = &mut self.reorder.contexts[*at].values;
            let places = self.places[*at].iter();
            let taken: Vec<Value> = places.map(|place| values[*place].take()).collect();
            Value::Array(taken)
        });
        contexts.collect()
    }

    fn groups(&self, number: impl Fn(&[usize]) -> usize) -> Vec<Value> {
        let groups = self.batch.groups.iter();
        groups.map(|group| json!([number(group), group])).collect()
    }

    fn input_type(&self) -> &'static str {
        if are_texts(&self.reorder.contexts) {
            "string"
        } else {
            "integer"
        }
    }

    fn stateless(mut self) -> IndexAnswer {
        let schedule: Vec<usize> = self.batch.schedule().collect();
        let input_type = self.input_type();
        let contexts = self.take_contexts(&schedule);
        let mut body = json!({
            "status": "success",
            "message": "Contexts reordered successfully (stateless mode)",
            "mode": "stateless",
            "input_type": input_type,
            "num_contexts": self.len(),
            "num_groups": self.batch.groups.len(),
            "original_indices": schedule,
            "scheduled_contexts": contexts.clone(),
            "groups": self.groups(|_| 0),
            "stats": {
                "total_nodes": self.batch.nodes,
                "leaf_nodes": self.batch.leaves,
                "num_contexts": self.len(),
                "num_groups": self.batch.groups.len(),
            },
        });
        body["reordered_contexts"] = contexts;
        self.add_notes(&mut body, &schedule);
        IndexAnswer::ok(body)
    }

    fn add_notes(&self, body: &mut Value, schedule: &[usize]) {
        if self.reorder.note {
            let note = |at: &usize| {
                let ordered: Vec<Block> = self.places[*at]
                    .iter()
                    .map(|place| *place as Block)
                    .collect();
                let given: Vec<Block> = (0..ordered.len() as Block).collect();
                importance_note(&given, &ordered)
            };
            body["importance_notes"] = schedule.iter().map(note).collect();
        }
    }

    pub(crate) fn answer(mut self) -> IndexAnswer {
        if let Some(refused) = self.refused() {
            return refused;
        }
        match self.facts.take() {
            _ if self.kind == Kind::Stateless => self.stateless(),
            Some(facts) => self.live(facts),
            None => IndexAnswer::error(503, "the batch is not finished: try again"),
        }
    }

    fn live(mut self, facts: Facts) -> IndexAnswer {
        let schedule: Vec<usize> = self.batch.schedule().collect();
        let input_type = self.input_type();
        let contexts = self.take_contexts(&schedule);
        let of = |part: fn(&Placed) -> Value| -> Value { self.placed.iter().map(part).collect() };
        let matched = self.placed.iter().filter(|placed| placed.matched).count();
        let mut body = json!({
            "status": "success",
            "input_type": input_type,
            "num_contexts": self.len(),
            "request_ids": of(|placed| json!(placed.id)),
            "original_indices": schedule,
            "stats": facts.stats,
            "expected_cached_tokens": of(|placed| json!(placed.expected)),
            "expected_from": of(|placed| json!(placed.from)),
            "cache_truth": facts.truth.as_str(),
        });
        if facts.store {
            body["expected_stored_tokens"] = of(|placed| json!(placed.stored));
        }
        body["reordered_contexts"] = contexts;
        if self.kind == Kind::Initial {
            body["message"] = json!("Index built successfully");
            body["mode"] = json!("initial");
            body["matched_count"] = json!(0);
            body["inserted_count"] = json!(self.len());
            let mut mapping = serde_json::Map::new();
            for (at, placed) in self.placed.iter().enumerate() {
                mapping
                    .entry(placed.id.clone())
                    .or_insert_with(|| json!(at));
            }
            body["request_id_mapping"] = Value::Object(mapping);
        } else {
            body["message"] = json!("Incremental reorder completed");
            body["mode"] = json!("incremental");
            body["matched_count"] = json!(matched);
            body["merged_count"] = json!(self.len() - matched);
            body["groups"] = json!(self.groups(<[usize]>::len));
        }
        if let Some(warning) = facts.warning {
            body["warning"] = json!(warning);
        }
        self.add_notes(&mut body, &schedule);
        if let Some(deduplication) = facts.deduplication {
            body["deduplication"] = deduplication;
        }
        IndexAnswer::ok(body)
    }
}
