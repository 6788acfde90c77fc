//! Eight families of models, from what a model says to what is evaluated at the next turn: a scripted model writes reasoning, calls and
//! answers in the family's own format, the real server reads them and hands them to the client, the client sends them back, and the
//! family's template makes the next prompt.
//!
//! The templates are in llama.cpp's sources, which `scripts/templates` fetches.

use std::path::{Path, PathBuf};

use contextpilot_testbed::{Arch, Model, Server, private_folder, skip};
use contextpilot_tiny_model::{Chat, Said, Spec, write_script, write_with};
use serde_json::{Value, json};

use super::SEAM;

const TEMPLATES: &str = "target/server-tests/sources/models/templates";
const POSITIONS: u32 = 8192;

/// What a model says in one message.
struct Spoken {
    /// Empty: it does not reason.
    reasoning: String,
    text: String,
    /// The arguments of a call of `read_file`, as the model writes them.
    call: Option<String>,
}

struct Family {
    template: &'static str,
    bos: &'static str,
    eos: &'static str,
    markers: &'static [&'static str],
    reasons: bool,
    /// The kinds of conversations that its template goes on with.
    goes_on: &'static [Kind],
    /// In the family's format, behind this prompt.
    write: fn(&Spoken, &str) -> String,
}

/// Reasoning between tags, of which the prompt may have the first.
fn thought(said: &Spoken, prompt: &str, [open, close]: [&str; 2]) -> String {
    let is_open = prompt.trim_end().ends_with(open.trim());
    match (said.reasoning.is_empty(), is_open) {
        (true, false) => String::new(),
        (_, true) => format!("{}{close}", said.reasoning),
        (false, false) => format!("{open}{}{close}", said.reasoning),
    }
}

/// A call as Hermes writes it.
fn hermes(said: &Spoken) -> String {
    let call = |arguments: &String| {
        format!(
            "<tool_call>\n{{\"name\": \"read_file\", \"arguments\": {arguments}}}\n</tool_call>"
        )
    };
    said.call.as_ref().map_or(String::new(), call)
}

/// The arguments of a call, each by its name.
fn arguments(call: &str, write: impl Fn(&str, &str) -> String) -> String {
    let all: Value = serde_json::from_str(call).unwrap();
    let one = |name: &&str| write(name, all[name].as_str().expect("a text"));
    ["path", "note"].iter().map(one).collect()
}

/// A call as an element for each argument.
fn elements(said: &Spoken, [open, close]: [&str; 2], space: &str) -> String {
    let call = |call: &String| {
        let all = arguments(call, |name, value| {
            format!("<parameter={name}>{space}{value}{space}</parameter>\n")
        });
        format!("{open}\n<function=read_file>\n{all}</function>\n{close}")
    };
    said.call.as_ref().map_or(String::new(), call)
}

