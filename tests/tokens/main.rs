//! Prompts that go on from an answer get the tokens that were generated (`CONTEXTPILOT_KEEP_TOKENS`): what the server
//! says it evaluated is what is new.

mod conversations;
mod families;
mod real;
mod recorded;

use std::process::Command;

use contextpilot_testbed::{Arch, Builder, Model, Server, Spec, private_folder, until};
use serde_json::{Value, json};
use tempfile::TempDir;

const ANSWER: u64 = 60;

/// What a later turn may evaluate beside what is new: a token that is divided otherwise at the seam, and the last of an
/// answer, which the server has not evaluated.
const SEAM: u64 = 4;

/// A random model that says much which is tokenized otherwise when it comes back.
fn model(arch: Arch) -> Model {
    Model::of(&Spec {
        letter_pairs: true,
        ..Spec::new(arch)
    })
}

fn one_slot(arch: Arch) -> Builder {
    Server::builder()
        .model(&model(arch))
        .args(["-np", "1", "-c", "8192", "--temp", "1"])
}

fn keeping(builder: Builder) -> Server {
    builder
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .env("CONTEXTPILOT_KEEP_TOKENS", "1")
        .spawn()
        .unwrap()
}

/// What a turn of a conversation has cost.
#[derive(Debug)]
struct Turn {
    evaluated: u64,
    /// All but what was in the slot after the turn before.
    new: u64,
}

/// A conversation in messages.
struct Chat {
    messages: Vec<Value>,
    /// Tokens of the last prompt, and of its answer.
    held: u64,
    seed: u64,
}

impl Chat {
    fn new(seed: u64) -> Self {
        let system = format!("conversation {seed} {}", "of some length ".repeat(20));
        Self {
            messages: vec![json!({"role": "system", "content": system})],
            held: 0,
            seed,
        }
    }

    fn turn(&mut self, server: &Server) -> Turn {
        let user = format!("what about number {}?", self.messages.len());
        self.messages.push(json!({"role": "user", "content": user}));
        let body = json!({
            "messages": self.messages,
            "max_tokens": ANSWER,
            "seed": self.seed + self.messages.len() as u64,
            "cache_prompt": true,
        });
        let answer = server.post("/v1/chat/completions", &body).unwrap();
        let answer = answer.json().unwrap();
        let text = answer["choices"][0]["message"]["content"].clone();
        self.messages
            .push(json!({"role": "assistant", "content": text}));
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{answer}"));
        let prompt = number(&answer["usage"]["prompt_tokens"]);
        let turn = Turn {
            evaluated: number(&answer["timings"]["prompt_n"]),
            new: prompt.saturating_sub(self.held),
        };
        // The last token of an answer is not evaluated.
        self.held = prompt + number(&answer["usage"]["completion_tokens"]) - 1;
        turn
    }
}

/// So many conversations are played to each server: some in each run, ten for docs/tokens.md.
fn conversations() -> u64 {
    let given = std::env::var("CONTEXTPILOT_TEST_CONVERSATIONS").ok();
    given.map_or(3, |given| given.parse().expect("a number"))
}

/// Turns of a conversation after the first.
fn later_turns(server: &Server, seed: u64) -> Vec<Turn> {
    let mut chat = Chat::new(seed);
    chat.turn(server);
    (0..3).map(|_| chat.turn(server)).collect()
}

/// A row of the table in docs/tokens.md. What is evaluated without is far more than what is new, and with no more than that.
#[track_caller]
fn compare(what: &str, without: &[Turn], with: &[Turn]) {
    let sum = |turns: &[Turn], of: fn(&Turn) -> u64| turns.iter().map(of).sum::<u64>();
    let [all, kept] = [without, with].map(|turns| sum(turns, |turn| turn.evaluated));
    let [before, new] = [without, with].map(|turns| sum(turns, |turn| turn.new));
    println!("| {what} | {all} | {kept} | {new} |");
    assert!(all > 2 * before, "{what}: {without:?}");
    let good = with.iter().all(|turn| turn.evaluated <= turn.new + SEAM);
    assert!(good, "{what}: {with:?}");
}

