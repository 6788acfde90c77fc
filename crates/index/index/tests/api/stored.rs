//! Prompts that have left the engine, and that a prefix store below it may have.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use contextpilot_index::{Found, Limits, Mode, Question, Truth};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::Asked;

fn live(limits: Limits) -> Asked {
    let mut asked = Asked::new(Mode::Live, limits);
    asked.index.set_truth(Truth::Engine);
    asked.index.set_store(true);
    asked
}

/// Orders a context. Returns the answer and its id.
fn order(asked: &mut Asked, context: Value) -> (Value, String) {
    let answer = asked.post("/reorder", json!({ "contexts": [context] }));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let id = answer.body["request_ids"][0].as_str().expect("an id");
    (answer.body.clone(), id.to_owned())
}

/// Orders a context, which the engine then has and loses.
fn lost(asked: &mut Asked, context: Value) -> String {
    let (_, id) = order(asked, context);
    asked.index.cached(&id, 30);
    asked.index.left_engine(&id);
    id
}

/// A hook of a store with all prompts whole, while the engine holds nothing.
fn whole(question: &Question) -> Found {
    Found {
        tokens: question.tokens.max(1),
        reused: 0,
        loaded: Some(question.common),
        kept: None,
    }
}

#[test]
fn what_left_the_engine_is_continued_and_is_not_live_for_anybody_else() {
    let mut asked = live(Limits::default());
    let first = lost(&mut asked, json!(["a", "b", "c"]));
    assert_eq!(asked.index.ids(), [""; 0]);
    asked.hook = Some(Box::new(whole));
    let (body, second) = order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(body["reordered_contexts"], json!([["a", "b", "x"]]));
    assert_eq!(body["expected_from"], json!([first]));
    assert_eq!(body["matched_count"], 1);
    let stored = &body["expected_stored_tokens"];
    assert_ne!(stored, &json!([0]));
    assert_eq!(stored, &body["expected_cached_tokens"]);

    let listed = asked.ask("GET", "/requests", b"").body;
    assert_eq!(listed["request_ids"], json!([second]));
    let found = asked.post("/search", json!({"context": ["a", "b"]})).body;
    assert_eq!(found["has_prefix"], false, "{found}");
    let gone = asked.post("/evict", json!({"request_ids": [first]})).body;
    assert_eq!(gone["not_found"], json!([first]));
    let stats = asked.ask("GET", "/stats", b"").body;
    assert_eq!(stats["stored_requests"], 1);
    assert_eq!(stats["index_stats"]["num_requests"], 1);
    assert_eq!(stats["index_stats"]["num_nodes"], 1, "{stats}");
    let metrics = asked.index.metrics();
    assert!(metrics.contains("contextpilot_index_stored_requests 1\n"));

    // As long a prefix in the engine comes first, a longer one in the store wins.
    asked.index.cached(&second, 30);
    let (body, _) = order(&mut asked, json!(["y", "b", "a"]));
    assert_eq!(body["expected_from"], json!([second]));
    let (body, _) = order(&mut asked, json!(["y", "c", "b", "a"]));
    assert_eq!(body["reordered_contexts"], json!([["a", "b", "c", "y"]]));
    assert_eq!(body["expected_from"], json!([first]));

    // Another process of the server remembers nothing of it: the order stays, what the engine holds is expected.
    asked.index.other_process();
    let (body, _) = order(&mut asked, json!(["y", "c", "b", "a"]));
    assert_eq!(body["reordered_contexts"], json!([["a", "b", "c", "y"]]));
    assert_eq!(body["expected_from"], json!([second]));
}