const FAMILIES: [Family; 8] = [
    Family {
        template: "Qwen-Qwen3-0.6B",
        bos: "<|endoftext|>",
        eos: "<|im_end|>",
        markers: &[
            "<|im_start|>",
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
        ],
        reasons: true,
        goes_on: &[Kind::Plain, Kind::Tools],
        write: |said, prompt| {
            let thought = thought(said, prompt, ["<think>\n", "\n</think>\n\n"]);
            format!("{thought}{}{}", said.text, hermes(said))
        },
    },
    Family {
        template: "Qwen-Qwen2.5-7B-Instruct",
        bos: "<|endoftext|>",
        eos: "<|im_end|>",
        markers: &["<|im_start|>", "<tool_call>", "</tool_call>"],
        reasons: false,
        goes_on: &[Kind::Plain, Kind::Tools],
        write: |said, _| format!("{}{}", said.text, hermes(said)),
    },
    Family {
        template: "Qwen3-Coder",
        bos: "<|endoftext|>",
        eos: "<|im_end|>",
        markers: &["<|im_start|>", "<tool_call>", "</tool_call>"],
        reasons: false,
        goes_on: &[Kind::Plain, Kind::Tools],
        write: |said, _| {
            format!(
                "{}{}",
                said.text,
                elements(said, ["<tool_call>", "</tool_call>"], "\n")
            )
        },
    },
    Family {
        template: "ByteDance-Seed-OSS",
        bos: "<seed:bos>",
        eos: "<seed:eos>",
        markers: &[
            "<seed:think>",
            "</seed:think>",
            "<seed:tool_call>",
            "</seed:tool_call>",
        ],
        reasons: true,
        goes_on: &[Kind::Plain, Kind::Tools, Kind::ReasoningBack],
        write: |said, prompt| {
            let thought = thought(said, prompt, ["<seed:think>", "</seed:think>\n"]);
            format!(
                "{thought}{}{}",
                said.text,
                elements(said, ["<seed:tool_call>", "</seed:tool_call>"], "")
            )
        },
    },
    Family {
        template: "GLM-4.7-Flash",
        bos: "[gMASK]",
        eos: "<|user|>",
        markers: &[
            "<sop>",
            "<|system|>",
            "<|assistant|>",
            "<|observation|>",
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ],
        reasons: true,
        goes_on: &[Kind::ReasoningBack],
        write: |said, prompt| {
            let thought = thought(said, prompt, ["<think>", "</think>"]);
            let call = |call: &String| {
                let all = arguments(call, |name, value| {
                    format!("<arg_key>{name}</arg_key><arg_value>{value}</arg_value>")
                });
                format!("<tool_call>read_file{all}</tool_call>")
            };
            format!(
                "{thought}{}{}",
                said.text,
                said.call.as_ref().map_or(String::new(), call)
            )
        },
    },
    Family {
        template: "openai-gpt-oss-120b",
        bos: "<|startoftext|>",
        eos: "<|return|>",
        markers: &[
            "<|start|>",
            "<|end|>",
            "<|channel|>",
            "<|constrain|>",
            "<|message|>",
            "<|call|>",
        ],
        reasons: true,
        goes_on: &[Kind::Plain, Kind::Tools],
        write: |said, _| {
            let thought = match said.reasoning.as_str() {
                "" => String::new(),
                text => format!("<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"),
            };
            let rest = match &said.call {
                Some(arguments) => {
                    format!(
                        "<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{arguments}<|call|>"
                    )
                }
                None => format!("<|channel|>final<|message|>{}", said.text),
            };
            format!("{thought}{rest}")
        },
    },
    Family {
        template: "mistralai-Mistral-Nemo-Instruct-2407",
        bos: "<s>",
        eos: "</s>",
        markers: &[
            "[INST]",
            "[/INST]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ],
        reasons: false,
        goes_on: &[],
        write: |said, _| match &said.call {
            Some(arguments) => format!(
                "[TOOL_CALLS][{{\"name\": \"read_file\", \"arguments\": {arguments}, \"id\": \"{ID}\"}}]"
            ),
            None => said.text.clone(),
        },
    },
    Family {
        template: "meta-llama-Llama-3.1-8B-Instruct",
        bos: "<|begin_of_text|>",
        eos: "<|eot_id|>",
        markers: &[
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|python_tag|>",
            "<|eom_id|>",
        ],
        reasons: false,
        goes_on: &[Kind::Plain, Kind::Tools],
        write: |said, _| match &said.call {
            Some(arguments) => format!("{{\"name\": \"read_file\", \"parameters\": {arguments}}}"),
            None => said.text.clone(),
        },
    },
];

/// Of a call, where the model writes it. Others are made up by the server, and no template here shows them.
const ID: &str = "abcdef123";

/// A kind of conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Tools,
    ReasoningBack,
    ReasoningOut,
}

impl Kind {
    const ALL: [Self; 4] = [
        Self::Plain,
        Self::Tools,
        Self::ReasoningBack,
        Self::ReasoningOut,
    ];

    fn reasons(self) -> bool {
        matches!(self, Self::ReasoningBack | Self::ReasoningOut)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tools => "tools",
            Self::ReasoningBack => "reasoning sent back",
            Self::ReasoningOut => "reasoning left out",
        }
    }
}

/// Of CONTEXTPILOT_KEEP_TOKENS.
const SETTINGS: [&str; 3] = ["0", "1", "calls"];

