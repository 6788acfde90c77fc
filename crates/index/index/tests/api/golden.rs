//! Conformance: compares recorded answers of ContextPilot's index 0.5.0 (golden/) with ours.
//!
//! Stateless answers are equal, field by field. Of stateful ones everything is that does not
//! follow from the other index's own order: see `DIFFERENT`. Statuses are equal but for those in
//! `BETTER`.

use std::collections::HashMap;

use crate::support::Asked;
use contextpilot_index::{Limits, Mode};
use serde_json::{Value, json};

/// Answers with another status here, and why.
const BETTER: [(&str, usize, u16, u16); 6] = [
    // An unknown method is the client's mistake.
    ("stateless_linkage_bad", 0, 500, 422),
    // So are objects in the place of documents.
    ("stateless_objects", 0, 500, 422),
    // Integers may be large, and the first context empty.
    ("stateless_big_ints", 0, 500, 200),
    ("stateless_first_empty_strings", 0, 500, 200),
    ("stateful_string_int_mix", 3, 500, 200),
    // It is documented there, but missing; without a state there are no turns.
    ("stateless_errors", 11, 404, 503),
];

/// Members that depend on the other index's tree, which we do not promise.
const DIFFERENT: [&str; 8] = [
    "total_tokens",
    "timestamp",
    "num_nodes",
    "active_nodes",
    "total_insertions",
    "total_removals",
    "evicted_node_ids",
    "nodes_remaining",
];

/// The same in incremental answers, where this index orders by what is cached.
const ORDER: [&str; 5] = [
    "matched_count",
    "merged_count",
    "original_indices",
    "groups",
    "reordered_contexts",
];

/// Lists that the other index makes from sets.
const SETS: [&str; 7] = [
    "deduplicated_docs",
    "new_docs",
    "evicted_request_ids",
    "not_found",
    "overlapping_docs",
    "original_docs",
    "reference_hints",
];

fn golden() -> Vec<(String, Value)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let entries = std::fs::read_dir(folder).expect("the folder");
    let mut files: Vec<(String, Value)> = entries
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let text = std::fs::read_to_string(&path).expect("a file");
            (name, serde_json::from_str(&text).expect("JSON"))
        })
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    files
}

/// Replaces ids of either index by those of the other.
fn renamed(value: &Value, names: &HashMap<String, String>) -> Value {
    match value {
        Value::String(text) => {
            let found = names.iter().find(|(name, _)| text.contains(name.as_str()));
            json!(found.map_or(text.clone(), |(name, to)| text.replace(name, to)))
        }
        Value::Array(list) => list.iter().map(|item| renamed(item, names)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| {
                (
                    names.get(name).unwrap_or(name).clone(),
                    renamed(member, names),
                )
            })
            .collect(),
        other => other.clone(),
    }
}

fn sorted(value: &Value) -> Vec<String> {
    let list = value.as_array().expect("a list").iter();
    let mut texts: Vec<String> = list.map(Value::to_string).collect();
    texts.sort();
    texts
}

fn without_repeats(value: &Value) -> Value {
    let context = |context: &Value| -> Value {
        let mut seen = Vec::new();
        let list = context.as_array().expect("a context");
        // One that nothing stands before keeps its repeats there, too.
        if list.iter().all(|block| block == &list[0]) {
            return context.clone();
        }
        for block in list {
            if !seen.contains(block) {
                seen.push(block.clone());
            }
        }
        json!(seen)
    };
    value
        .as_array()
        .expect("contexts")
        .iter()
        .map(context)
        .collect()
}

struct Step<'a> {
    shown: String,
    body: &'a Value,
    incremental: bool,
    repeats: bool,
}

fn compare(step: &Step<'_>, path: &str, expected: &Value, got: &Value) {
    let shown = &step.shown;
    let name = path.rsplit('.').next().unwrap_or_default();
    if DIFFERENT.contains(&name) {
        assert!(!got.is_null(), "{shown}: {path} is there");
    } else if step.incremental && ORDER.contains(&name) {
        in_another_order(step, name, got);
    } else if SETS.contains(&name) || path == ".request_ids" && step.body.is_null() {
        assert_eq!(sorted(got), sorted(expected), "{shown}: {path}");
    } else if step.repeats && name.ends_with("_contexts") && expected.is_array() {
        assert_eq!(&without_repeats(got), expected, "{shown}: {path}");
    } else {
        match (expected, got) {
            (Value::Object(expected), Value::Object(got)) => {
                for (name, value) in expected {
                    let got = got.get(name).unwrap_or(&Value::Null);
                    compare(step, &format!("{path}.{name}"), value, got);
                }
            }
            (Value::Array(expected), Value::Array(got)) => {
                assert_eq!(expected.len(), got.len(), "{shown}: {path}");
                for (expected, got) in expected.iter().zip(got) {
                    compare(step, path, expected, got);
                }
            }
            _ => assert_eq!(got, expected, "{shown}: {path}"),
        }
    }
}