#[test]
fn what_an_earlier_process_stored_gives_the_order_and_nothing_is_claimed_of_it() {
    let mut asked = live(Limits::default());
    lost(&mut asked, json!(["a", "b", "c"]));
    let (_, held) = order(&mut asked, json!(["d", "e"]));
    asked.index.cached(&held, 20);
    asked.index.other_process();
    asked.index.left_with_process(&held);
    assert_eq!(asked.index.ids(), [""; 0]);
    let mut ids = Vec::new();
    asked.hook = Some(Box::new(|question| panic!("it knows none: {question:?}")));
    for (context, ordered) in [
        (json!(["x", "b", "a"]), json!([["a", "b", "x"]])),
        (json!(["e", "y", "d"]), json!([["d", "e", "y"]])),
    ] {
        let (body, id) = order(&mut asked, context);
        assert_eq!(body["reordered_contexts"], ordered);
        assert_eq!(body["expected_cached_tokens"], json!([0]));
        assert_eq!(body["expected_stored_tokens"], json!([0]));
        assert_eq!(body["expected_from"], json!([null]));
        ids.push(id);
    }
    // Loading them is no error of the forecast.
    for id in &ids {
        asked.index.finished(id, Some(40));
        asked.index.compare(id, 30);
    }
    let stats = asked.ask("GET", "/stats", b"").body;
    assert_eq!(stats["prediction"]["requests"], json!(0), "{stats}");

    // The new process knows what it had itself.
    let known = lost(&mut asked, json!(["a", "b", "c"]));
    asked.hook = Some(Box::new(whole));
    let (body, _) = order(&mut asked, json!(["z", "c", "b", "a"]));
    assert_eq!(body["expected_from"], json!([known]));
    assert_ne!(body["expected_stored_tokens"], json!([0]));
}

#[test]
fn without_a_store_nothing_is_kept_and_nothing_is_said_of_one() {
    let mut asked = live(Limits::default());
    lost(&mut asked, json!(["a", "b"]));
    asked.index.set_store(false);
    lost(&mut asked, json!(["a", "c"]));
    let (body, _) = order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(body["expected_from"], json!([null]));
    assert_eq!(body["expected_stored_tokens"], Value::Null);
    let stats = asked.ask("GET", "/stats", b"").body;
    assert_eq!(stats["stored_requests"], Value::Null);
    assert!(!asked.index.metrics().contains("stored"));
    // Nor is anything left of the first one.
    asked.index.set_store(true);
    let (body, _) = order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(body["expected_from"], json!([null]));
    // What the store has counts only while the hook can be asked for it.
    lost(&mut asked, json!(["p", "q"]));
    asked.index.set_truth(Truth::Learning);
    let (body, _) = order(&mut asked, json!(["q", "p"]));
    assert_eq!(body["expected_from"], json!([null]));
}

#[test]
fn what_the_store_lost_is_forgotten_and_the_order_made_anew() {
    let mut asked = live(Limits::default());
    let (_, held) = order(&mut asked, json!(["h", "i"]));
    asked.index.cached(&held, 30);
    for last in ["1", "2", "3", "4", "5"] {
        lost(&mut asked, json!(["a", "b", "c", last]));
    }
    let expects = held.clone();
    asked.hook = Some(Box::new(move |question| {
        if question.id == expects {
            Found {
                tokens: 100,
                reused: question.common,
                loaded: Some(0),
                kept: None,
            }
        } else {
            Found::default()
        }
    }));
    // Three are asked for, and then the order keeps to what the engine holds.
    let context = json!(["i", "x", "h", "c", "b", "a"]);
    let (body, _) = order(&mut asked, context.clone());
    assert_eq!(asked.questions, 4);
    assert_eq!(body["reordered_contexts"][0][0], "h", "{body}");
    assert_eq!(body["reordered_contexts"][0][1], "i", "{body}");
    assert_eq!(body["expected_from"], json!([held]));
    assert_eq!(body["expected_stored_tokens"], json!([0]));
    let stats = asked.ask("GET", "/stats", b"").body;
    assert_eq!(stats["stored_requests"], 2, "{stats}");
    let (body, _) = order(&mut asked, context);
    assert_eq!(
        (asked.questions, &body["expected_from"]),
        (3, &json!([held]))
    );
    assert_eq!(stats["index_stats"]["num_requests"], 2);
}

#[test]
fn an_order_that_was_compared_with_earlier_turns_stays() {
    let mut asked = live(Limits::default());
    lost(&mut asked, json!(["a", "b"]));
    asked.hook = Some(Box::new(|question| Found {
        tokens: question.tokens.max(1),
        reused: 0,
        loaded: Some(0),
        kept: None,
    }));
    let body = json!({"contexts": [["x", "b", "a"]], "deduplicate": true});
    let body = asked.post("/reorder", body).body;
    let docs = &body["deduplication"]["results"][0]["original_docs"];
    assert_eq!(docs, &body["reordered_contexts"][0], "{body}");
    assert_eq!(body["expected_cached_tokens"], json!([0]), "{body}");
    assert_eq!(asked.questions, 1);
}