/// Messages of the client, and between them what the model says to each.
fn script(kind: Kind) -> Vec<(Vec<Value>, Spoken)> {
    let user = |nth: usize| {
        let text = format!(
            "Question {nth}: what does the file say about caches, and about each of its slots? "
        );
        json!({"role": "user", "content": text.repeat(8)})
    };
    let spoken = |nth: usize, calls: bool| Spoken {
        reasoning: if kind.reasons() {
            let text = format!("The user wants part {nth}, so a bad cab faced a badge. ");
            text.repeat(3).trim_end().to_owned()
        } else {
            String::new()
        },
        text: if calls {
            String::new()
        } else {
            let text = format!("Part {nth} says that a bad cab had a faded badge. ");
            text.repeat(3).trim_end().to_owned()
        },
        call: calls.then(|| {
            format!("{{\"path\":\"docs/part-{nth}.md\",\"note\":\"a faded badge, {nth}\"}}")
        }),
    };
    let result = |nth: usize| {
        let text =
            format!("Line {nth} of the file: the cache has slots, and each slot has a sequence. ");
        json!({"role": "tool", "tool_call_id": ID, "content": text.repeat(4)})
    };
    let system =
        json!({"role": "system", "content": "You read files, and answer in few words. ".repeat(5)});
    let mut all = Vec::new();
    for nth in 1..=3 {
        let mut messages = if nth == 1 {
            vec![system.clone()]
        } else {
            Vec::new()
        };
        messages.push(user(nth));
        if kind == Kind::Plain {
            all.push((messages, spoken(nth, false)));
        } else {
            all.push((messages, spoken(nth, true)));
            all.push((vec![result(nth)], spoken(nth, false)));
        }
    }
    all
}

fn body(messages: &[Value], kind: Kind) -> Value {
    let mut body = json!({"messages": messages, "max_tokens": 1000, "temperature": 0});
    if kind != Kind::Plain {
        let parameters = json!({
            "type": "object", "required": ["path"],
            "properties": {"path": {"type": "string"}, "note": {"type": "string"}},
        });
        body["tools"] = json!([{"type": "function", "function": {
            "name": "read_file", "description": "Reads a file.", "parameters": parameters,
        }}]);
    }
    body
}

/// How the client sends back what the server gave it.
fn sent_back(mut message: Value, kind: Kind) -> Value {
    if kind != Kind::ReasoningBack {
        message.as_object_mut().unwrap().remove("reasoning_content");
    }
    message
}

fn server(model: &Path, setting: &str) -> Server {
    Server::builder()
        .model(&Model::file(model.into(), Arch::Llama))
        .args(["-np", "1", "-c", "8192", "--cache-ram", "0", "--jinja"])
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .env("CONTEXTPILOT_KEEP_TOKENS", setting)
        .spawn()
        .unwrap()
}

fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body).unwrap();
    let text = answer.text();
    assert_eq!(answer.status, 200, "{path}: {text}");
    answer.json().unwrap()
}

/// The prompts that the template makes, and what is to be said to each, at which position.
fn planned(server: &Server, family: &Family, kind: Kind) -> Vec<(String, Said)> {
    let mut messages = Vec::new();
    let mut all = Vec::new();
    for (before, spoken) in script(kind) {
        messages.extend(before);
        let rendered = ask(server, "/apply-template", &body(&messages, kind));
        let prompt = rendered["prompt"].as_str().expect("a prompt");
        let content = json!({"content": prompt, "add_special": true, "parse_special": true});
        let tokens = ask(server, "/tokenize", &content);
        let at = tokens["tokens"].as_array().expect("tokens").len();
        let text = (family.write)(&spoken, prompt);
        all.push((prompt.to_owned(), Said { at, text }));
        let mut message = json!({"role": "assistant", "content": spoken.text});
        if !spoken.reasoning.is_empty() {
            message["reasoning_content"] = spoken.reasoning.into();
        }
        if let Some(arguments) = spoken.call {
            let function = json!({"name": "read_file", "arguments": arguments});
            message["tool_calls"] = json!([{"type": "function", "id": ID, "function": function}]);
        }
        messages.push(sent_back(message, kind));
    }
    all
}

/// Tokens that the later turns evaluated, and that were new in them.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    evaluated: u64,
    new: u64,
    turns: u64,
}

impl Cost {
    fn add(&mut self, other: Self) {
        self.evaluated += other.evaluated;
        self.new += other.new;
        self.turns += other.turns;
    }
}

