//! Answers of a real model: how many of them are evaluated again with the next turn, in part.

use contextpilot_testbed::{Arch, Model, Server, script, skip};
use serde_json::{Value, json};

use super::{ANSWER, SEAM, keeping};

const TOPICS: [&str; 10] = [
    "a mill beside a river",
    "how cheese is made",
    "the planet Mars",
    "a letter to a landlord",
    "sorting in Python",
    "names for a dog",
    "the history of tea",
    "a poem of four lines",
    "why the sky is blue",
    "what to pack for a hike in October",
];

fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body).unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json().unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// What of an answer was evaluated again: `held` tokens were in the slot before this turn.
fn again(server: &Server, prompt: &str, held: u64) -> u64 {
    let body = json!({"prompt": prompt, "n_predict": 0});
    let answer = ask(server, "/completion", &body);
    let new = number(&answer["tokens_evaluated"]).saturating_sub(held);
    number(&answer["timings"]["prompt_n"]).saturating_sub(new + SEAM)
}

/// The server that keeps tokens answers. A plain one gets the tokens of prompt and answer, so both hold the same when the
/// next turn comes as a text.
#[test]
fn answers_of_a_real_model_are_not_evaluated_again() {
    let model = match script("model", &[]) {
        Ok(path) => Model::file(path.into(), Arch::Llama),
        Err(why) => return skip(why.why_skipped()),
    };
    let builder = Server::builder()
        .model(&model)
        .args(["-np", "1", "-c", "2048", "--cache-ram", "0"])
        .ready_within(std::time::Duration::from_secs(300));
    let plain = builder.clone().spawn().unwrap();
    let server = keeping(builder);
    let given = std::env::var("CONTEXTPILOT_TEST_ANSWERS").ok();
    let answers: usize = given.map_or(4, |given| given.parse().expect("a number"));
    let (mut lost, mut tokens) = ([0, 0], [0, 0]);
    for seed in 0..answers {
        let topic = TOPICS[seed % TOPICS.len()];
        let mut messages = vec![
            json!({"role": "user", "content": format!("Number {seed}: write something about {topic}.")}),
        ];
        let rendered = |messages: &[Value]| {
            let body = json!({"messages": messages});
            let rendered = ask(&server, "/apply-template", &body);
            rendered["prompt"].as_str().expect("a prompt").to_owned()
        };
        let prompt = rendered(&messages);
        let body = json!({
            "prompt": prompt, "n_predict": ANSWER, "seed": seed, "temperature": 1, "return_tokens": true,
        });
        let answer = ask(&server, "/completion", &body);
        let text = answer["content"].as_str().expect("a text");
        if text.contains('\u{fffd}') {
            // Its bytes are no text, which a client cannot send back.
            continue;
        }
        let content = json!({"content": prompt, "add_special": true, "parse_special": true});
        let mut held = ask(&server, "/tokenize", &content)["tokens"]
            .as_array()
            .expect("tokens")
            .clone();
        // The last token is not in the slot: the answer's end, or the one at the limit.
        let said = number(&answer["tokens_predicted"]) as usize - 1;
        held.extend(
            answer["tokens"]
                .as_array()
                .expect("tokens")
                .iter()
                .take(said)
                .cloned(),
        );
        ask(
            &plain,
            "/completion",
            &json!({"prompt": held, "n_predict": 0}),
        );

        messages.push(json!({"role": "assistant", "content": text}));
        messages.push(json!({"role": "user", "content": "Go on."}));
        let next = rendered(&messages);
        for (nth, server) in [&plain, &server].into_iter().enumerate() {
            let again = again(server, &next, held.len() as u64);
            lost[nth] += usize::from(again > 0);
            tokens[nth] += again;
        }
    }
    println!("of {answers} answers, again in part without, and with: {lost:?}, tokens {tokens:?}");
    assert_eq!(lost[1], 0);
    // Few answers are: of the first 100, two.
    assert!(answers < 100 || lost[0] > 0, "nothing is lost without");
}
