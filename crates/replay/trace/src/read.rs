//! Reads the formats in which traces are published: JSON, a request or a session in each line.
//!
//! | format | a line | an id stands for | time |
//! |---|---|---|---|
//! | Mooncake | a request: `timestamp`, `input_length`, `output_length`, `hash_ids` | 512 tokens, and all before them | ms |
//! | Qwen-Bailian | the same with `chat_id`, `parent_chat_id` | 16 tokens | s |
//! | WEKA | a session: `id`, `block_size`, `requests` with `t`, `in`, `out`, `hash_ids`; sub-agents are nested | 64 tokens, in its session | s since the session began |
//! | LMCache | a request: `session_id`, `input` (messages), `output_length`, `pre_gap` | | s since the last answer |
//! | OpenAI | a request: `messages` or `prompt`, itself or within `body` or `request` | | s or ms, if it says one |
//!
//! The last two have text, which a tokenizer must make blocks of.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::Value;

use crate::trace::{Clock, NewRequest, mixed};

mod text;
mod weka;

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Of kvcache-ai/Mooncake.
    Mooncake,
    /// Of alibaba-edu/qwen-bailian-usagetraces-anon.
    QwenBailian,
    /// Of callanjfox/kv-cache-tester.
    Weka,
    /// LMCache's traces of agents.
    LmCache,
    /// Requests as they are sent to a server.
    OpenAi,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mooncake => "Mooncake",
            Self::QwenBailian => "Qwen-Bailian",
            Self::Weka => "WEKA",
            Self::LmCache => "LMCache",
            Self::OpenAi => "OpenAI",
        })
    }
}

impl Format {
    /// Tokens in a block, if nothing else is said.
    #[must_use]
    pub fn block(self) -> u32 {
        match self {
            Self::Mooncake => 512,
            Self::QwenBailian => 16,
            Self::Weka | Self::LmCache | Self::OpenAi => 64,
        }
    }

    /// What its times are. `users`: with so many sessions side by side, where they say nothing of each other.
    #[must_use]
    pub fn clock(self, users: u32) -> Clock {
        match self {
            Self::Mooncake | Self::QwenBailian | Self::OpenAi => Clock::Trace,
            Self::Weka | Self::LmCache => Clock::Session { users },
        }
    }

    /// Whether it has text, not blocks.
    #[must_use]
    pub fn has_text(self) -> bool {
        matches!(self, Self::LmCache | Self::OpenAi)
    }
}

/// What is in a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// Requests, as blocks.
    Blocks(Vec<NewRequest>),
    /// A request whose blocks are to be made of its text.
    Text(Box<Text>),
}

/// A request whose prompt is text.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// Its messages, as a server takes them. `None`: it has a prompt.
    pub messages: Option<Value>,
    /// Its tools, if it has any.
    pub tools: Option<Value>,
    /// Its prompt, or that of its messages as plain text.
    pub prompt: String,
    /// What else is known of it. `input` and `ids` are to be filled in.
    pub request: NewRequest,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Why the line is damaged.
    pub why: String,
    /// It ends before its JSON does.
    pub is_cut: bool,
}

impl Damaged {
    fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_cut: false,
        }
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Damaged {}

/// What was left out of lines that are good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Requests without a prompt.
    pub without_prompt: u64,
    /// Requests whose parent is not in the trace: each begins a session.
    pub without_parent: u64,
    /// Images and sounds in messages.
    pub media: u64,
}

/// Reads lines of one trace.
#[derive(Debug, Default)]
pub struct Reader {
    format: Option<Format>,
    block: Option<u32>,
    /// The time of the last request that said one, microseconds.
    time: u64,
    sessions: u32,
    /// The session of each name.
    named: HashMap<String, u32>,
    /// The session of each chat.
    chats: HashMap<i64, u32>,
    /// Of each session the last request, counted over all, and when it was answered.
    lasts: Vec<(u64, u64)>,
    requests: u64,
    left_out: LeftOut,
}

/// What a line may have.
#[derive(Debug, Deserialize)]
struct Fields {
    #[serde(default)]
    timestamp: Option<Time>,
    #[serde(default)]
    input_length: Option<u64>,
    #[serde(default)]
    output_length: Option<u64>,
    #[serde(default)]
    hash_ids: Option<Ids>,
    #[serde(default)]
    block_size: Option<u32>,
    #[serde(default)]
    chat_id: Option<i64>,
    #[serde(default)]
    parent_chat_id: Option<i64>,
    #[serde(default)]
    id: Option<Name>,
    #[serde(default)]
    session_id: Option<Name>,
    #[serde(default)]
    hash_id_scope: Option<String>,
    #[serde(default)]
    requests: Option<Vec<Entry>>,
    #[serde(default)]
    input: Option<Value>,
    #[serde(default)]
    pre_gap: Option<f64>,
    #[serde(default)]
    delay: Option<f64>,
    #[serde(default)]
    messages: Option<Value>,
    #[serde(default)]
    prompt: Option<Value>,
    #[serde(default)]
    tools: Option<Value>,
    #[serde(default)]
    body: Option<Value>,
    #[serde(default)]
    request: Option<Value>,
    #[serde(default)]
    response: Option<Value>,
    #[serde(default)]
    usage: Option<Value>,
    #[serde(default)]
    created: Option<Time>,
    #[serde(default)]
    created_at: Option<Time>,
    #[serde(default)]
    user: Option<Name>,
}

