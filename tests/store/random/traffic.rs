//! Random traffic: prompts that continue, branch and repeat, and what else clients do.

use std::sync::Mutex;

use contextpilot_testbed::{Connection, Random, Request, Server};
use serde_json::{Value, json};

/// The longest prompt, tokens.
const LONGEST: usize = 700;
/// Tokens that a tiny model has names for.
const VOCABULARY: usize = 50;

/// An answer that is to be compared.
pub(super) struct Answered {
    pub(super) prompt: Vec<u32>,
    /// The scale of the adapter, if the request says one.
    pub(super) scale: Option<f32>,
    pub(super) steps: Vec<Step>,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(super) token: u32,
    /// Logarithms of the probabilities of the likeliest tokens, with these.
    pub(super) likeliest: Vec<(u32, f64)>,
}

/// How the server of one life is started. Every choice changes what the store sees.
pub(super) struct Life {
    pub(super) flags: Vec<&'static str>,
    /// Requests name a scale of the adapter.
    pub(super) with_adapters: bool,
    /// Slots are saved to a file and restored.
    pub(super) with_files: bool,
    /// What is loaded goes past the memory for a state, as large states do. (In a debug build.)
    pub(super) goes_straight: bool,
    /// Some requests ask for two answers.
    with_several_answers: bool,
    /// What the server answers is what it would answer without a cache. It is not where tokens are moved.
    pub(super) is_exact: bool,
}

impl Life {
    /// `has_window`: the model has sliding windows. With these, llama-server 0.7.0 answers wrongly now and then if a
    /// batch is larger than what is computed at once, and the cache small beside it.
    pub(super) fn new(random: &mut Random, has_adapter: bool, has_window: bool) -> Self {
        let slots = ["1", "2", "3"][random.index(3)];
        // The host prompt cache and restored files forget under which adapters their tokens were evaluated.
        let with_adapters = has_adapter && random.index(3) == 0;
        let host = random.choose(&[&["--cache-ram", "0"][..], &["--cache-ram", "1"], &[]]);
        let moved = random.index(5) == 0;
        let is_unified = random.index(2) == 0;
        let with_files = !with_adapters && random.index(2) == 0;
        // The server also saves copies whose rows the engine has not written yet, and answers wrongly from them.
        let saves = with_files || (!with_adapters && host != ["--cache-ram", "0"]);
        let mut flags = vec!["-np", slots];
        let mut add = |more: &[&'static str]| flags.extend(more);
        add(random.choose(&[&["-c", "1024"][..], &["-c", "2048"], &["-c", "4096"]]));
        add(if is_unified {
            &["--kv-unified"]
        } else {
            &["--no-kv-unified"]
        });
        add(match random.index(3) {
            0 => &["-b", "2048"],
            1 => &["-b", "64"],
            _ if has_window => &["-b", "32", "-ub", "32"],
            _ => &["-b", "256", "-ub", "32"],
        });
        add(if with_adapters {
            &["--cache-ram", "0"]
        } else {
            host
        });
        add(if moved { &["--cache-reuse", "16"] } else { &[] });
        add(random.choose(&[&[][..], &["--context-shift"]]));
        add(random.choose(&[&[][..], &[], &["--slot-prompt-similarity", "0"]]));
        Self {
            flags,
            with_adapters,
            with_files,
            goes_straight: random.index(2) == 0,
            with_several_answers: is_unified || !saves,
            is_exact: !moved,
        }
    }
}

/// The scales of the adapter that requests name; `None`: they name none, which is a scale of 1.
const SCALES: [Option<f32>; 3] = [None, Some(0.0), Some(0.5)];

/// The prompts that all clients know, by scale. Prompts of different scales differ from the first token on:
/// llama-server 0.7.0 reuses in a slot what was evaluated with a scale of 0 for other scales, too, and answers
/// wrongly then, with or without a store.
pub(super) struct Prompts(Mutex<[Vec<Vec<u32>>; 3]>);

impl Prompts {
    pub(super) fn new() -> Self {
        Self(Mutex::new([300, 301, 302].map(|first| vec![vec![first]])))
    }

    /// One that continues, branches off or repeats an earlier one.
    fn next(&self, random: &mut Random, scale: usize) -> Vec<u32> {
        let all = self.0.lock().unwrap();
        let known = &all[scale][random.index(all[scale].len())];
        let kept = match random.index(4) {
            0 => 1 + random.index(known.len()),
            1 => 1,
            _ => known.len(),
        };
        let mut prompt = known[..kept].to_vec();
        let new = match random.index(4) {
            0 if kept > 1 => 0,
            1 => 1 + random.index(8),
            _ => 1 + random.index(300),
        };
        prompt.extend((0..new).map(|_| 300 + random.index(VOCABULARY) as u32));
        prompt.truncate(LONGEST);
        prompt
    }

