//! The conversations that are rendered: of an agent, and of a plain chat.
//!
//! All texts are made up, and none occurs twice, so that a text that is found in a prompt is known to be that text.

use contextpilot_random::Random;
use serde_json::{Value, json};

/// Turns of the user in a conversation.
pub(super) const TURNS: usize = 8;

/// Characters of each text.
const SYSTEM: usize = 2000;
const USER: usize = 132;
const REASONING: usize = 600;
const RESULT: usize = 411;
const ANSWER: usize = 312;
const TOOL: usize = 202;
const PATH: usize = 8;

/// The tools that are offered. The first is called.
const TOOLS: [&str; 6] = [
    "readfile",
    "writefile",
    "listfiles",
    "searchtext",
    "runcommand",
    "fetchpage",
];

/// What the conversation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) system: bool,
    /// Calls in each turn. 0: no tools are offered.
    pub(super) calls: usize,
    /// Whether the model reasons before each message.
    pub(super) reasons: bool,
    pub(super) turns: usize,
}

impl Form {
    pub(super) const PLAIN: Self = Self {
        system: true,
        calls: 0,
        reasons: false,
        turns: TURNS,
    };
    pub(super) const TOOLS: Self = Self {
        calls: 1,
        ..Self::PLAIN
    };
    pub(super) const REASONING: Self = Self {
        reasons: true,
        ..Self::TOOLS
    };
    pub(super) const PARALLEL: Self = Self {
        calls: 2,
        ..Self::TOOLS
    };
    pub(super) const NO_SYSTEM: Self = Self {
        system: false,
        ..Self::PLAIN
    };
}

/// A conversation: all its messages, and the tools that are offered.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) form: Form,
    pub(super) messages: Vec<Value>,
}

impl Conversation {
    /// It ends with a message of the user, to which nothing is said any more.
    pub(super) fn new(form: Form) -> Self {
        let mut messages = Vec::new();
        if form.system {
            messages.push(json!({"role": "system", "content": system()}));
        }
        for turn in 0..=form.turns {
            messages.push(json!({"role": "user", "content": text("user", turn, USER)}));
            if turn == form.turns {
                break;
            }
            if form.calls > 0 {
                let calls: Vec<Value> = (0..form.calls).map(|nth| call(turn, nth)).collect();
                let said = json!({"role": "assistant", "content": "", "tool_calls": calls});
                messages.push(form.with_reasoning(said, "before a call", turn));
                messages.extend((0..form.calls).map(|nth| {
                    let content = text("result", 10 * turn + nth, RESULT);
                    json!({"role": "tool", "tool_call_id": id(turn, nth), "content": content})
                }));
            }
            let said = json!({"role": "assistant", "content": text("answer", turn, ANSWER)});
            messages.push(form.with_reasoning(said, "before an answer", turn));
        }
        Self { form, messages }
    }

    /// The indexes of what the model says.
    pub(super) fn said(&self) -> Vec<usize> {
        let said = |&at: &usize| self.messages[at]["role"] == "assistant";
        (0..self.messages.len()).filter(said).collect()
    }

    /// The messages before this index, as a client sends them.
    pub(super) fn sent(&self, before: usize, back: bool) -> Vec<Value> {
        let mut sent = self.messages[..before].to_vec();
        if !back {
            for message in sent.iter_mut().filter_map(Value::as_object_mut) {
                message.remove("reasoning_content");
            }
        }
        sent
    }
}

impl Form {
    fn with_reasoning(self, mut message: Value, before: &str, turn: usize) -> Value {
        if self.reasons {
            message["reasoning_content"] = text(before, turn, REASONING).into();
        }
        message
    }
}

pub(super) fn system() -> String {
    text("system", 0, SYSTEM)
}

/// The description of the first tool.
pub(super) fn first_tool() -> String {
    text("tool", 0, TOOL)
}

pub(super) fn tools() -> Value {
    let tool = |(nth, name): (usize, &&str)| {
        json!({"type": "function", "function": {
            "name": name,
            "description": text("tool", nth, TOOL),
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": text("path of", nth, 24)},
                    "limit": {"type": "integer", "description": text("limit of", nth, 24)},
                },
                "required": ["path"],
            },
        }})
    };
    TOOLS.iter().enumerate().map(tool).collect()
}

/// A path that stands in one call, and nowhere else.
pub(super) fn path(turn: usize, nth: usize) -> String {
    text("path", 10 * turn + nth, PATH)
}

fn call(turn: usize, nth: usize) -> Value {
    let arguments = format!("{{\"path\": \"{}\", \"limit\": 100}}", path(turn, nth));
    let function = json!({"name": TOOLS[0], "arguments": arguments});
    json!({"id": id(turn, nth), "type": "function", "function": function})
}

/// Some templates take only ids of nine letters and digits.
fn id(turn: usize, nth: usize) -> String {
    format!("call{turn:04}{nth}")
}

/// Small letters in words, of exactly this length; another text for each kind and number.
pub(super) fn text(kind: &str, nth: usize, length: usize) -> String {
    let seed = kind.bytes().fold(nth as u64 + 1, |seed, byte| {
        seed.wrapping_mul(1_000_003) ^ u64::from(byte)
    });
    let mut random = Random(seed);
    let mut text = String::new();
    while text.len() < length {
        let word = random.within(3..9) as usize;
        text += &random.letters(word);
        text.push(' ');
    }
    text.truncate(length);
    if text.ends_with(' ') {
        text.pop();
        text.push('x');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_occurs_twice_and_each_has_its_length() {
        let conversation = Conversation::new(Form {
            reasons: true,
            ..Form::PARALLEL
        });
        let mut texts = vec![first_tool()];
        for message in &conversation.messages {
            texts.extend(message["content"].as_str().map(str::to_owned));
            texts.extend(message["reasoning_content"].as_str().map(str::to_owned));
        }
        texts.retain(|text| !text.is_empty());
        texts.extend((0..TURNS).flat_map(|turn| [path(turn, 0), path(turn, 1)]));
        let whole = texts.join("|");
        for text in &texts {
            assert_eq!(whole.matches(text.as_str()).count(), 1, "{text}");
        }
        assert_eq!(system().len(), SYSTEM);
    }

    #[test]
    fn the_client_leaves_reasoning_out_or_sends_it_back() {
        let conversation = Conversation::new(Form::REASONING);
        let said = conversation.said();
        assert_eq!(said.len(), 2 * TURNS);
        let reasoning = |back| {
            let sent = conversation.sent(said[2], back);
            let reasons = |message: &&Value| message.get("reasoning_content").is_some();
            sent.iter().filter(reasons).count()
        };
        assert_eq!((reasoning(true), reasoning(false)), (2, 0));
    }
}