/// A request of a session (WEKA), or a sub-agent with requests of its own.
#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(default)]
    t: Option<f64>,
    #[serde(default)]
    r#in: Option<u64>,
    #[serde(default)]
    out: Option<u64>,
    #[serde(default)]
    hash_ids: Option<Ids>,
    #[serde(default)]
    api_time: Option<f64>,
    /// The requests of a sub-agent.
    #[serde(default)]
    requests: Option<Vec<Entry>>,
}

impl Reader {
    /// For a trace whose format is yet to be seen.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The format, once a line was read.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        self.format
    }

    /// The tokens of a block, as the trace says.
    #[must_use]
    pub fn block(&self) -> Option<u32> {
        self.block
    }

    /// What was left out.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// Ids mean nothing outside their session: what sessions share cannot be seen.
    #[must_use]
    pub fn is_by_session(&self) -> bool {
        self.format == Some(Format::Weka)
    }

    /// Reads a line. The first that is good says which format the trace has.
    ///
    /// # Errors
    /// What is wrong with it. Nothing of it counts.
    pub fn line(&mut self, line: &[u8]) -> Result<Line, Damaged> {
        let fields: Fields = serde_json::from_slice(line).map_err(|error| {
            // The line's own number is known to the caller.
            let why = error.to_string();
            Damaged {
                why: why.replace(" at line 1 column ", ", at byte "),
                is_cut: error.is_eof(),
            }
        })?;
        let format = fields.format().ok_or_else(|| {
            Damaged::new("it has neither hash_ids, requests, messages nor a prompt")
        })?;
        if let Some(known) = self.format.filter(|known| *known != format) {
            return Err(Damaged::new(format!(
                "it is of the format {format}, and the lines before it are of {known}"
            )));
        }
        if let Some(block) = fields.block_size {
            if block == 0 {
                return Err(Damaged::new("block_size is 0"));
            }
            if let Some(known) = self.block.filter(|known| *known != block) {
                return Err(Damaged::new(format!(
                    "block_size is {block}, and before it {known}"
                )));
            }
        }
        let block = fields.block_size.or(self.block);
        let read = match format {
            Format::Mooncake | Format::QwenBailian => {
                let request = self.request(fields, format)?;
                Line::Blocks(request.into_iter().collect())
            }
            Format::Weka => Line::Blocks(self.session(fields)?),
            Format::LmCache | Format::OpenAi => Line::Text(Box::new(self.text(fields, format)?)),
        };
        (self.format, self.block) = (Some(format), block);
        Ok(read)
    }

    fn request(&mut self, fields: Fields, format: Format) -> Result<Option<NewRequest>, Damaged> {
        let ids = fields.hash_ids.unwrap_or_default().0;
        let input = tokens("input_length", fields.input_length.unwrap_or(0))?;
        let output = tokens("output_length", fields.output_length.unwrap_or(0))?;
        if input == 0 {
            return if ids.is_empty() {
                self.left_out.without_prompt += 1;
                Ok(None)
            } else {
                Err(Damaged::new("it has hash_ids and no input_length"))
            };
        }
        let unit = match format {
            Format::QwenBailian => 1e6,
            _ => 1e3,
        };
        let time = fields.timestamp.and_then(|time| time.0);
        let at = self.moment(time, |_| unit)?;
        let session = match (fields.chat_id, fields.session_id) {
            (Some(chat), _) => Some(self.chat(chat, fields.parent_chat_id)?),
            (None, Some(name)) => Some(self.named(name.0)?),
            (None, None) => None,
        };
        Ok(Some(NewRequest {
            at,
            session,
            input,
            output,
            ids,
            took: None,
            after: None,
        }))
    }

    /// A time in microseconds. A request that says none comes with the one above it.
    fn moment(&mut self, time: Option<f64>, unit: impl FnOnce(f64) -> f64) -> Result<u64, Damaged> {
        if let Some(time) = time {
            self.time = micros("timestamp", time, unit(time))?;
        }
        Ok(self.time)
    }

    /// The session of a chat: that of its parent.
    fn chat(&mut self, chat: i64, parent: Option<i64>) -> Result<u32, Damaged> {
        let parent = parent.filter(|parent| *parent >= 0 && *parent != chat);
        let known = parent.and_then(|parent| self.chats.get(&parent).copied());
        let session = match known {
            Some(session) => session,
            None => {
                self.left_out.without_parent += u64::from(parent.is_some());
                self.next_session()?
            }
        };
        self.chats.insert(chat, session);
        Ok(session)
    }

    fn named(&mut self, name: String) -> Result<u32, Damaged> {
        if let Some(session) = self.named.get(&name) {
            return Ok(*session);
        }
        let session = self.next_session()?;
        self.named.insert(name, session);
        Ok(session)
    }

    fn next_session(&mut self) -> Result<u32, Damaged> {
        let session = self.sessions;
        if session == u32::MAX - 1 {
            return Err(Damaged::new("there are too many sessions"));
        }
        self.sessions += 1;
        Ok(session)
    }
}