    /// The last of those that name no scale.
    pub(super) fn without_scale(&self, count: usize) -> Vec<Vec<u32>> {
        let all = self.0.lock().unwrap();
        all[0].iter().rev().take(count).cloned().collect()
    }

    fn add(&self, scale: usize, prompt: Vec<u32>) {
        self.0.lock().unwrap()[scale].push(prompt);
    }
}

/// What a client does, until it has done `count` things. The answers that are to be compared.
pub(super) fn client(
    server: &Server,
    prompts: &Prompts,
    mut random: Random,
    life: &Life,
    count: usize,
) -> Vec<Answered> {
    let slots = u64::from(server.slots().unwrap());
    let mut answered = Vec::new();
    for _ in 0..count {
        let pool = match random.index(2) {
            0 if life.with_adapters => random.index(SCALES.len()),
            _ => 0,
        };
        let (scale, prompt) = (SCALES[pool], prompts.next(&mut random, pool));
        let mut request = asking(&prompt).predict(1 + random.index(6) as u32);
        let slot = random.index(slots as usize) as u32;
        // Several answers and a named slot make llama-server 0.7.0 wait for ever.
        let twice = life.with_several_answers && random.index(16) == 0;
        match random.index(3) {
            _ if twice => request = request.with("n", 2),
            0 => request = request.slot(slot),
            _ => {}
        }
        if let Some(scale) = scale {
            request = request.with("lora", json!([{"id": 0, "scale": scale}]));
        }
        match random.index(16) {
            0 => request = request.with("cache_prompt", false),
            // Longer than the context of some servers: it is refused, or the context is shifted.
            1 => request = request.predict(200),
            _ => {}
        }
        match random.index(16) {
            0 => leave(server, &request, &mut random),
            1 => {
                let action = ["erase", "save", "restore"][random.index(3)];
                // Some are refused: the slot is busy, or there is no such file.
                let path = format!("/slots/{slot}?action={action}");
                if life.with_files || action == "erase" {
                    server
                        .post(&path, &json!({"filename": "a.bin"}))
                        .expect("an answer");
                }
            }
            _ => {
                let response = server.send(&request).expect("an answer");
                // A prompt that does not fit is refused.
                if response.status != 200 {
                    assert!(matches!(response.status, 400 | 500), "{}", response.text());
                    continue;
                }
                let value = response.json().unwrap();
                let value = match value {
                    Value::Array(several) => several[0].clone(),
                    one => one,
                };
                let steps = steps(&value);
                // A prompt that was cut, or a shifted context, is another prompt.
                if value["truncated"] == true {
                    continue;
                }
                let said = steps.iter().map(|step| step.token);
                prompts.add(pool, prompt.iter().copied().chain(said).collect());
                answered.push(Answered {
                    prompt,
                    scale,
                    steps,
                });
            }
        }
    }
    answered
}

/// Asks for logarithms of probabilities.
pub(super) fn asking(prompt: &[u32]) -> Request {
    Request::completion(Value::from(prompt))
        .with("n_probs", 8)
        .with("return_tokens", true)
}

/// The generated tokens of an answer.
pub(crate) fn steps(value: &Value) -> Vec<Step> {
    let of_a_chat = &value["choices"][0]["logprobs"]["content"];
    let all = value["completion_probabilities"].as_array();
    let all = all.or_else(|| of_a_chat.as_array());
    let token = |one: &Value| one["id"].as_u64().expect("a token") as u32;
    let step = |one: &Value| Step {
        token: token(one),
        likeliest: one["top_logprobs"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| (token(one), one["logprob"].as_f64().expect("a number")))
            .collect(),
    };
    all.into_iter().flatten().map(step).collect()
}

/// Sends a request, and leaves before there is an answer, or just then.
pub(crate) fn leave(server: &Server, request: &Request, random: &mut Random) {
    let mut connection = server.connect().expect("a connection");
    let body = request.wire_body();
    let bytes = Connection::request_bytes("POST", request.path(), body.as_bytes());
    let all = random.index(4) > 0;
    let sent = if all {
        bytes.len()
    } else {
        random.index(bytes.len())
    };
    connection.write(&bytes[..sent]).expect("it is sent");
    std::thread::sleep(std::time::Duration::from_millis(random.index(30) as u64));
}
