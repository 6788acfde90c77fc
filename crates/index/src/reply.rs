//! The answer to a `/reorder`.

use contextpilot_order::{Block, importance_note};
use serde_json::{Value, json};

use crate::context::Context;
use crate::deduplicate::Sum;
use crate::numbering::are_texts;
use crate::reorder::{Facts, Kind, Placed, Worked};
use crate::{Answer, Index};

impl Worked {
    fn len(&self) -> usize {
        self.reorder.contexts.len()
    }

    fn context(&self, at: usize) -> Vec<&Value> {
        let values = &self.reorder.contexts[at].values;
        self.places[at]
            .iter()
            .map(|place| &values[*place])
            .collect()
    }

    fn groups(&self, number: impl Fn(&[usize]) -> usize) -> Vec<Value> {
        let groups = self.batch.groups.iter();
        groups.map(|group| json!([number(group), group])).collect()
    }

    fn input_type(&self) -> &'static str {
        match are_texts(&self.reorder.contexts) {
            true => "string",
            false => "integer",
        }
    }

    fn stateless(&self) -> Answer {
        let schedule: Vec<usize> = self.batch.schedule().collect();
        let contexts: Vec<_> = schedule.iter().map(|at| self.context(*at)).collect();
        let mut body = json!({
            "status": "success",
            "message": "Contexts reordered successfully (stateless mode)",
            "mode": "stateless",
            "input_type": self.input_type(),
            "num_contexts": self.len(),
            "num_groups": self.batch.groups.len(),
            "reordered_contexts": contexts,
            "original_indices": schedule,
            "scheduled_contexts": contexts,
            "groups": self.groups(|_| 0),
            "stats": {
                "total_nodes": self.batch.nodes,
                "leaf_nodes": self.batch.leaves,
                "num_contexts": self.len(),
                "num_groups": self.batch.groups.len(),
            },
        });
        self.add_notes(&mut body, &schedule);
        Answer::ok(body)
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

    /// The answer, once the batch is finished ([`Index::finish`]).
    #[must_use]
    pub fn answer(&self) -> Answer {
        match (&self.facts, self.kind) {
            (_, Kind::Stateless) => self.stateless(),
            (Some(facts), _) => self.live(facts),
            (None, _) => Answer::error(503, "the batch is not finished: try again"),
        }
    }

    fn live(&self, facts: &Facts) -> Answer {
        let schedule: Vec<usize> = self.batch.schedule().collect();
        let contexts: Vec<_> = schedule.iter().map(|at| self.context(*at)).collect();
        let of = |part: fn(&Placed) -> Value| -> Value { self.placed.iter().map(part).collect() };
        let matched = self.placed.iter().filter(|placed| placed.matched).count();
        let mut body = json!({
            "status": "success",
            "input_type": self.input_type(),
            "num_contexts": self.len(),
            "request_ids": of(|placed| json!(placed.id)),
            "reordered_contexts": contexts,
            "original_indices": schedule,
            "stats": facts.stats,
            "expected_cached_tokens": of(|placed| json!(placed.expected)),
            "expected_from": of(|placed| json!(placed.from)),
            "cache_truth": facts.truth.as_str(),
        });
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
        if let Some(warning) = &facts.warning {
            body["warning"] = json!(warning);
        }
        self.add_notes(&mut body, &schedule);
        if let Some(deduplication) = &facts.deduplication {
            body["deduplication"] = deduplication.clone();
        }
        Answer::ok(body)
    }
}

impl Index {
    /// The part about the state, at the end of a batch.
    pub(crate) fn facts(&mut self, worked: &Worked) -> Facts {
        let deduplication = worked.reorder.deduplicate.then(|| self.turns_of(worked));
        Facts {
            stats: self.index_stats(),
            truth: self.truth,
            warning: self.warning.clone(),
            deduplication,
        }
    }

    fn turns_of(&mut self, worked: &Worked) -> Value {
        let mut sum = Sum::default();
        for (at, placed) in worked.placed.iter().enumerate() {
            let given = &worked.reorder.contexts[at];
            let places = worked.places[at].iter();
            let context = Context {
                values: places
                    .clone()
                    .map(|place| given.values[*place].clone())
                    .collect(),
                keys: places.map(|place| given.keys[*place]).collect(),
            };
            let blocks = self.intern(&context);
            let parent = worked.reorder.parents.get(at).cloned().flatten();
            let hint = worked.reorder.hint.as_deref();
            self.turn(&placed.id, &context, &blocks, parent, hint, &mut sum);
        }
        sum.member()
    }
}
