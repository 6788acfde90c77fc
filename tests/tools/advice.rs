//! The advice of `why`: what it promises is what a server that follows it saves.

use contextpilot_testbed::{Arch, Model, Random, Request, Server};
use serde_json::Value;

use crate::support::{Watched, json, until};

/// So many tokens, the same for the same seed, and others for others.
fn tokens(seed: u64, count: usize) -> Vec<i32> {
    let mut random = Random(seed);
    // From 259 on, after the tokens for single bytes.
    (0..count).map(|_| 259 + random.below(98) as i32).collect()
}

fn ask(prompt: Vec<i32>) -> Request {
    Request::completion(prompt).predict(2)
}

/// What became of the last of some requests, which were sent one after the other.
struct Served {
    reused: usize,
    evaluated: usize,
    /// Tokens that were evaluated for all of them.
    all: usize,
    /// What `why` advises for it.
    advice: Vec<Value>,
}

/// Serves the requests with the tiny model, which is too fast for the usual advice.
fn serve(flags: &[&str], requests: &[Request]) -> Served {
    let watched = Watched::start(
        Server::builder()
            .model(&Model::tiny(Arch::Llama))
            .args(["-c", "8192"])
            .args(flags.iter().copied()),
    );
    let answers: Vec<_> = requests
        .iter()
        .map(|request| watched.complete(request.clone()))
        .collect();
    let last = answers.last().expect("a request");
    let all = until("all are explained", || {
        let text = watched.text(&["why", "--last", "100", "--worth", "0", "--json"]);
        let all: Vec<Value> = text.lines().map(json).collect();
        let timed = |one: &Value| one["evaluation"]["seconds"].as_f64() > Some(0.0);
        (all.len() == requests.len() && all.iter().all(timed)).then_some(all)
    });
    let explained = all.last().expect("a request");
    assert_eq!(explained["evaluation"]["evaluated"], last.prompt_n);
    let advice = explained["advice"].as_array().expect("a list");
    Served {
        reused: last.cache_n,
        evaluated: last.prompt_n,
        all: answers.iter().map(|answer| answer.prompt_n).sum(),
        advice: advice.clone(),
    }
}

fn promised(advice: &Value) -> usize {
    let seconds = advice["seconds"].as_f64();
    assert!(seconds > Some(0.0), "{advice}");
    advice["tokens"].as_u64().expect("a number") as usize
}

/// Serves the requests, takes the only advice, which begins with these words, and serves them again with
/// other flags: the same number of tokens as was promised must be saved.
#[track_caller]
fn saves_what_it_promises(flags: &[&str], advised: &str, followed: &[&str], requests: &[Request]) {
    let before = serve(flags, requests);
    let [advice] = &before.advice[..] else {
        panic!("{:?}", before.advice)
    };
    let text = advice["text"].as_str().expect("a text");
    assert!(text.starts_with(advised), "{text}");
    let after = serve(&[flags, followed].concat(), requests);
    let saved = after.reused - before.reused;
    assert_eq!(promised(advice), saved, "{advice}");
    // It says how much of the evaluation that is.
    assert!(saved < before.evaluated);
}

#[test]
fn tools_in_another_order_are_noticed_and_the_old_order_saves_what_was_promised() {
    let tools: Vec<Vec<i32>> = (10..18).map(|seed| tokens(seed, 90)).collect();
    let prompt = |tools: Vec<Vec<i32>>, question: u64| {
        ask([tokens(1, 60), tools.concat(), tokens(question, 40)].concat())
    };
    let reversed: Vec<Vec<i32>> = tools.iter().rev().cloned().collect();
    let first = prompt(tools.clone(), 2);
    let before = serve(&[], &[first.clone(), prompt(reversed, 3)]);
    let after = serve(&[], &[first, prompt(tools, 3)]);
    let advice = &before.advice[0];
    let text = advice["text"].as_str().unwrap();
    assert!(
        text.starts_with("send what follows token 60 in the same order"),
        "{text}"
    );
    let saved = after.reused - before.reused;
    assert!(saved >= 8 * 90);
    // Parts are found by windows of four tokens, and the questions may have some of them by chance.
    assert!(promised(advice).abs_diff(saved) < 8, "{advice}");
}

