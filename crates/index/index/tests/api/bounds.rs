//! What a client can make the index keep and do is bounded, and what is refused leaves nothing behind.

use contextpilot_index::{Endpoint, Index, Limits, Mode, Next, Outcome, Query, Truth, weight};
use serde_json::{Value, json};

use crate::support::Asked;

fn live(limits: Limits) -> Asked {
    let mut asked = Asked::new(Mode::Live, limits);
    asked.index.set_truth(Truth::Engine);
    asked
}

fn kept(asked: &mut Asked) -> u64 {
    let stats = asked.ask("GET", "/stats", b"").body;
    stats["kept_bytes"].as_u64().expect("a number")
}

#[test]
fn repeated_documents_count_once() {
    let mut asked = live(Limits {
        blocks: 1000,
        ..Limits::default()
    });
    let context: Vec<u32> = (0..10).collect();
    let answer = asked.post("/reorder", json!({"contexts": vec![context; 101]}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let stats = asked.ask("GET", "/stats", b"").body;
    assert_eq!(stats["known_blocks"], 10);
    // As many as fit, with those that are known already, and not one more.
    let fits: Vec<u32> = (5..1000).collect();
    assert_eq!(
        asked.post("/reorder", json!({"contexts": [fits]})).status,
        200
    );
    for id in asked.index.ids() {
        asked.index.cached(&id, 1);
    }
    let answer = asked.post("/reorder", json!({"contexts": [[1, 2, 1000]]}));
    assert_eq!(answer.status, 429, "{}", answer.body);
}

#[test]
fn a_part_of_a_request_that_is_too_long_is_refused() {
    let mut asked = live(Limits {
        blocks_in_context: 100,
        ids_in_call: 100,
        hint: 100,
        ..Limits::default()
    });
    asked.post("/reorder", json!({"contexts": [[1]]}));
    let many: Vec<u32> = (0..101).collect();
    let ids: Vec<String> = many.iter().map(u32::to_string).collect();
    for (path, body) in [
        ("/reorder", json!({"contexts": [[1], many]})),
        ("/schedule", json!({"contexts": [many]})),
        ("/deduplicate", json!({"contexts": [many]})),
        ("/search", json!({"context": many})),
        ("/insert", json!({"context": many})),
        ("/evict", json!({"request_ids": ids})),
        (
            "/deduplicate",
            json!({"contexts": [[1]], "hint_template": "x".repeat(101)}),
        ),
    ] {
        let answer = asked.post(path, body);
        assert_eq!(answer.status, 413, "{path}: {}", answer.body);
        let why = answer.body["detail"].to_string();
        assert!(why.contains("100 are allowed: send less"), "{path}: {why}");
    }
    assert_eq!(asked.index.ids().len(), 1);
}

#[test]
fn what_is_kept_is_bounded_in_bytes() {
    let limits = Limits {
        kept: 200 << 10,
        ..Limits::default()
    };
    let mut asked = live(limits);
    let mut parent = Value::Null;
    for round in 0..300 {
        let context: Vec<u32> = (0..40).map(|n| round * 40 + n).collect();
        let answer = asked.post("/reorder", json!({"contexts": [context]}));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let body = json!({"contexts": [[round, "a"]], "parent_request_ids": [parent]});
        let answer = asked.post("/deduplicate", body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        parent = answer.body["request_ids"][0].clone();
        assert!(kept(&mut asked) <= limits.kept as u64);
    }
    assert!(
        asked.index.ids().len() > 5,
        "no more is forgotten than must be"
    );
    // What is cached stays, and then nothing more is taken.
    let mut answer = asked.post("/reorder", json!({"contexts": [["z"]]}));
    for round in 0..300 {
        for id in asked.index.ids() {
            asked.index.cached(&id, 1);
        }
        let context: Vec<u32> = (0..40).map(|n| 100_000 + round * 40 + n).collect();
        answer = asked.post("/reorder", json!({"contexts": [context]}));
        assert!(kept(&mut asked) <= limits.kept as u64);
        if answer.status != 200 {
            break;
        }
    }
    assert_eq!(answer.status, 429, "{}", answer.body);
    assert!(answer.body["detail"].to_string().contains("--max-kept"));
}

#[test]
fn what_is_only_guessed_to_be_cached_makes_room() {
    let limits = Limits {
        requests: 4,
        blocks: 30,
        kept: 40 << 10,
        ..Limits::default()
    };
    let mut asked = Asked::new(Mode::Live, limits);
    for round in 0..50 {
        let context: Vec<u32> = (0..20).map(|n| round * 20 + n).collect();
        let answer = asked.post("/reorder", json!({"contexts": [context]}));
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(kept(&mut asked) <= limits.kept as u64);
        assert!(asked.index.ids().len() <= 4);
    }
}

#[test]
fn a_batch_that_is_refused_halfway_leaves_nothing() {
    let mut asked = live(Limits {
        blocks: 40,
        ..Limits::default()
    });
    let first = asked.post("/reorder", json!({"contexts": [[1, 2, 3], [4, 5, 6]]}));
    let before = asked.index.ids();
    for id in &before {
        asked.index.cached(id, 1);
    }
    let contexts: Vec<Vec<u32>> = (1..20).map(|at| vec![at * 10, at * 10 + 1, 1]).collect();
    let parents = vec![first.body["request_ids"][0].clone(); contexts.len()];
    let body = json!({"contexts": contexts, "deduplicate": true, "parent_request_ids": parents});
    let answer = asked.post("/reorder", body);
    assert_eq!(answer.status, 429, "{}", answer.body);
    assert_eq!(asked.index.ids(), before);
    // The room is free again.
    let context: Vec<u32> = (500..530).collect();
    assert_eq!(
        asked
            .post("/reorder", json!({"contexts": [context]}))
            .status,
        200
    );
}

#[test]
fn no_piece_of_a_large_request_is_large() {
    let mut index = Index::new(Mode::Live, Limits::default());
    let mut ids = 0_u64;
    let mut new_id = || {
        ids += 1;
        format!("req-{ids:012x}")
    };
    let mut pieces = |index: &mut Index, path, body: Value| {
        let endpoint = Endpoint::find(if path == "/requests" { "GET" } else { "POST" }, path);
        let endpoint = endpoint.expect("allowed").expect("known");
        let query = Query::parse(endpoint, body.to_string().as_bytes(), index.limits());
        let Outcome::Work(mut work) = index.answer(query.expect("a query"), 0.0, &mut new_id)
        else {
            panic!("{path} is done at once");
        };
        let mut pieces = 0;
        loop {
            match work.next() {
                Next::State => {
                    index.proceed(&mut work, &mut new_id);
                    pieces += 1;
                }
                Next::Alone => work.compute(),
                Next::Answer => break,
            }
        }
        let answer = work.answer();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        (pieces, answer.body)
    };
    index.set_truth(Truth::Engine);
    pieces(&mut index, "/reorder", json!({"contexts": [[1]]}));
    let contexts: Vec<Vec<u32>> = (0..5000).map(|at| (at..at + 16).collect()).collect();
    let body = json!({"contexts": contexts, "deduplicate": true});
    let (many, answer) = pieces(&mut index, "/reorder", body);
    // 80,000 documents are placed, and compared with earlier turns.
    assert!(many > 2 * 80_000 / 4096, "{many}");
    let (many, _) = pieces(&mut index, "/deduplicate", json!({"contexts": contexts}));
    assert!(many > 80_000 / 4096, "{many}");
    let (many, _) = pieces(&mut index, "/requests", json!(null));
    assert!(many > 1, "{many}");
    let (many, _) = pieces(
        &mut index,
        "/evict",
        json!({"request_ids": answer["request_ids"]}),
    );
    assert!(many > 80_000 / 4096, "{many}");
}

/// Others may have their pieces between those of one context: they take its room, or everything is forgotten.
#[test]
fn a_large_context_is_placed_in_pieces_whatever_happens_in_between() {
    let limits = Limits {
        blocks: 6000,
        requests: 3,
        ..Limits::default()
    };
    for meanwhile in ["nothing", "others", "/reset"] {
        let mut asked = live(limits);
        asked.post("/reorder", json!({"contexts": [["first"]]}));
        let context: Vec<u32> = (0..4000).collect();
        let body = json!({ "contexts": [context] }).to_string();
        let query = Query::parse(Endpoint::Reorder, body.as_bytes(), &limits);
        let mut ids = 1000_u64;
        let mut new_id = || {
            ids += 1;
            format!("req-{ids:012x}")
        };
        let outcome = asked
            .index
            .answer(query.expect("a query"), 0.0, &mut new_id);
        let Outcome::Work(mut work) = outcome else {
            panic!("it is done at once");
        };
        let mut pieces = 0;
        loop {
            match work.next() {
                Next::State => {
                    asked.index.proceed(&mut work, &mut new_id);
                    pieces += 1;
                }
                Next::Alone => work.compute(),
                Next::Answer => break,
            }
            match meanwhile {
                "others" if pieces == 1 => {
                    for round in 1..4 {
                        let other: Vec<u32> = (0..3000).map(|n| round * 10_000 + n).collect();
                        let answer = asked.post("/reorder", json!({"contexts": [other]}));
                        assert_eq!(answer.status, 200, "{}", answer.body);
                        let ids = &answer.body["request_ids"];
                        asked.post("/evict", json!({ "request_ids": ids }));
                    }
                }
                "/reset" if pieces == 1 => {
                    assert_eq!(asked.post("/reset", json!({})).status, 200);
                    asked.post("/reorder", json!({"contexts": [["another"]]}));
                }
                _ => {}
            }
        }
        assert!(pieces >= 2, "{pieces}");
        let answer = work.answer();
        assert_eq!(answer.status, 200, "{meanwhile}: {}", answer.body);
        let ordered = answer.body["reordered_contexts"][0].as_array();
        let mut ordered: Vec<u64> = ordered.unwrap().iter().filter_map(Value::as_u64).collect();
        ordered.sort_unstable();
        assert_eq!(ordered, (0..4000).collect::<Vec<u64>>(), "{meanwhile}");
        assert!(asked.index.ids().len() <= limits.requests, "{meanwhile}");
        let stats = asked.ask("GET", "/stats", b"").body;
        assert!(stats["known_blocks"].as_u64() <= Some(6000), "{stats}");
        let id = &answer.body["request_ids"][0];
        let gone = asked.post("/evict", json!({ "request_ids": [id] }));
        assert_eq!(gone.body["removed_count"], 1, "{meanwhile}: {}", gone.body);
    }
}

#[test]
fn an_error_repeats_no_large_request() {
    let mut asked = live(Limits::default());
    let large = json!({"a": vec![1; 100_000]});
    for body in [
        &large,
        &json!({"contexts": large}),
        &json!({"contexts": [[large]]}),
    ] {
        let answer = asked.post("/reorder", body.clone());
        assert_eq!(answer.status, 422);
        assert!(answer.body.to_string().len() < 1000, "{}", answer.body);
    }
    let small = asked.post("/reorder", json!({"a": [1, 2]}));
    assert_eq!(small.body["detail"][0]["input"], json!({"a": [1, 2]}));
}

#[test]
fn many_small_values_weigh_more_than_a_long_text() {
    let text = format!("{{\"contexts\": [[\"{}\"]]}}", "a, b ".repeat(10_000));
    let values = format!("{{\"contexts\": [[{}1]]}}", "1,".repeat(25_000));
    assert_eq!(text.len() / 1000, values.len() / 1000);
    let of = |body: &str| weight(Endpoint::Reorder, body.as_bytes());
    assert!(
        of(&values) > 10 * of(&text),
        "{} {}",
        of(&values),
        of(&text)
    );
}

#[test]
fn what_was_forgotten_for_others_is_the_rarest() {
    let mut asked = live(Limits {
        blocks: 8,
        ..Limits::default()
    });
    for context in [[1, 2], [1, 3], [1, 4]] {
        asked.post("/reorder", json!({"contexts": [context]}));
    }
    let ids = asked.index.ids();
    asked.post("/evict", json!({"request_ids": ids}));
    // Five more: one of the first four goes, and it is not the one that all had.
    asked.post("/reorder", json!({"contexts": [[5, 6, 7, 8, 9]]}));
    let answer = asked.post("/deduplicate", json!({"contexts": [["text", 1]]}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let found = asked.post("/search", json!({"context": [1]}));
    assert_eq!(found.status, 200);
    let stats = asked.ask("GET", "/stats", b"").body;
    assert!(stats["known_blocks"].as_u64() <= Some(8), "{stats}");
}
