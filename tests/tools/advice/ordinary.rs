//! Scenes of ordinary use without a complaint behind them.

use contextpilot_testbed::Step as Done;
use serde_json::json as object;

use super::*;

fn with(prompt: Vec<i32>, field: &str, value: impl Into<Value>) -> Step {
    Step::Ask(Request::completion(prompt).predict(2).with(field, value))
}

/// A program has prompts evaluated before a question is asked (`n_predict` 0), for two agents with two slots.
#[test]
fn two_agents_whose_turns_are_prepared() {
    let system = tokens(1, 300);
    let turn = |seed, turns| behind(&system, talk(seed, turns, 150));
    let prepare = |prompt: Vec<i32>| Step::Ask(Request::completion(prompt).predict(0));
    let mut steps = Vec::new();
    for turns in 1..4 {
        for seed in [30, 60] {
            steps.push(ask(turn(seed, turns)));
            steps.push(prepare(turn(seed, turns + 1)));
        }
        steps.push(ask(behind(&system, talk(90 + turns, 2, 150))));
    }
    steps.push(ask(turn(30, 4)));
    for flags in ["--parallel 2 --cache-ram 0", "--parallel 2"] {
        follow(&scene("two agents, prepared", flags, steps.clone()));
    }
}

/// Another adapter is set for all requests between two turns, and back again.
#[test]
fn adapters_that_are_swapped_between_turns() {
    let p = tokens(1, 500);
    let set = |scale: f32| Step::Then(Done::Adapters(object!([{"id": 0, "scale": scale}])));
    let steps = vec![
        set(1.0),
        ask(p.clone()),
        set(0.0),
        ask(tokens(2, 300)),
        set(1.0),
        ask(behind(&p, tokens(3, 60))),
    ];
    for flags in ["--parallel 1 --cache-ram 0", "--parallel 2", "--parallel 1"] {
        let mut scene = scene("adapters between turns", flags, steps.clone());
        scene.with = |builder| builder.adapter(7, &[]);
        follow(&scene);
    }
}

/// A request that wants no cache takes the slot of a conversation.
#[test]
fn a_request_without_the_cache_between_two_turns() {
    let system = tokens(1, 800);
    let turn = |turns| behind(&system, talk(30, turns, 100));
    let steps = vec![
        ask(turn(1)),
        with(behind(&system, tokens(5, 60)), "cache_prompt", false),
        ask(turn(2)),
        with(behind(&system, tokens(6, 60)), "cache_prompt", false),
        ask(turn(3)),
    ];
    for flags in [
        "--parallel 1 --cache-ram 0",
        "--parallel 1",
        "--parallel 2 --cache-ram 0",
    ] {
        follow(&scene("one without the cache", flags, steps.clone()));
    }
}

/// To make room, a client cuts the results of tools out of the middle of its conversation, one more with each turn.
#[test]
fn tool_results_that_a_client_trims() {
    let system = tokens(1, 200);
    let call = |nth: u64| tokens(20 + nth, 40);
    let result = |nth: u64| tokens(40 + nth, 300);
    let cut = tokens(9, 6);
    let turn = |last: u64, trimmed: u64| {
        let parts = (0..=last).flat_map(|nth| {
            let result = if nth < trimmed {
                cut.clone()
            } else {
                result(nth)
            };
            [call(nth), result].concat()
        });
        behind(&system, parts.collect())
    };
    let steps = vec![ask(turn(2, 0)), ask(turn(3, 1)), ask(turn(4, 2))];
    let better = turn(4, 1);
    for flags in ["--parallel 1 --cache-ram 0", ""] {
        let scene = scene("trimmed results", flags, steps.clone());
        follows_to(&scene.better(better.clone()), "shortened");
    }
}

/// Two users look at the same documents in turn, with one slot; the model has a sliding window, and the user goes back to an
/// earlier message.
#[test]
fn a_branch_of_a_model_with_a_window() {
    let p = tokens(1, 900);
    let steps = vec![
        ask(behind(&p, talk(30, 3, 200))),
        ask(behind(&p, tokens(50, 80))),
        ask(behind(&p, talk(30, 3, 200))),
    ];
    for flags in [
        "--parallel 1 --cache-ram 0",
        "--parallel 1",
        "--parallel 1 --ctx-checkpoints 0 --cache-ram 0",
    ] {
        let scene = scene("a branch with a window", flags, steps.clone()).of(Arch::Gemma2);
        follow(&scene);
    }
}

/// A high similarity that was set for another purpose.
#[test]
fn a_similarity_that_keeps_conversations_apart() {
    let turn = |seed, turns| ask(talk(seed, turns, 200));
    let steps = vec![
        turn(30, 2),
        turn(60, 2),
        turn(60, 4),
        turn(60, 6),
        turn(30, 4),
    ];
    let flags = "--parallel 2 --cache-ram 0 --slot-prompt-similarity 0.9";
    let changes = follow(&scene("a high similarity", flags, steps));
    assert!(!changes.is_empty());
}

/// Answers are compared: the same prompt several times, then the conversation goes on with one of them.
#[test]
fn an_answer_that_is_made_again() {
    let p = tokens(1, 600);
    let long = |prompt: Vec<i32>| Step::Ask(Request::completion(prompt).predict(40));
    let steps = vec![
        long(p.clone()),
        long(p.clone()),
        long(p.clone()),
        ask(behind(&p, tokens(3, 100))),
        ask(tokens(4, 400)),
        ask(behind(&p, tokens(5, 100))),
    ];
    for arch in [Arch::Llama, Arch::Gemma2, Arch::Mamba] {
        let scene = scene("made again", "--parallel 1 --cache-ram 0", steps.clone()).of(arch);
        follow(&scene);
    }
}

/// Retrieved documents in another order, in front of the same question.
#[test]
fn documents_in_the_order_of_their_scores() {
    let system = tokens(1, 100);
    let documents: Vec<Vec<i32>> = (10..15).map(|seed| tokens(seed, 150)).collect();
    let prompt = |order: &[usize], question| {
        let chosen: Vec<i32> = order
            .iter()
            .flat_map(|&nth| documents[nth].clone())
            .collect();
        [system.clone(), chosen, tokens(question, 40)].concat()
    };
    let steps = vec![
        ask(prompt(&[0, 1, 2, 3], 2)),
        ask(prompt(&[1, 0, 2, 4], 3)),
        ask(prompt(&[2, 1, 0, 3], 4)),
    ];
    // As far as the one before had them, in its order.
    let scene = scene("documents", "--parallel 1 --cache-ram 0", steps);
    follows_to(&scene.better(prompt(&[1, 0, 2, 3], 4)), "same_order");
}

/// Sessions are saved at their end and restored when they are wanted, as the documentation of llama-server says.
#[test]
fn sessions_that_are_saved_and_restored_as_they_should() {
    let (a, b) = (tokens(1, 700), tokens(2, 600));
    let steps = vec![
        in_slot(0, a.clone()),
        Step::Save(0),
        in_slot(0, b),
        Step::Restore(0),
        in_slot(0, behind(&a, tokens(3, 50))),
    ];
    let flags = "--parallel 1 --cache-ram 0";
    let changes = follow(&scene("saved and restored", flags, steps));
    assert_eq!(changes, Vec::<Value>::new());
}