#[test]
fn moving_chunks_saves_what_was_promised() {
    // The oldest turn of a conversation is left out.
    let turns: Vec<Vec<i32>> = (20..24).map(|seed| tokens(seed, 150)).collect();
    let system = tokens(1, 100);
    let all = ask([system.clone(), turns.concat()].concat());
    let fewer = ask([system, turns[1..].concat(), tokens(3, 30)].concat());
    let flags = ["--parallel", "1", "--cache-ram", "0"];
    let requests = [all, fewer];
    let before = serve(&flags, &requests);
    let texts: Vec<&str> = before
        .advice
        .iter()
        .filter_map(|a| a["text"].as_str())
        .collect();
    let [client, server] = &texts[..] else {
        panic!("{texts:?}")
    };
    assert!(client.starts_with("put what changes"), "{client}");
    assert!(
        server.starts_with("start the server with --cache-reuse 64"),
        "{server}"
    );
    let after = serve(&[&flags[..], &["--cache-reuse", "64"]].concat(), &requests);
    assert_eq!(promised(&before.advice[1]), after.reused - before.reused);
    assert!(after.advice.is_empty(), "{:?}", after.advice);
}

/// An agent and its subagents share a system prompt: with a higher similarity, these take an empty slot, and evaluate it again.
#[test]
fn a_higher_similarity_which_costs_others_is_not_promised() {
    let talk = |seed: u64, turns: u64| {
        let all = (0..turns).flat_map(|turn| tokens(seed + turn, 120));
        ask([tokens(1, 600), all.collect()].concat())
    };
    let requests = [
        talk(30, 1),
        talk(40, 1),
        talk(30, 2),
        talk(50, 1),
        talk(30, 3),
    ];
    let before = serve(&["--parallel", "4"], &requests);
    assert!(before.evaluated > 120, "one took the slot");
    assert!(before.advice.is_empty(), "{:?}", before.advice);
    let flags = ["--parallel", "4", "--slot-prompt-similarity", "0.9"];
    let after = serve(&flags, &requests);
    assert!(after.all > before.all, "{} {}", before.all, after.all);
}

#[test]
fn a_host_cache_or_a_larger_one_keeps_what_was_promised() {
    let talk = |seed: u64, turns: u64| {
        ask((0..turns)
            .flat_map(|turn| tokens(seed + turn, 500))
            .collect())
    };
    let requests = [
        talk(50, 1),
        talk(60, 1),
        talk(70, 1),
        talk(80, 1),
        talk(50, 2),
    ];
    let advised = "give the server more slots (--parallel, 1 now) or a host prompt cache (--cache-ram, off now)";
    let off = ["--parallel", "1", "--cache-ram", "0"];
    saves_what_it_promises(&off, advised, &["--cache-ram", "64"], &requests);
    let small = ["--parallel", "1", "--cache-ram", "1"];
    let requests = [
        talk(50, 1),
        talk(60, 2),
        talk(70, 2),
        talk(80, 2),
        talk(50, 2),
    ];
    saves_what_it_promises(
        &small,
        "raise --cache-ram (",
        &["--cache-ram", "64"],
        &requests,
    );
}

/// As in the second of two short conversations with the same system prompt: 49 tokens were evicted.
#[test]
fn a_handful_of_tokens_gets_no_advice() {
    let talk = |seed: u64| ask([tokens(1, 80), tokens(seed, 50)].concat());
    let served = serve(&["--parallel", "1"], &[talk(90), talk(91), talk(90)]);
    assert_eq!(served.evaluated, 50);
    assert!(served.advice.is_empty(), "{:?}", served.advice);
}