#[test]
fn a_prompt_whose_end_left_the_store_is_shortened() {
    let mut asked = live(Limits::default());
    let text = |name: &str| format!("{name}{}", "x".repeat(400));
    let [a, b, c, d] = ["a", "b", "c", "d"].map(text);
    lost(&mut asked, json!([a, b, c]));
    lost(&mut asked, json!([d]));
    for wish in asked.index.wishes() {
        asked.index.tokenized(&wish, 100);
    }
    asked.hook = Some(Box::new(|question| Found {
        tokens: question.tokens,
        reused: 0,
        loaded: Some(question.common.min(205)),
        kept: None,
    }));
    let (body, _) = order(&mut asked, json!([c, d, b, a]));
    assert_eq!(body["reordered_contexts"][0][0], a);
    assert_eq!(body["reordered_contexts"][0][1], b);
    assert_eq!(body["expected_cached_tokens"], json!([200]));
    assert_eq!(
        asked.questions, 2,
        "that of three documents, and that of two"
    );
    let (_, _) = order(&mut asked, json!([c, d, b, a]));
    assert_eq!(asked.questions, 1);
    // A few tokens less are no document less.
    asked.hook = Some(Box::new(|question| Found {
        tokens: question.tokens,
        reused: 10,
        loaded: Some(question.common.saturating_sub(20)),
        kept: None,
    }));
    let (body, _) = order(&mut asked, json!([c, d, b, a]));
    assert_eq!(body["expected_cached_tokens"], json!([190]));
    assert_eq!(body["expected_stored_tokens"], json!([180]));
    assert_eq!(asked.questions, 1);
}

#[test]
fn if_it_is_not_known_what_the_store_has_the_engine_alone_counts() {
    let mut asked = live(Limits::default());
    let (_, held) = order(&mut asked, json!(["h"]));
    asked.index.cached(&held, 30);
    let stored = lost(&mut asked, json!(["a", "b"]));
    asked.reuses(|_| 5);
    let (body, _) = order(&mut asked, json!(["b", "a", "h"]));
    assert_eq!(body["reordered_contexts"][0][0], "h");
    assert_eq!(asked.questions, 4, "three times, and then of the engine");
    assert_eq!(body["expected_cached_tokens"], json!([5]));
    // From then on once, and batches do without.
    order(&mut asked, json!(["b", "a", "h"]));
    assert_eq!(asked.questions, 2);
    let batch = json!({"contexts": [["b", "a"], ["x", "y"]]});
    let body = asked.post("/reorder", batch.clone()).body;
    assert_eq!(body["expected_from"], json!([null, null]), "{body}");
    asked.hook = Some(Box::new(whole));
    let (body, _) = order(&mut asked, json!(["b", "a", "h"]));
    assert_eq!(body["expected_from"], json!([stored]));
    let body = asked.post("/reorder", batch).body;
    assert_eq!(body["expected_from"][0], json!(stored), "{body}");
}

/// A hook of a store that keeps all prompts whole until then, in milliseconds.
fn keeps(until: u64) -> impl Fn(&Question) -> Found {
    move |question| Found {
        kept: Some((question.common, until)),
        ..whole(question)
    }
}

fn number(asked: &mut Asked, name: &str) -> u64 {
    let stats = asked.ask("GET", "/stats", b"").body;
    stats[name].as_u64().unwrap_or_else(|| panic!("{stats}"))
}

/// As the account of each request says it, and as the hook's forecast does.
#[test]
fn of_equal_prefixes_the_one_that_the_store_keeps_comes_first_until_its_time() {
    let mut asked = live(Limits::default());
    let (_, tea) = order(&mut asked, json!(["a", "b"]));
    asked.index.cached(&tea, 30);
    asked.index.kept_until(&tea, Some((1 << 20, 5_000)));
    asked.index.left_engine(&tea);
    let other = json!({"contexts": [["b", "a"]], "order": "none"});
    let other = asked.post("/reorder", other).body;
    let other = other["request_ids"][0].as_str().expect("an id");
    asked.index.cached(other, 30);
    asked.index.left_engine(other);
    assert_eq!(number(&mut asked, "stored_requests"), 2);
    assert_eq!(number(&mut asked, "kept_requests"), 1);
    let metrics = asked.index.metrics();
    assert!(metrics.contains("contextpilot_index_kept_requests 1\n"));
    asked.hook = Some(Box::new(keeps(5_000)));
    for context in [json!(["x", "b", "a"]), json!(["x", "a", "b"])] {
        let (body, _) = order(&mut asked, context);
        assert_eq!(body["reordered_contexts"], json!([["a", "b", "x"]]));
        assert_eq!(body["expected_from"], json!([tea]));
    }
    // Its time is over.
    asked.now = 5.0;
    asked.hook = Some(Box::new(whole));
    assert_eq!(number(&mut asked, "kept_requests"), 0);
    // A prompt of which the hook says so, when it is asked; and that it was released.
    asked.hook = Some(Box::new(keeps(9_000)));
    order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(number(&mut asked, "kept_requests"), 1);
    asked.hook = Some(Box::new(whole));
    order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(number(&mut asked, "kept_requests"), 0);
}