/// `Err`: a prompt has other tokens than was planned. Which it is, and how many it has.
fn play(server: &Server, planned: &[Said], kind: Kind) -> Result<Cost, (usize, usize)> {
    let mut messages = Vec::new();
    let mut cost = Cost::default();
    let mut held = None;
    for (nth, ((before, spoken), said)) in script(kind).into_iter().zip(planned).enumerate() {
        messages.extend(before);
        let body = body(&messages, kind);
        let answer = server.post("/v1/chat/completions", &body).unwrap();
        if answer.status == 500 {
            // Said from the middle on, it may be in no format.
            let rendered = ask(server, "/apply-template", &body);
            let again = json!({"prompt": rendered["prompt"], "n_predict": 1});
            let again = ask(server, "/completion", &again);
            let prompt = again["tokens_evaluated"].as_u64().expect("a number");
            assert_ne!(prompt, said.at as u64, "{kind:?}: {}", answer.text());
            return Err((nth, prompt as usize));
        }
        let answer = answer.json().unwrap();
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{answer}"));
        let prompt = number(&answer["usage"]["prompt_tokens"]);
        if prompt != said.at as u64 {
            return Err((nth, prompt as usize));
        }
        // The server has read what the model has written.
        let message = &answer["choices"][0]["message"];
        let text = |name: &str| message[name].as_str().unwrap_or_default().trim().to_owned();
        assert_eq!(
            text("reasoning_content"),
            spoken.reasoning,
            "{kind:?}: {answer}"
        );
        assert_eq!(text("content"), spoken.text, "{kind:?}: {answer}");
        let arguments = &message["tool_calls"][0]["function"]["arguments"];
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(
            arguments.as_str().map(json),
            spoken.call.as_deref().map(json),
            "{kind:?}: {answer}"
        );
        if let Some(held) = held {
            cost.add(Cost {
                evaluated: number(&answer["timings"]["prompt_n"]),
                new: prompt.saturating_sub(held),
                turns: 1,
            });
        }
        // The token that ends an answer is not evaluated.
        held = Some(prompt + number(&answer["usage"]["completion_tokens"]) - 1);
        messages.push(sent_back(message.clone(), kind));
    }
    Ok(cost)
}

/// Where tokens are kept as they were generated, a prompt has other tokens than the tokenizer makes of it: then what is said behind
/// it moves.
fn played(model: &Path, chat: &Chat, setting: &str, mut said: Vec<Said>, kind: Kind) -> Cost {
    loop {
        write_script(model, chat, &said, POSITIONS).unwrap();
        match play(&server(model, setting), &said, kind) {
            Ok(cost) => return cost,
            Err((nth, at)) => {
                assert_ne!(
                    setting, "0",
                    "{kind:?}: prompt {nth} has {at} tokens: {said:?}"
                );
                let more = at as isize - said[nth].at as isize;
                for one in &mut said[nth..] {
                    one.at = one.at.checked_add_signed(more).expect("a position");
                }
            }
        }
    }
}

/// The family's templates and tokens.
fn chat(family: &Family) -> Option<Chat> {
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join(TEMPLATES);
    let template = templates.join(format!("{}.jinja", family.template));
    Some(Chat {
        bos: family.bos.to_owned(),
        eos: family.eos.to_owned(),
        markers: family.markers.iter().map(|one| (*one).to_owned()).collect(),
        ..Chat::new(std::fs::read_to_string(template).ok()?)
    })
}

const MISSING: &str = "llama.cpp's templates are not there: scripts/templates fetches them";

/// What is evaluated without kept tokens, with them, and with calls.
fn is_better(what: &str, [without, with, calls]: [Cost; 3], goes_on: bool) {
    println!(
        "| {what} | {} | {} | {} | {} |",
        without.new, without.evaluated, with.evaluated, calls.evaluated
    );
    let costs = format!("{what}: {without:?}, {with:?}, {calls:?}");
    assert!(
        with.evaluated <= without.evaluated && calls.evaluated <= with.evaluated,
        "{costs}"
    );
    if goes_on {
        assert!(calls.evaluated <= calls.new + SEAM * calls.turns, "{costs}");
        assert!(without.evaluated > calls.evaluated, "{costs}");
    }
}