impl Fields {
    fn format(&self) -> Option<Format> {
        if self.requests.is_some() {
            return Some(Format::Weka);
        }
        if self.hash_ids.is_some() || self.input_length.is_some() {
            return Some(match self.chat_id {
                Some(_) => Format::QwenBailian,
                None => Format::Mooncake,
            });
        }
        let is_list = |value: &Option<Value>| value.as_ref().is_some_and(Value::is_array);
        if is_list(&self.input) && (self.pre_gap.is_some() || self.output_length.is_some()) {
            return Some(Format::LmCache);
        }
        let within = |value: &Option<Value>| {
            let keys = ["messages", "prompt", "input"];
            let value = value.as_ref();
            value.is_some_and(|value| keys.iter().any(|key| value.get(key).is_some()))
        };
        let has_text = self.messages.is_some() || self.prompt.is_some() || self.input.is_some();
        let is_log = has_text || within(&self.body) || within(&self.request);
        is_log.then_some(Format::OpenAi)
    }
}

/// More tokens than any prompt has.
const MOST_TOKENS: u64 = 1 << 30;

fn tokens(name: &str, tokens: u64) -> Result<u32, Damaged> {
    match u32::try_from(tokens) {
        Ok(count) if tokens <= MOST_TOKENS => Ok(count),
        _ => Err(Damaged::new(format!("{name} is {tokens}: too many"))),
    }
}

/// A time in microseconds. `unit`: how many of them the number counts.
fn micros(name: &str, time: f64, unit: f64) -> Result<u64, Damaged> {
    let micros = time * unit;
    // 300,000 years: a time since 1970 in nanoseconds fits, and sums of two do.
    if !(0.0..1e19).contains(&micros) {
        return Err(Damaged::new(format!("{name} is {time}: no time")));
    }
    Ok(micros as u64)
}

/// Ids of blocks: numbers, or names of which a hash is taken.
#[derive(Debug, Default)]
struct Ids(Vec<u64>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let ids: Vec<Id> = Vec::deserialize(from)?;
        Ok(Self(ids.into_iter().map(|id| id.0).collect()))
    }
}

#[derive(Debug)]
struct Id(u64);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Id;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the id of a block, a whole number or a text")
            }
            fn visit_u64<E>(self, id: u64) -> Result<Id, E> {
                Ok(Id(id))
            }
            fn visit_i64<E>(self, id: i64) -> Result<Id, E> {
                Ok(Id(id as u64))
            }
            fn visit_str<E>(self, id: &str) -> Result<Id, E> {
                Ok(Id(of_name(id)))
            }
        }
        from.deserialize_any(Either)
    }
}

/// The hash of a name.
fn of_name(name: &str) -> u64 {
    let bytes = name.as_bytes().chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    bytes.fold(name.len() as u64, |hash, word| mixed(hash ^ mixed(word)))
}

/// The ids of a prompt's full blocks, and of what is behind the last full one: an id stands for all tokens up to its end.
pub fn chain(tokens: impl IntoIterator<Item = u64>, block: u32) -> (u32, Vec<u64>) {
    let (mut link, mut count, mut ids) = (0, 0_u32, Vec::new());
    for token in tokens {
        link = mixed(link ^ mixed(token));
        count = count.saturating_add(1);
        if count % block.max(1) == 0 {
            ids.push(link);
        }
    }
    if count % block.max(1) != 0 {
        // It is not the block that it will be when more tokens follow.
        ids.push(mixed(!link));
    }
    (count, ids)
}

/// A name: a text or a number.
#[derive(Debug)]
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        Ok(Self(match value {
            Value::String(name) => name,
            other => other.to_string(),
        }))
    }
}

/// A time: a number, or a text that has one. What else it is counts as no time: logs say it in many ways.
#[derive(Debug)]
struct Time(Option<f64>);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        Ok(Self(match &value {
            Value::String(text) => text.parse().ok(),
            other => other.as_f64(),
        }))
    }
}