/// Of a beginning that is kept nothing is concluded for what stands behind it, nor from fewer tokens for all.
#[test]
fn only_a_prompt_that_is_kept_whole_is_kept() {
    let mut asked = live(Limits::default());
    let text = |name: &str| format!("{name}{}", "x".repeat(400));
    let [a, b, c, d] = ["a", "b", "c", "d"].map(text);
    lost(&mut asked, json!([a, b, c]));
    for wish in asked.index.wishes() {
        asked.index.tokenized(&wish, 100);
    }
    asked.hook = Some(Box::new(keeps(9_000)));
    order(&mut asked, json!([a, d, b]));
    assert_eq!(number(&mut asked, "kept_requests"), 0, "its beginning");
    order(&mut asked, json!([a, b, c]));
    assert_eq!(number(&mut asked, "kept_requests"), 1);
    asked.hook = Some(Box::new(|question| Found {
        kept: Some((100, 9_000)),
        ..whole(question)
    }));
    order(&mut asked, json!([a, b, d]));
    assert_eq!(number(&mut asked, "kept_requests"), 0);
    let (_, id) = order(&mut asked, json!([d, c]));
    asked.index.cached(&id, 200);
    asked.index.left_engine(&id);
    for (tokens, kept) in [(100, 0), (200, 1)] {
        asked.index.kept_until(&id, Some((tokens, 9_000)));
        assert_eq!(number(&mut asked, "kept_requests"), kept, "{tokens}");
    }
}

#[test]
fn what_the_store_keeps_is_forgotten_last_and_not_when_the_hook_has_forgotten_it() {
    let limits = Limits {
        requests: 6,
        ..Limits::default()
    };
    let mut asked = live(limits);
    let (_, tea) = order(&mut asked, json!(["a", "b"]));
    asked.index.cached(&tea, 30);
    asked.index.kept_until(&tea, Some((1 << 20, 5_000)));
    asked.index.left_engine(&tea);
    for round in 0..20 {
        lost(&mut asked, json!([round, "z"]));
    }
    // The same documents, with another question.
    lost(&mut asked, json!(["a", "b"]));
    assert_eq!(number(&mut asked, "kept_requests"), 1);
    asked.hook = Some(Box::new(|_| Found::default()));
    let (body, _) = order(&mut asked, json!(["x", "b", "a"]));
    assert_eq!(body["reordered_contexts"], json!([["a", "b", "x"]]));
    assert_eq!(body["expected_stored_tokens"], json!([0]), "not claimed");
    assert_eq!(number(&mut asked, "kept_requests"), 1);
    // What is cached makes all others leave, and then this one.
    for round in 0..6 {
        assert_eq!(number(&mut asked, "kept_requests"), u64::from(round < 5));
        let (_, id) = order(&mut asked, json!([format!("new {round}")]));
        asked.index.cached(&id, 30);
    }
}

#[test]
fn a_batch_continues_stored_prefixes_and_begins_with_them() {
    let mut asked = live(Limits::default());
    let stored = lost(&mut asked, json!([9, 8, 1]));
    let (_, held) = order(&mut asked, json!([2, 3]));
    asked.index.cached(&held, 30);
    let contexts = json!({"contexts": [[1, 2, 3], [1, 2, 4], [5, 8, 9]]});
    let body = asked.post("/reorder", contexts).body;
    let scheduled = body["original_indices"].as_array().expect("a list");
    let place = scheduled.iter().position(|at| at == 2).expect("a place");
    assert!(place < 2, "before what continues nothing: {body}");
    let ordered = &body["reordered_contexts"][place];
    assert_eq!(ordered, &json!([9, 8, 5]), "{body}");
    assert_eq!(body["expected_from"][2], json!(stored), "{body}");
    let tokens = |name: &str, at: usize| body[name][at].as_u64().expect("tokens");
    let all = |at| tokens("expected_cached_tokens", at);
    assert_eq!(tokens("expected_stored_tokens", 2), all(2));
    assert_eq!(tokens("expected_stored_tokens", 0), 0, "{body}");
    assert!(all(0) > 0 || all(1) > 0, "{body}");
}