#[test]
fn eight_families_say_and_hear_it_again() {
    let folder = private_folder();
    let path = |name: String| -> PathBuf { folder.path().join(name) };
    for family in &FAMILIES {
        let Some(chat) = chat(family) else {
            return skip(MISSING);
        };
        let silent = path(format!("{}.gguf", family.template));
        write_script(&silent, &chat, &[], POSITIONS).unwrap();
        let planner = server(&silent, "0");
        for kind in Kind::ALL {
            if kind.reasons() && !family.reasons {
                continue;
            }
            let said = planned(&planner, family, kind);
            let said: Vec<Said> = said.into_iter().map(|(_, said)| said).collect();
            let model = path(format!("{}-{kind:?}.gguf", family.template));
            let costs = SETTINGS.map(|setting| played(&model, &chat, setting, said.clone(), kind));
            let what = format!("{} | {}", family.template, kind.name());
            is_better(&what, costs, family.goes_on.contains(&kind));
        }
    }
}

/// The same prompts and answers on caches that cannot go back, where a grammar is what makes a model say that.
#[test]
fn caches_that_cannot_go_back_have_what_families_say() {
    let folder = private_folder();
    let mut conversations = Vec::new();
    let mut all = Chat::default();
    for family in &FAMILIES {
        let Some(chat) = chat(family) else {
            return skip(MISSING);
        };
        let silent = folder.path().join("silent.gguf");
        write_script(&silent, &chat, &[], POSITIONS).unwrap();
        let planner = server(&silent, "0");
        for kind in [Kind::Tools, Kind::ReasoningBack] {
            if family.goes_on.contains(&kind) {
                conversations.push(planned(&planner, family, kind));
            }
        }
        all.markers.extend(chat.markers);
        all.markers.extend([chat.bos, chat.eos]);
    }
    all.markers.sort_unstable();
    all.markers.dedup();
    all.markers.retain(|one| !["<s>", "</s>"].contains(&&**one));
    for arch in [Arch::Llama, Arch::Mamba, Arch::Jamba, Arch::Gemma2] {
        let spec = Spec {
            letter_pairs: true,
            ..Spec::new(arch)
        };
        let model = folder.path().join(format!("{arch}.gguf"));
        write_with(&model, &spec, &all).unwrap();
        let costs = SETTINGS.map(|setting| {
            let server = server(&model, setting);
            let mut sum = Cost::default();
            for conversation in &conversations {
                sum.add(forced(&server, &all, conversation));
            }
            sum
        });
        is_better(&arch.to_string(), costs, true);
    }
}

/// The conversation with a model that says what its grammar wants.
fn forced(server: &Server, chat: &Chat, conversation: &[(String, Said)]) -> Cost {
    let mut cost = Cost::default();
    let mut held = None;
    for (nth, (prompt, said)) in conversation.iter().enumerate() {
        // A grammar ends an answer by itself.
        let text = said.text.trim_end_matches("<|call|>");
        let rule = grammar(server, chat, text);
        let body = json!({
            "prompt": prompt, "grammar": rule, "n_predict": 1000, "temperature": 1, "seed": nth,
        });
        let answer = ask(server, "/completion", &body);
        let number = |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("{answer}"));
        let tokens = number("tokens_evaluated");
        assert_eq!(answer["stop_type"], "eos", "{answer}");
        if let Some(held) = held {
            cost.add(Cost {
                evaluated: answer["timings"]["prompt_n"].as_u64().expect("a number"),
                new: tokens.saturating_sub(held),
                turns: 1,
            });
        }
        held = Some(tokens + number("tokens_predicted") - 1);
    }
    cost
}

/// Says this, with each marker as its token.
fn grammar(server: &Server, chat: &Chat, text: &str) -> String {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let found = chat
            .markers
            .iter()
            .filter(|one| rest.starts_with(one.as_str()));
        if let Some(marker) = found.max_by_key(|one| one.len()) {
            let content = json!({"content": marker, "add_special": false, "parse_special": true});
            let tokens = ask(server, "/tokenize", &content);
            let [token] = &tokens["tokens"].as_array().expect("tokens")[..] else {
                panic!("{marker}: {tokens}");
            };
            parts.extend([json!(plain).to_string(), format!("<[{token}]>")]);
            plain.clear();
            rest = &rest[marker.len()..];
        } else {
            plain.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    parts.push(json!(plain).to_string());
    parts.retain(|part| part != "\"\"");
    format!("root ::= {}", parts.join(" "))
}