#[test]
fn a_conversation_evaluates_what_is_new() {
    for arch in [Arch::Llama, Arch::Mamba, Arch::Jamba, Arch::Gemma2] {
        let play = |server: Server| -> Vec<Turn> {
            let all = 0..conversations();
            all.flat_map(|seed| later_turns(&server, seed)).collect()
        };
        let without = play(one_slot(arch).spawn().unwrap());
        let with = play(keeping(one_slot(arch)));
        compare(&arch.to_string(), &without, &with);
    }
}

#[test]
fn four_conversations_share_two_slots() {
    let builder = || {
        Server::builder()
            .model(&model(Arch::Llama))
            .args(["-np", "2", "-c", "16384", "--temp", "1"])
    };
    let play = |server: Server| {
        let mut chats: Vec<Chat> = (0..4).map(Chat::new).collect();
        for chat in &mut chats {
            chat.turn(&server);
        }
        let mut turns = Vec::new();
        for _ in 0..conversations() {
            turns.extend(chats.iter_mut().map(|chat| chat.turn(&server)));
        }
        turns
    };
    let without = play(builder().spawn().unwrap());
    compare(
        "four conversations, two slots",
        &without,
        &play(keeping(builder())),
    );
}

/// The slots are gone, and what was said is in the store's folder.
#[test]
fn after_a_restart_with_a_store_a_conversation_goes_on() {
    let play = |setting: &str| {
        let folder = private_folder();
        let mut turns = Vec::new();
        for seed in 0..conversations() {
            turns.extend(restarted(&folder, setting, seed));
        }
        turns
    };
    compare("a store after a restart", &play("0"), &play("1"));
}

/// The turns of a conversation, each on a server that has just been started. What the store has loaded was not evaluated.
fn restarted(folder: &TempDir, setting: &str, seed: u64) -> Vec<Turn> {
    const SIGTERM: i32 = 15;
    let stats = |control: &str| -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"))
            .args(["stats", "--json", "--control", control])
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).expect("stats as JSON")
    };
    let mut chat = Chat::new(seed);
    let turns = (0..4).map(|nth| {
        let builder = one_slot(Arch::Llama).env("CONTEXTPILOT_STORE", folder.path());
        let mut server = builder
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .env("CONTEXTPILOT_KEEP_TOKENS", setting)
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
            .spawn()
            .unwrap();
        let control = until("the hook says where it listens", || server.control());
        until("the store is ready", || {
            (stats(&control)["store"]["ready"] == true).then_some(())
        });
        let turn = chat.turn(&server);
        let figures = stats(&control);
        let kept = figures["kept"]["tokens"].as_u64();
        assert_eq!(kept > Some(0), setting == "1" && nth > 0, "{figures}");
        let loaded = figures["store"]["loaded_tokens"]
            .as_u64()
            .expect("a number");
        server.stop(SIGTERM).unwrap();
        Turn {
            evaluated: turn.evaluated - loaded,
            ..turn
        }
    });
    turns.skip(1).collect()
}

/// Nothing but prompts of chats and completions is changed.
#[test]
fn other_requests_are_answered_as_ever() {
    let plain = one_slot(Arch::Llama).spawn().unwrap();
    let server = keeping(one_slot(Arch::Llama));
    let ask = |server: &Server, path: &str, body: &Value| {
        server.post(path, body).unwrap().json().unwrap()
    };
    let completion = json!({"prompt": "once upon a time", "n_predict": 40, "seed": 5});
    let said = ask(&server, "/completion", &completion);
    let text = format!("once upon a time{}", said["content"].as_str().unwrap());
    for add_special in [true, false] {
        let body = json!({"content": text, "add_special": add_special});
        let [ours, theirs] = [&server, &plain].map(|server| ask(server, "/tokenize", &body));
        assert_eq!(ours, theirs);
    }
    // The prompt itself is changed: it evaluates the last token only.
    let body = json!({"prompt": text, "n_predict": 1});
    let again = ask(&server, "/completion", &body);
    assert!(
        again["timings"]["prompt_n"].as_u64().unwrap() <= SEAM,
        "{again}"
    );
    let theirs = ask(&plain, "/completion", &completion);
    assert_eq!(theirs["content"], said["content"]);
    let theirs = ask(&plain, "/completion", &body);
    assert!(
        theirs["timings"]["prompt_n"].as_u64().unwrap() > 10,
        "{theirs}"
    );
}