#[test]
fn equal_prompts_are_kept_once_and_the_least_used_make_room_before_live_ones() {
    let limits = Limits {
        requests: 6,
        ..Limits::default()
    };
    let mut asked = live(limits);
    let stored = |asked: &mut Asked| number(asked, "stored_requests");
    for _ in 0..4 {
        lost(&mut asked, json!(["a", "b"]));
    }
    assert_eq!(stored(&mut asked), 1);
    for name in ["c", "d", "e"] {
        lost(&mut asked, json!([name, "b"]));
    }
    assert_eq!(stored(&mut asked), 4);
    // Used, so it stays longest.
    asked.hook = Some(Box::new(whole));
    order(&mut asked, json!(["a", "b", "x"]));
    for id in asked.index.ids() {
        asked.index.cached(&id, 30);
    }
    for round in 0..5 {
        let (_, id) = order(&mut asked, json!([format!("new {round}")]));
        asked.index.cached(&id, 30);
        assert!(stored(&mut asked) + asked.index.ids().len() as u64 <= 6);
        if round == 3 {
            assert_eq!(stored(&mut asked), 1);
            let found = asked.post(
                "/reorder",
                json!({"contexts": [["b", "a"]], "stateless": true}),
            );
            assert_eq!(found.status, 200);
        }
    }
    assert_eq!((stored(&mut asked), asked.index.ids().len()), (0, 6));
    let answer = asked.post("/reorder", json!({"contexts": [["z"]]}));
    assert_eq!(answer.status, 429, "what is cached does not make room");

    let limits = Limits {
        kept: 12_000,
        ..Limits::default()
    };
    let mut asked = live(limits);
    for round in 0..50 {
        lost(&mut asked, json!([round, round + 1, round + 2]));
        let stats = asked.ask("GET", "/stats", b"").body;
        assert!(stats["kept_bytes"].as_u64() <= Some(12_000), "{stats}");
    }
    assert!(stored(&mut asked) > 3);
    asked.post("/reset", json!({}));
    order(&mut asked, json!([1]));
    assert_eq!(stored(&mut asked), 0, "and there still is a store");
}

#[test]
fn a_forecast_is_compared_with_what_was_loaded_too_or_not_at_all() {
    let mut asked = live(Limits::default());
    lost(&mut asked, json!(["a", "b"]));
    asked.hook = Some(Box::new(|question| Found {
        tokens: question.tokens.max(1),
        reused: 3,
        loaded: Some(40),
        kept: None,
    }));
    let (_, one) = order(&mut asked, json!(["b", "a"]));
    asked.index.finished(&one, Some(50));
    assert!(asked.index.is_answered(&one));
    assert_eq!(asked.index.errors().count(), 0);
    asked.index.compare(&one, 43);
    asked.index.compare(&one, 43);
    assert_eq!(asked.index.errors().count(), 1);
    assert_eq!(asked.index.errors().quantile(0.5), Some(0));
    let (_, two) = order(&mut asked, json!(["b", "a"]));
    asked.index.finished(&two, Some(50));
    asked.index.left_engine(&two);
    asked.index.compare(&two, 43);
    assert_eq!(asked.index.errors().count(), 1, "the account came too late");
}

type Token = (usize, u32);

/// An engine with a store, which knows the tokens of all prompts.
#[derive(Default)]
struct Double {
    slots: VecDeque<(String, Vec<Token>)>,
    /// Beginnings of prompts.
    stored: Vec<Vec<Token>>,
    /// The prompts that it remembers.
    prompts: Vec<(String, Vec<Token>)>,
}

impl Double {
    fn length(document: usize) -> u32 {
        20 + document as u32 % 7
    }

    fn tokens(documents: &[usize]) -> Vec<Token> {
        let of_document = |document: usize| (0..Self::length(document)).map(move |n| (document, n));
        documents.iter().copied().flat_map(of_document).collect()
    }