/// Every context once, each with its own blocks.
fn in_another_order(step: &Step<'_>, name: &str, got: &Value) {
    let contexts = step.body["contexts"].as_array().expect("contexts");
    let all: Vec<String> = (0..contexts.len()).map(|at| at.to_string()).collect();
    let shown = &step.shown;
    match name {
        "reordered_contexts" => {
            let blocks = |list: &[Value]| {
                let mut contexts: Vec<Vec<String>> = list.iter().map(sorted).collect();
                contexts.sort();
                contexts
            };
            let got = got.as_array().expect("contexts");
            assert_eq!(blocks(got), blocks(contexts), "{shown}");
        }
        "original_indices" => assert_eq!(sorted(got), all, "{shown}"),
        "groups" => {
            let groups = got.as_array().expect("groups").iter();
            let members: Value = groups
                .flat_map(|group| group[1].as_array().expect("a group").clone())
                .collect();
            assert_eq!(sorted(&members), all, "{shown}");
        }
        _ => assert!(got.is_u64(), "{shown}: {name}"),
    }
}

/// Checks that each index in the schedule leads to its context.
fn is_consistent(shown: &str, body: &Value, response: &Value) {
    let indices = response["original_indices"].as_array().expect("indices");
    for (place, at) in indices.iter().enumerate() {
        let at = at.as_u64().expect("an index") as usize;
        let ordered = &response["reordered_contexts"][place];
        assert_eq!(
            sorted(ordered),
            sorted(&body["contexts"][at]),
            "{shown}: {place}"
        );
    }
}

#[test]
fn answers_equal_the_recorded_ones_of_the_python_index() {
    let mut files = 0;
    for (name, scenario) in golden() {
        files += 1;
        let stateless = scenario["mode"] == "stateless";
        let mode = if stateless {
            Mode::Stateless
        } else {
            Mode::Live
        };
        let mut index = Asked::new(mode, Limits::default());
        let mut ours: HashMap<String, String> = HashMap::new();
        let mut theirs: HashMap<String, String> = HashMap::new();
        for (number, step) in scenario["steps"]
            .as_array()
            .expect("steps")
            .iter()
            .enumerate()
        {
            let request = &step["request"];
            let (method, path) = (
                request["method"].as_str().expect("a method"),
                request["path"].as_str().expect("a path"),
            );
            let mut body = renamed(&request["body"], &ours);
            if !stateless && body["contexts"].is_array() {
                // Its own order, of which a first batch has everything.
                body["order"] = json!("clustered");
            }
            let raw = request["raw"].as_str().map(str::to_owned);
            let sent = raw.unwrap_or_else(|| body.to_string());
            let answer = index.ask(method, path, sent.as_bytes());
            let shown = format!("{name}, step {number} ({method} {path})");
            let status = step["status"].as_u64().expect("a status") as u16;
            let better = BETTER
                .iter()
                .find(|(of, at, ..)| *of == name && *at == number);
            if let Some((_, _, theirs, ours)) = better {
                assert_eq!((status, answer.status), (*theirs, *ours), "{shown}");
                continue;
            }
            assert_eq!(answer.status, status, "{shown}: {}", answer.body);
            if status >= 400 {
                let detail = answer.body["detail"].is_null();
                assert!(!detail || answer.body["message"].is_string(), "{shown}");
                continue;
            }
            let expected = &step["response"];
            if let Some(list) = expected["request_ids"]
                .as_array()
                .filter(|_| !body.is_null())
            {
                let got = answer.body["request_ids"].as_array().expect("ids");
                for (theirs_id, our_id) in list.iter().zip(got) {
                    let (theirs_id, our_id) = (
                        theirs_id.as_str().expect("an id"),
                        our_id.as_str().expect("an id"),
                    );
                    assert!(our_id.starts_with("req-") && our_id.len() == 16, "{our_id}");
                    let before = ours.insert(theirs_id.to_owned(), our_id.to_owned());
                    assert!(
                        before.is_none_or(|before| before == our_id),
                        "{shown}: {theirs_id}"
                    );
                    theirs.insert(our_id.to_owned(), theirs_id.to_owned());
                }
            }
            let got = renamed(&answer.body, &theirs);
            let step = Step {
                body: &request["body"],
                incremental: expected["mode"] == "incremental",
                repeats: name == "stateless_repeated_block",
                shown,
            };
            compare(&step, "", expected, &got);
            if expected["mode"] == "stateless" && path != "/health" && path != "/" && !step.repeats
            {
                assert_eq!(&got, expected, "{}: nothing else", step.shown);
            }
            if got.get("original_indices").is_some() && !step.repeats {
                is_consistent(&step.shown, &body, &got);
            }
        }
    }
    assert!(files >= 30, "{files} files");
}