/// JSON that a client sends back with white space of its own keeps its tokens, if `calls` says so.
#[test]
fn json_that_is_spelled_otherwise_keeps_its_tokens() {
    for (setting, keeps) in [("calls", true), ("1", false)] {
        let server = one_slot(Arch::Mamba)
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .env("CONTEXTPILOT_KEEP_TOKENS", setting)
            .spawn()
            .unwrap();
        let ask = |prompt: &str, more: Value| {
            let mut body = json!({"prompt": prompt, "seed": 3});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            server.post("/completion", &body).unwrap().json().unwrap()
        };
        let grammar =
            r#"root ::= "{\"name\":\"" [a-z]{30} "\",\"arguments\":{\"a\":\"" [a-z]{30} "\"}}""#;
        let begins = "a call that is to be made: ";
        let said = ask(begins, json!({"n_predict": 200, "grammar": grammar}));
        let content = said["content"].as_str().unwrap();
        let call: Value = serde_json::from_str(content).unwrap();
        assert!(call["arguments"]["a"].is_string(), "{said}");
        let spaced = content.replace(':', ": ").replace(",", ", ");
        let next = ask(&format!("{begins}{spaced} next"), json!({"n_predict": 1}));
        let evaluated = next["timings"]["prompt_n"].as_u64().unwrap();
        let new = " next".len() as u64;
        assert_eq!(evaluated <= new + SEAM, keeps, "{setting}: {next}");
        // Another value is evaluated.
        let other = spaced.replacen("{\"name\": \"", "{\"name\": \"other", 1);
        let next = ask(&format!("{begins}{other} next"), json!({"n_predict": 1}));
        let evaluated = next["timings"]["prompt_n"].as_u64().unwrap();
        assert!(evaluated > 20, "{setting}: {next}");
    }
}

/// The chat template of gpt-oss has another form of a call's header than the model writes.
#[test]
fn a_call_in_the_format_of_gpt_oss_keeps_the_form_of_its_header() {
    let model = Model::of(&Spec {
        harmony: true,
        ..Spec::new(Arch::Llama)
    });
    let server = one_slot(Arch::Llama)
        .model(&model)
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .env("CONTEXTPILOT_KEEP_TOKENS", "calls")
        .spawn()
        .unwrap();
    let ask = |prompt: &str, more: Value| {
        let mut body = json!({"prompt": prompt, "seed": 3, "temperature": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        server.post("/completion", &body).unwrap().json().unwrap()
    };
    let headers = [
        r#"<|channel|> "commentary to=functions.get_time " <|constrain|> "json" <|message|>"#,
        r#"" to=functions.get_time" <|channel|> "commentary " <|constrain|> "json" <|message|>"#,
    ];
    for header in headers {
        let begins = format!(
            "<|start|>user<|message|>{} o'clock?<|end|><|start|>assistant",
            header.len()
        );
        let grammar = format!(r#"root ::= {header} "{{\"zone\": \"" [a-z]{{30}} "\"}}""#);
        let more = json!({"n_predict": 200, "grammar": grammar});
        let said = ask(&begins, more);
        let content = said["content"].as_str().unwrap();
        let (_, arguments) = content.split_once("<|message|>").expect("a header");
        assert!(arguments.starts_with("{\"zone\": \""), "{said}");
        let text = |call: &str| {
            format!(
                "{begins} to=functions.{call}<|channel|>commentary json<|message|>{arguments}<|call|>"
            )
        };
        let next = ask(&text("get_time"), json!({"n_predict": 1}));
        let evaluated = next["timings"]["prompt_n"].as_u64().unwrap();
        assert!(evaluated <= 1 + SEAM, "{said}\n{next}");
        // What the model reads is what it wrote.
        let held = next["prompt"].as_str().expect("the slot's text");
        assert!(held.contains("<|constrain|>json<|message|>"), "{next}");
        // Another function is evaluated.
        let other = ask(&text("get_date"), json!({"n_predict": 1}));
        let evaluated = other["timings"]["prompt_n"].as_u64().unwrap();
        assert!(evaluated > 40, "{other}");
    }
}
