//! The state of the index, its forecasts and its limits.

use crate::support::Asked;
use contextpilot_index::{Limits, Mode, Timings, Truth};
use proptest::prelude::*;
use serde_json::{Value, json};

fn live() -> Asked {
    let mut asked = Asked::new(Mode::Live, Limits::default());
    asked.index.set_truth(Truth::Engine);
    asked
}

/// Orders one context. Returns the order and its id.
fn order(asked: &mut Asked, context: Value) -> (Value, String) {
    let answer = asked.post("/reorder", json!({"contexts": [context]}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let id = answer.body["request_ids"][0]
        .as_str()
        .expect("an id")
        .to_owned();
    (answer.body, id)
}

#[test]
fn only_requests_that_the_engine_reports_as_cached_count() {
    let mut asked = live();
    let (_, first) = order(&mut asked, json!(["a", "b", "c"]));
    let (body, _) = order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(
        body["expected_from"],
        json!([null]),
        "nothing is cached yet"
    );
    asked.index.cached(&first, 30);
    let (body, second) = order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(body["reordered_contexts"], json!([["a", "b", "x"]]));
    assert_eq!(body["expected_from"], json!([first]));
    assert_eq!(body["matched_count"], 1);
    assert_eq!(body["cache_truth"], "engine");
    asked.index.cached(&second, 30);
    asked.index.evicted(&first);
    // The first one is gone; what it began with is still there.
    let (body, _) = order(&mut asked, json!(["c", "b", "a"]));
    assert_eq!(body["reordered_contexts"], json!([["a", "b", "c"]]));
    assert_eq!(body["expected_from"], json!([second]));
    asked.index.nothing_cached();
    let (body, _) = order(&mut asked, json!(["c", "b", "a"]));
    assert_eq!(body["expected_from"], json!([null]));
}

#[test]
fn the_hooks_forecast_is_answered_and_learned_from() {
    let mut asked = live();
    let reused = |tokens| Timings {
        reused: tokens,
        prompt: Some(100),
    };
    let (_, first) = order(&mut asked, json!(["a", "b", "c"]));
    asked.index.cached(&first, 100);
    asked.index.completed(&first, reused(0));
    // The hook does not answer: the index's own estimate.
    let (body, _) = order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(body["expected_from"], json!([first]));

    // The whole common prefix: the engine's figures say how much that is.
    asked.reuses(|question| question.common);
    let (body, second) = order(&mut asked, json!(["y", "b", "a"]));
    assert_eq!(body["expected_from"], json!([first]));
    asked.index.completed(&second, reused(41));
    let (body, third) = order(&mut asked, json!(["z", "b", "a"]));
    assert_eq!(body["expected_cached_tokens"], json!([41]));

    // Less: by its rules the engine reuses nothing now. That says nothing about the blocks.
    asked.reuses(|_| 0);
    asked.index.completed(&third, reused(41));
    let (body, fourth) = order(&mut asked, json!(["u", "b", "a"]));
    assert_eq!(body["expected_cached_tokens"], json!([0]));
    assert_eq!(body["expected_from"], json!([null]));
    asked.index.completed(&fourth, reused(0));
    assert_eq!(asked.index.errors().quantile(0.5), Some(0));
    asked.hook = None;
    let (body, _) = order(&mut asked, json!(["v", "b", "a"]));
    assert_eq!(body["expected_cached_tokens"], json!([41]));

    // The query names the most similar request or, without one, only the template.
    asked.reuses(|question| {
        assert_eq!(question.id, "req-000000000001");
        7
    });
    let (body, _) = order(&mut asked, json!(["new", "other"]));
    assert_eq!(body["expected_cached_tokens"], json!([7]));
    assert_eq!(body["expected_from"], json!([null]));
}

/// The stream of the hook may end for a moment. What the engine had then is not taken for gone by guesses.
#[test]
fn while_the_engine_is_not_heard_what_it_had_is_kept_beside_the_guesses() {
    let mut asked = Asked::new(
        Mode::Live,
        Limits {
            guessed: 2,
            ..Limits::default()
        },
    );
    asked.index.set_truth(Truth::Engine);
    let had: Vec<String> = (0..5)
        .map(|n| {
            let (_, id) = order(&mut asked, json!([n]));
            asked.index.cached(&id, 1);
            id
        })
        .collect();
    asked.index.set_truth(Truth::Guess);
    for n in [10, 11] {
        order(&mut asked, json!([n]));
    }
    let ids = asked.index.ids();
    assert!(had.iter().all(|id| ids.contains(id)), "{ids:?}");
    order(&mut asked, json!([12]));
    assert_eq!(
        asked.index.ids().len(),
        7,
        "now the oldest is taken for gone"
    );
}

#[test]
fn without_reports_of_the_engine_the_index_guesses_and_says_so() {
    let mut asked = Asked::new(
        Mode::Live,
        Limits {
            guessed: 2,
            ..Limits::default()
        },
    );
    let (body, first) = order(&mut asked, json!([1, 2]));
    assert_eq!(body["cache_truth"], "own guess");
    let (body, _) = order(&mut asked, json!([3, 2, 1]));
    assert_eq!(body["reordered_contexts"], json!([[1, 2, 3]]));
    assert_eq!(body["expected_from"], json!([first]));
    order(&mut asked, json!([7]));
    assert_eq!(asked.index.ids().len(), 2, "the oldest is taken for gone");
    let answer = asked.post("/evict", json!({"request_ids": asked.index.ids()}));
    assert_eq!(answer.body["removed_count"], 2);
    let (body, _) = order(&mut asked, json!([3, 2, 1]));
    assert_eq!(body["expected_from"], json!([null]));
}

#[test]
fn a_batch_continues_cached_prefixes_and_begins_with_them() {
    let mut asked = live();
    let (_, first) = order(&mut asked, json!([9, 8, 1]));
    asked.index.cached(&first, 30);
    let answer = asked.post(
        "/reorder",
        json!({"contexts": [[1, 2, 3], [1, 2, 4], [8, 9, 5]]}),
    );
    let body = answer.body;
    assert_eq!(body["original_indices"][0], 2, "{body}");
    assert_eq!(body["reordered_contexts"][0], json!([9, 8, 5]), "{body}");
    // By the order of the input.
    assert_eq!(body["expected_from"][2], json!(first), "{body}");
    let ids = body["request_ids"].as_array().expect("ids");
    let from = body["expected_from"].as_array().expect("requests");
    assert!(
        from[0] == ids[1] || from[1] == ids[0],
        "one of the pair is before the other: {body}"
    );
}

#[test]
fn the_options_of_reorder_are_followed() {
    let mut asked = live();
    let (_, first) = order(&mut asked, json!([1, 2, 3]));
    asked.index.cached(&first, 30);
    let ask = |asked: &mut Asked, options: Value| {
        let mut body = json!({"contexts": [[3, 2, 1, 4]]});
        for (name, value) in options.as_object().expect("options") {
            body[name] = value.clone();
        }
        asked.post("/reorder", body).body
    };
    let ordered = |body: &Value| body["reordered_contexts"][0].clone();
    let body = ask(&mut asked, json!({"importance_note": true}));
    assert_eq!(ordered(&body), json!([1, 2, 3, 4]));
    let note = body["importance_notes"][0].as_str().expect("a note");
    assert!(note.contains("3 > 2 > 1 > 4"), "{note}");
    let body = ask(
        &mut asked,
        json!({"order": "none", "importance_note": true}),
    );
    assert_eq!(ordered(&body), json!([3, 2, 1, 4]));
    assert_eq!(body["importance_notes"], json!([null]));
    assert_eq!(ordered(&ask(&mut asked, json!({"keep_first": 1})))[0], 3);
    for body in [
        json!({"order": "best"}),
        json!({"keep_first": -1}),
        json!({"stable": 1}),
    ] {
        let mut whole = json!({"contexts": []});
        let (name, value) = body.as_object().expect("one").iter().next().expect("one");
        whole[name] = value.clone();
        assert_eq!(asked.post("/reorder", whole).status, 422, "{body}");
    }
}

#[test]
fn errors_of_forecasts_are_counted_and_learned_from() {
    let mut asked = live();
    let timings = |reused| Timings {
        reused,
        prompt: Some(reused + 20),
    };
    let (body, first) = order(&mut asked, json!([1, 2]));
    assert_eq!(body["expected_cached_tokens"], json!([0]));
    asked.index.completed(&first, timings(0));
    asked.index.cached(&first, 20);
    for round in 0..5 {
        let (body, id) = order(&mut asked, json!([2, 1, 50 + round]));
        let expected = body["expected_cached_tokens"][0].as_u64().expect("tokens");
        assert_eq!(expected == 33, round > 0, "{expected} in round {round}");
        asked.index.completed(&id, timings(33));
        asked.index.completed(&id, timings(33));
    }
    assert_eq!(asked.index.errors().count(), 6, "each is compared once");
    assert_eq!(asked.index.errors().quantile(0.5), Some(0));
    let stats = asked.ask("GET", "/stats", b"").body;
    assert_eq!(stats["prediction"]["error_tokens_median"], 0, "{stats}");
    assert!(
        asked
            .index
            .metrics()
            .contains("contextpilot_index_prediction_error_tokens_median 0")
    );
}

#[test]
fn an_evicted_request_is_freed() {
    let mut asked = live();
    for round in 0..200 {
        let (_, id) = order(&mut asked, json!([round, round + 1, "text"]));
        asked.index.cached(&id, 10);
    }
    for id in asked.index.ids() {
        asked.index.evicted(&id);
    }
    let stats = asked.ask("GET", "/stats", b"").body;
    assert_eq!(stats["index_stats"]["num_requests"], 0);
    assert_eq!(stats["index_stats"]["num_nodes"], 1);
    assert_eq!(stats["index_stats"]["total_tokens"], 0);
}

#[test]
fn after_thousands_of_events_the_live_set_equals_the_engines() {
    let limits = Limits {
        requests: 200,
        blocks: 400,
        ..Limits::default()
    };
    let mut asked = Asked::new(Mode::Live, limits);
    asked.index.set_truth(Truth::Engine);
    let mut engine: std::collections::VecDeque<String> = std::collections::VecDeque::new();
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for step in 0..3000 {
        let context: Vec<u64> = (0..1 + draw(6)).map(|_| draw(90)).collect();
        let (_, id) = order(&mut asked, json!(context));
        match draw(10) {
            0 => {} // Never sent.
            _ => {
                asked.index.cached(&id, 10);
                engine.push_back(id);
            }
        }
        // The engine holds 40 prompts, and loses all of them now and then.
        while engine.len() > 40 {
            let place = draw(engine.len() as u64) as usize;
            let gone = engine.remove(place).expect("it is there");
            match draw(2) {
                0 => asked.index.evicted(&gone),
                _ => {
                    let answer = asked.post("/evict", json!({"request_ids": [gone]}));
                    assert_eq!(answer.body["removed_count"], 1);
                }
            }
        }
        if step % 1000 == 999 {
            engine.clear();
            asked.index.nothing_cached();
        }
        if step % 50 == 0 {
            let mut held: Vec<&String> = engine.iter().collect();
            let mut known = asked.index.cached_ids();
            held.sort();
            known.sort();
            assert!(held.into_iter().eq(&known), "step {step}");
            assert!(asked.index.ids().len() <= 200);
        }
    }
}

#[test]
fn beyond_a_limit_the_error_says_what_to_do() {
    let limits = Limits {
        contexts: 3,
        blocks_in_call: 8,
        requests: 4,
        blocks: 16,
        ..Limits::default()
    };
    let mut asked = Asked::new(Mode::Live, limits);
    asked.index.set_truth(Truth::Engine);
    let answer = asked.post("/reorder", json!({"contexts": [[1], [2], [3], [4]]}));
    assert_eq!(answer.status, 413, "{}", answer.body);
    let answer = asked.post(
        "/reorder",
        json!({"contexts": [[1, 2, 3, 4, 5], [6, 7, 8, 9]]}),
    );
    assert_eq!(answer.status, 413, "{}", answer.body);
    // Requests that were never sent make room.
    for round in 0..10 {
        order(&mut asked, json!([round]));
    }
    assert_eq!(asked.index.ids().len(), 4);
    for id in asked.index.ids() {
        asked.index.cached(&id, 1);
    }
    let answer = asked.post("/reorder", json!({"contexts": [[1]]}));
    assert_eq!(answer.status, 429);
    assert!(
        answer.body["detail"].to_string().contains("POST /evict"),
        "{}",
        answer.body
    );
    let ids = asked.index.ids();
    assert_eq!(
        asked.post("/evict", json!({"request_ids": ids})).body["removed_count"],
        4
    );
    // Blocks in use are not forgotten, the others are.
    for round in 0..3 {
        let blocks: Vec<u32> = (0..5).map(|n| 1000 * round + n).collect();
        let (_, id) = order(&mut asked, json!(blocks));
        asked.index.cached(&id, 1);
    }
    let answer = asked.post("/reorder", json!({"contexts": [[1, 2, 3, 4, 5, 6]]}));
    assert_eq!(answer.status, 429, "{}", answer.body);
    // Four of these are known already, and there is room for one.
    order(&mut asked, json!([1, 2, 3, 4, 5]));
}

#[test]
fn tokens_that_clients_claim_do_not_overflow() {
    let mut asked = live();
    for context in [json!(["a"]), json!(["b"])] {
        let body = json!({"contexts": [context], "initial_tokens_per_context": u64::MAX});
        assert_eq!(asked.post("/reorder", body).status, 200);
    }
    let body = json!({"context": ["c"], "total_tokens": u64::MAX});
    assert_eq!(asked.post("/insert", body).status, 200);
    let total = |asked: &mut Asked| {
        let stats = asked.ask("GET", "/stats", b"").body;
        stats["index_stats"]["total_tokens"].as_u64()
    };
    assert_eq!(total(&mut asked), Some(u64::MAX));
    for id in asked.index.ids() {
        asked.index.evicted(&id);
    }
    assert_eq!(total(&mut asked), Some(0));
}

#[test]
fn a_long_prompt_in_host_memory_takes_linear_time() {
    let limits = Limits {
        blocks_in_context: 20_000,
        ..Limits::default()
    };
    let mut asked = Asked::new(Mode::Live, limits);
    asked.index.set_truth(Truth::Engine);
    let context: Vec<u32> = (0..20_000).collect();
    let (_, id) = order(&mut asked, json!(context));
    asked.index.cached(&id, 60_000);
    let start = std::time::Instant::now();
    asked.index.moved_to_host(&[id], 60_000);
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
}

#[test]
fn deduplicate_works_as_documented() {
    let mut asked = live();
    let body = json!({"contexts": [[4, 3, 1]], "deduplicate": true, "parent_request_ids": [null]});
    let first = asked.post("/build", body).body["request_ids"][0].clone();
    let body = json!({"contexts": [[4, 3, 2]], "parent_request_ids": [&first]});
    let answer = asked.post("/deduplicate", body).body;
    assert_eq!(answer["results"][0]["overlapping_docs"], json!([4, 3]));
    assert_eq!(answer["results"][0]["new_docs"], json!([2]));
    assert_eq!(answer["results"][0]["is_new_conversation"], false);
    assert_eq!(answer["results"][0]["parent_request_id"], first);
    let second = answer["results"][0]["request_id"].clone();
    let template = "[Previous context includes Doc {doc_id} from message {turn_number}]";
    let body = json!({
        "contexts": [[4, 2, 5], [7]], "parent_request_ids": [second, null], "hint_template": template,
    });
    let answer = asked.post("/deduplicate", body).body;
    assert_eq!(
        answer["results"][0]["reference_hints"],
        json!([
            "[Previous context includes Doc 4 from message 1]",
            "[Previous context includes Doc 2 from message 2]",
        ])
    );
    assert_eq!(answer["summary"]["new_conversations"], 1);
    assert_eq!(answer["summary"]["continued_conversations"], 1);
    assert_eq!(answer["summary"]["total_docs_deduplicated"], 2);
    assert_eq!(answer["results"][0]["is_new_conversation"], false);
    assert_eq!(answer["results"][1]["is_new_conversation"], true);
    assert_eq!(answer["results"][1]["parent_request_id"], Value::Null);
}

/// As ContextPilot's own tests expect. Conversations need no `/reorder`.
#[test]
fn deduplicate_begins_a_conversation_in_a_new_index() {
    let mut asked = live();
    let mut turn = |documents: [u32; 3], parent: Value| {
        let body = json!({"contexts": [documents], "parent_request_ids": [parent]});
        let answer = asked.post("/deduplicate", body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["results"][0].clone()
    };
    let first = turn([10, 20, 30], Value::Null);
    assert_eq!(first["is_new_conversation"], true);
    let second = turn([20, 30, 40], first["request_id"].clone());
    assert_eq!(second["is_new_conversation"], false);
    assert_eq!(second["new_docs"], json!([40]));
    // A parent that was forgotten, or never known.
    let other = turn([20, 30, 40], json!("req-000000000000"));
    assert_eq!(other["is_new_conversation"], true);
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (0..6_i64).prop_map(|n| json!(n)),
        2 => "[abc]{0,2}".prop_map(|text| json!(text)),
        1 => any::<f64>().prop_map(|float| json!(float)),
        1 => any::<i64>().prop_map(|n| json!(n)),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(|flag| json!(flag)),
    ]
}

fn anything() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::btree_map("[a-d]", inner, 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn body() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec![
        "contexts",
        "context",
        "request_ids",
        "alpha",
        "linkage_method",
        "deduplicate",
        "keep_first",
        "parent_request_ids",
        "hint_template",
        "order",
        "stable",
        "total_tokens",
        "importance_note",
        "initial_tokens_per_context",
    ]);
    let contexts = prop::collection::vec(
        prop::collection::vec((0..6_i64).prop_map(|n| json!(n)), 0..5),
        0..5,
    );
    let members = prop::collection::btree_map(name, anything(), 0..4);
    (members, prop::option::weighted(0.7, contexts)).prop_map(|(members, contexts)| {
        let mut body: serde_json::Map<String, Value> = members
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        if let Some(contexts) = contexts {
            body.insert("contexts".to_owned(), json!(contexts));
        }
        Value::Object(body)
    })
}

fn blocks(list: &Value) -> Vec<String> {
    let mut blocks: Vec<String> = list
        .as_array()
        .expect("a list")
        .iter()
        .map(Value::to_string)
        .collect();
    blocks.sort();
    blocks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_request_is_a_500(
        requests in prop::collection::vec((0..9_usize, body()), 1..12),
        raw in prop::collection::vec(any::<u8>(), 0..40),
        engine in any::<bool>(),
        stateless in any::<bool>(),
    ) {
        let paths = ["/reorder", "/build", "/schedule", "/deduplicate", "/evict", "/search", "/insert", "/reset", "/x"];
        let mode = if stateless { Mode::Stateless } else { Mode::Live };
        let limits = Limits { requests: 6, blocks: 20, guessed: 4, turns: 3, ..Limits::default() };
        let mut asked = Asked::new(mode, limits);
        if engine {
            asked.index.set_truth(Truth::Engine);
        }
        for path in paths {
            let status = asked.ask("POST", path, &raw).status;
            prop_assert!(status < 500 || status == 503, "{path} {status}");
        }
        for (path, body) in requests {
            let answer = asked.post(paths[path], body.clone());
            prop_assert!(answer.status < 500 || answer.status == 503, "{} {body}", paths[path]);
            if answer.status == 200 && paths[path] == "/reorder" {
                let contexts = body["contexts"].as_array().expect("contexts");
                let indices = answer.body["original_indices"].as_array().expect("indices");
                prop_assert_eq!(indices.len(), contexts.len());
                for (place, at) in indices.iter().enumerate() {
                    let given = &contexts[at.as_u64().expect("an index") as usize];
                    prop_assert_eq!(blocks(&answer.body["reordered_contexts"][place]), blocks(given));
                }
                if engine {
                    for id in asked.index.ids().iter().step_by(2) {
                        asked.index.cached(id, 10);
                    }
                }
            }
            for path in ["/", "/health", "/ready", "/stats", "/requests"] {
                let status = asked.ask("GET", path, b"").status;
                prop_assert!(status == 200 || status == 503, "{path} {status}");
            }
            prop_assert!(asked.index.ids().len() <= 6);
        }
    }
}

/// What other contexts of the batch will leave in the cache was not there before it.
#[test]
fn a_context_that_begins_like_another_of_its_batch_only_is_no_match() {
    let three = json!({"contexts": [[5, 6, 7], [5, 6, 8], [1, 9, 4]]});
    for truth in [Truth::Engine, Truth::Guess] {
        let mut asked = live();
        asked.index.set_truth(truth);
        let (_, first) = order(&mut asked, json!([20, 21, 22]));
        if truth == Truth::Engine {
            asked.index.cached(&first, 30);
        }
        let counts = |body: &Value| (body["matched_count"].clone(), body["merged_count"].clone());
        let body = asked.post("/build", three.clone()).body;
        assert_eq!(counts(&body), (json!(0), json!(3)), "{truth:?}: {body}");
        // The second of the pair is expected to find the first, which is a forecast.
        let from = body["expected_from"].as_array().expect("ids").iter();
        assert_eq!(from.filter(|id| id.is_string()).count(), 1, "{body}");
        let ids = body["request_ids"].as_array().expect("ids").clone();
        for id in ids.iter().filter(|_| truth == Truth::Engine) {
            asked.index.cached(id.as_str().expect("an id"), 30);
        }
        let body = asked.post("/build", three.clone()).body;
        assert_eq!(counts(&body), (json!(3), json!(0)), "{truth:?}: {body}");
        let metrics = asked.ask("GET", "/stats", b"").body;
        assert_eq!(metrics["index_stats"]["total_insertions"], 3, "{metrics}");
    }
}

/// The first batch of an index finds nothing.
#[test]
fn the_first_batch_has_no_matches() {
    let mut asked = live();
    let body = asked
        .post("/build", json!({"contexts": [[1, 2], [1, 2, 3]]}))
        .body;
    assert_eq!(body["matched_count"], 0, "{body}");
    let stats = asked.ask("GET", "/stats", b"").body;
    assert_eq!(stats["index_stats"]["total_insertions"], 0, "{stats}");
}
