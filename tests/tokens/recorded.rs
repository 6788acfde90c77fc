//! What is told of prompts with kept tokens: a recording is replayed to the token, as it was and as it would have been with the
//! tokenizer's own tokens; `why` says how many were kept.

use std::process::Command;

use contextpilot_simulate::{Point, Setting, simulate, without_kept_tokens};
use contextpilot_testbed::{Arch, Server, until};
use contextpilot_traffic::read;
use serde_json::{Value, json};

use super::{ANSWER, keeping, one_slot};

const SIGTERM: i32 = 15;

/// A prompt as the tokenizer divides it, and its answer's tokens.
struct Asked {
    canonical: Vec<Value>,
    answer: Vec<Value>,
    evaluated: u64,
}

fn ask(server: &Server, path: &str, body: &Value) -> Value {
    server.post(path, body).unwrap().json().unwrap()
}

fn converse(server: &Server, seed: u64, asked: &mut Vec<Asked>) {
    let mut prompt = format!("conversation {seed} {}", "of some length ".repeat(20));
    for turn in 0..4 {
        prompt += &format!("\nwhat about number {turn}?\n");
        let body = json!({"content": prompt, "add_special": true, "parse_special": true});
        let canonical = ask(server, "/tokenize", &body)["tokens"].clone();
        let body = json!({
            "prompt": prompt,
            "n_predict": ANSWER,
            "seed": seed + turn,
            "return_tokens": true,
            "request_id": format!("{seed}-{turn}"),
        });
        let answer = ask(server, "/completion", &body);
        prompt += answer["content"].as_str().expect("a text");
        let tokens = |value: &Value| value.as_array().expect("tokens").clone();
        asked.push(Asked {
            canonical: tokens(&canonical),
            answer: tokens(&answer["tokens"]),
            evaluated: answer["timings"]["prompt_n"].as_u64().expect("a number"),
        });
    }
}

fn evaluated(point: &Point) -> Vec<u64> {
    let all = point.outcomes.iter();
    all.map(|one| u64::from(one.expect("it is served").evaluated))
        .collect()
}

fn companion(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_recording_says_what_was_kept_and_what_it_saved() {
    for arch in [Arch::Llama, Arch::Mamba] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("traffic");
        let builder = one_slot(arch).args(["--cache-ram", "0"]);
        let mut server = keeping(
            builder
                .env("CONTEXTPILOT_TRAFFIC_FILE", &file)
                .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0"),
        );
        let mut asked = Vec::new();
        (0..2).for_each(|seed| converse(&server, 100 * seed, &mut asked));

        let control = until("the hook says where it listens", || server.control());
        let why = until("the last request is explained", || {
            let why = companion(&["why", "--last", "100", "--json", "--control", &control]);
            let why: Vec<Value> = why
                .lines()
                .map(|line| serde_json::from_str(line).expect("JSON"))
                .collect();
            (why.len() == asked.len()).then_some(why)
        });
        let kept: u64 = why
            .iter()
            .map(|one| one["evaluation"]["kept"].as_u64().unwrap_or(0))
            .sum();
        let stats: Value =
            serde_json::from_str(&companion(&["stats", "--json", "--control", &control])).unwrap();
        assert!(kept > 60, "{arch}: {why:?}");
        assert_eq!(stats["kept"]["tokens"], kept);
        let text = companion(&["why", "100-3", "--control", &control]);
        assert!(
            text.contains(" tokens kept as they were generated\n"),
            "{text}"
        );

        server.stop(SIGTERM).unwrap();
        let traffic = read(&std::fs::read(&file).unwrap());
        assert_eq!(
            (traffic.damage, traffic.requests.len()),
            (None, asked.len())
        );
        let recorded: u32 = traffic.requests.iter().map(|one| one.record.kept).sum();
        assert_eq!(u64::from(recorded), kept);
        let setting = Setting::recorded(&traffic).expect("the server's flags");
        let engine: Vec<u64> = asked.iter().map(|one| one.evaluated).collect();
        assert_eq!(evaluated(&simulate(&traffic, &setting)), engine, "{arch}");

        let without = without_kept_tokens(&traffic).expect("some were kept");
        let without = simulate(&without, &setting);
        // A recurrent model goes back to checkpoints, whose rules others test.
        if arch == Arch::Llama {
            let mut slot: Vec<&Value> = Vec::new();
            let truth = asked.iter().zip(&traffic.requests).map(|(one, request)| {
                let pairs = slot.iter().zip(&one.canonical);
                let common = pairs.take_while(|(held, token)| *held == token).count();
                let generated = request.generated() as usize;
                slot = one
                    .canonical
                    .iter()
                    .chain(&one.answer[..generated])
                    .collect();
                (one.canonical.len() - common).max(1) as u64
            });
            assert_eq!(evaluated(&without), truth.collect::<Vec<_>>());
        }
        let sum: u64 = engine.iter().sum();
        assert!(without.evaluated_tokens > sum + kept / 2, "{arch}: {sum}");
        let path = file.to_str().expect("a path");
        let said: Value =
            serde_json::from_str(&companion(&["simulate", path, "--json"])).expect("JSON");
        assert_eq!(said[0]["evaluated_tokens"], sum);
        assert_eq!(said[0]["evaluated_tokens_unkept"], without.evaluated_tokens);
        let text = companion(&["simulate", path]);
        assert!(
            text.contains(&format!("not kept {kept} tokens as they were")),
            "{text}"
        );
    }
}