    fn most<'a>(all: impl Iterator<Item = &'a Vec<Token>>, prompt: &[Token]) -> usize {
        let common = |tokens: &Vec<Token>| {
            tokens
                .iter()
                .zip(prompt)
                .take_while(|(a, b)| a == b)
                .count()
        };
        all.map(common).max().unwrap_or(0)
    }

    /// Tokens that a slot has, and those that a slot or the store has.
    fn finds(&self, prompt: &[Token]) -> (usize, usize) {
        let held = Self::most(self.slots.iter().map(|(_, tokens)| tokens), prompt);
        (held, held.max(Self::most(self.stored.iter(), prompt)))
    }

    fn answer(&self, question: &Question) -> Found {
        let known = self.prompts.iter().find(|(id, _)| *id == question.id);
        let Some((_, tokens)) = known else {
            return Found::default();
        };
        let (held, there) = self.finds(&tokens[..tokens.len().min(question.common as usize)]);
        Found {
            tokens: question.tokens.max(1),
            reused: held as u64,
            loaded: Some((there - held) as u64),
            kept: None,
        }
    }

    /// The most that any order of these documents finds.
    fn best(&self, documents: &[usize]) -> usize {
        let mut best = 0;
        let mut open = vec![(Vec::new(), documents.to_vec())];
        while let Some((first, rest)) = open.pop() {
            let tokens = Self::tokens(&first);
            let (_, there) = self.finds(&tokens);
            if there < tokens.len() {
                continue;
            }
            best = best.max(there);
            for (at, next) in rest.iter().enumerate() {
                let mut left = rest.clone();
                left.remove(at);
                open.push(([&first[..], &[*next]].concat(), left));
            }
        }
        best
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// No order promises what is not there. While the store loses nothing, each finds the most that any order would.
    #[test]
    fn orders_find_what_a_naive_search_of_engine_and_store_finds(
        steps in prop::collection::vec((prop::collection::hash_set(0..14_usize, 1..5), any::<u8>()), 1..60),
        loses in any::<bool>(),
    ) {
        let mut asked = live(Limits::default());
        let double = Rc::new(RefCell::new(Double::default()));
        let hook = Rc::clone(&double);
        asked.hook = Some(Box::new(move |question| hook.borrow().answer(question)));
        for (documents, chance) in steps {
            let documents: Vec<usize> = documents.into_iter().collect();
            let texts: Vec<String> = documents.iter().map(|document| format!("{document}")).collect();
            // Their lengths are known when they are ordered.
            asked.post("/deduplicate", json!({ "contexts": [texts] }));
            for wish in asked.index.wishes() {
                let document = wish.text.parse().expect("a number");
                asked.index.tokenized(&wish, Double::length(document));
            }
            let (body, id) = order(&mut asked, json!(texts));
            let ordered: Vec<usize> = body["reordered_contexts"][0].as_array().expect("a list").iter()
                .map(|text| text.as_str().expect("a text").parse().expect("a number")).collect();
            let tokens = Double::tokens(&ordered);
            let (held, there) = double.borrow().finds(&tokens);
            let expected = body["expected_cached_tokens"][0].as_u64().expect("tokens") as usize;
            let loaded = body["expected_stored_tokens"][0].as_u64().expect("tokens") as usize;
            prop_assert!(expected <= there, "{body}");
            prop_assert!(asked.questions <= 4);
            if !loses {
                prop_assert_eq!(expected, double.borrow().best(&documents));
                prop_assert_eq!(expected - loaded, held.min(expected));
            }

            let mut double = double.borrow_mut();
            asked.index.finished(&id, Some(tokens.len() as u64));
            if !loses {
                asked.index.compare(&id, there as u64);
            }
            double.prompts.push((id.clone(), tokens.clone()));
            double.slots.push_back((id.clone(), tokens));
            asked.index.cached(&id, 1);
            if double.slots.len() > 3 {
                let (gone, tokens) = double.slots.pop_front().expect("a slot");
                double.stored.push(tokens);
                asked.index.left_engine(&gone);
            }
            if loses && !double.stored.is_empty() {
                let at = usize::from(chance) % double.stored.len();
                match chance % 4 {
                    0 => drop(double.stored.remove(at)),
                    1 => double.stored[at].truncate(usize::from(chance)),
                    2 => {
                        // Those of slots are always known.
                        let oldest = double.prompts.remove(0);
                        let is_held = double.slots.iter().any(|(id, _)| *id == oldest.0);
                        double.prompts.extend(is_held.then_some(oldest));
                    }
                    _ => {}
                }
            }
            let live: Vec<String> = double.slots.iter().map(|(id, _)| id.clone()).collect();
            prop_assert_eq!(asked.index.ids(), live);
        }
        prop_assert!(loses || asked.index.errors().quantile(1.0) <= Some(0));
    }
}
