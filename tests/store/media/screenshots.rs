//! The figures of docs/store.md: a chat over twelve screenshots, the oldest of which is left out each turn.

use std::time::Instant;

use contextpilot_testbed::{Builder, Random, Request, Server};
use serde_json::json;

use super::super::pictures::base64;
use super::super::random::{ROUNDING, Step, difference, steps};
use super::super::{SIGTERM, Stored, folder, started};
use super::{MARK, letters, qwen};

const SCREENSHOTS: u64 = 12;
const WIDTH: u32 = 1024;
const HEIGHT: u32 = 768;

/// A turn of the chat, of which the first screenshot is this one.
fn asking(first: u64) -> Request {
    let screenshot = |seed: u64| {
        let mut file = format!("P6 {WIDTH} {HEIGHT} 255\n").into_bytes();
        let mut random = Random(seed);
        let bytes = std::iter::repeat_with(|| random.below(256) as u8);
        file.extend(bytes.take((3 * WIDTH * HEIGHT) as usize));
        base64(&file)
    };
    let seeds = first..first + SCREENSHOTS;
    let mut text = letters(40, 200);
    for seed in seeds.clone() {
        text.push_str(MARK);
        text.push_str(&letters(seed, 30));
    }
    let images: Vec<String> = seeds.map(screenshot).collect();
    let prompt = json!({"prompt_string": text, "multimodal_data": images});
    Request::completion(prompt)
        .predict(1)
        .with("n_probs", 8)
        .with("return_tokens", true)
}

/// What a turn cost.
#[derive(Debug)]
struct Cost {
    evaluated: u64,
    encoded: u64,
    seconds: f64,
    steps: Vec<Step>,
}

fn timed(server: &Server, request: &Request) -> (f64, serde_json::Value) {
    let start = Instant::now();
    let answer = server.send(request).unwrap();
    (start.elapsed().as_secs_f64(), answer.json().unwrap())
}

/// So many images a plain server says that it has encoded.
fn encoded_by(plain: &Server) -> u64 {
    let log = plain.stderr();
    let chunks = log.lines().filter_map(|line| {
        let (_, count) = line
            .split_once("encoding mtmd batch")?
            .1
            .split_once("n_chunks = ")?;
        count.trim().parse::<u64>().ok()
    });
    chunks.sum()
}

fn ask_plain(server: &Server, first: u64) -> Cost {
    let before = encoded_by(server);
    let (seconds, value) = timed(server, &asking(first));
    Cost {
        evaluated: value["timings"]["prompt_n"].as_u64().unwrap(),
        encoded: encoded_by(server) - before,
        seconds,
        steps: steps(&value),
    }
}

fn ask_stored(stored: &mut Stored, first: u64) -> Cost {
    let before = stored.figures();
    let (seconds, value) = timed(&stored.server, &asking(first));
    let after = stored.figures();
    let submitted = value["timings"]["prompt_n"].as_u64().unwrap();
    // What was loaded is evaluated to the server.
    let loaded = after.loaded_tokens - before.loaded_tokens;
    Cost {
        evaluated: submitted - loaded,
        encoded: after.encoded - before.encoded,
        seconds,
        steps: steps(&value),
    }
}

#[test]
#[ignore = "prints figures, for docs/store.md"]
fn what_a_chat_over_twelve_screenshots_costs() {
    let builder: Builder = qwen().args(["-c", "20480", "-lv", "4"]);
    let folder = folder();
    let mut plain = started(&builder);
    let mut stored = Stored::start(&builder, folder.path());
    let turns = [
        ("a prompt", 0),
        ("one dropped", 1),
        ("one dropped", 2),
        ("one dropped", 3),
        ("restart, the same", 3),
        ("one dropped", 4),
        ("restart, an older one", 2),
    ];
    for (what, first) in turns {
        if what.starts_with("restart") {
            plain.stop(SIGTERM).unwrap();
            plain = started(&builder);
            stored.end();
            stored = Stored::start(&builder, folder.path());
        }
        let without = ask_plain(&plain, first);
        let with = ask_stored(&mut stored, first);
        let difference = difference(&with.steps, &without.steps);
        assert!(difference < ROUNDING, "{what}: {difference}");
        for (who, cost) in [("without", &without), ("with", &with)] {
            println!(
                "{what}, {who}: {} evaluated, {} encoded, {:.2} s",
                cost.evaluated, cost.encoded, cost.seconds
            );
        }
    }
}
