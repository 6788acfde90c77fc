use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::one_line;
use crate::http::{Http, Patience};
use crate::{Error, Result, answer, sse};

/// What to complete.
///
/// ```
/// use contextpilot_client::Prompt;
///
/// let prompt = Prompt::new("Tell me about tea.").id("req-1").slot(0).predict(32);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    body: Map<String, Value>,
}

impl Prompt {
    /// A prompt as text (or an array of tokens), with eight tokens of answer and temperature 0.
    pub fn new(text: impl Into<Value>) -> Self {
        let body = json!({
            "prompt": text.into(), "n_predict": 8, "temperature": 0, "cache_prompt": true,
        });
        Self {
            body: match body {
                Value::Object(body) => body,
                _ => Map::new(),
            },
        }
    }

    /// The id of the request, under which its eviction is reported.
    #[must_use]
    pub fn id(self, id: &str) -> Self {
        self.with("rid", id)
    }

    /// The slot to use. llama-server takes the id modulo the
    /// number of slots.
    #[must_use]
    pub fn slot(self, slot: u32) -> Self {
        self.with("id_slot", slot)
    }

    /// How many tokens to generate. llama-server 0.7.0 generates one for 0.
    #[must_use]
    pub fn predict(self, tokens: u32) -> Self {
        self.with("n_predict", tokens)
    }

    /// Any field of the body.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.body.insert(name.to_owned(), value.into());
        self
    }
}

/// The engine's own figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Tokens of the prompt whose KV was there already.
    pub cached: u64,
    /// Tokens of the prompt that were evaluated.
    pub evaluated: u64,
    /// Milliseconds that this took.
    pub prompt_ms: f64,
    /// Tokens generated.
    pub generated: u64,
}

/// A completion, and how long it took for this client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Completion {
    /// The generated text.
    pub content: String,
    /// The slot that worked on it.
    pub slot: Option<u32>,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u64,
    /// What the engine says.
    pub timings: Timings,
    /// From sending the request to the first token.
    pub first_token: Duration,
    /// From sending the request to the last.
    pub total: Duration,
}

pub(crate) fn complete(http: &Http, prompt: &Prompt, patience: Duration) -> Result<Completion> {
    let mut body = prompt.body.clone();
    body.insert("stream".to_owned(), true.into());
    let sent = Instant::now();
    let answer = http
        .post(
            "/completion",
            &Value::Object(body),
            Patience::Whole(patience),
        )?
        .success()?;
    let (stream, address) = answer.reader();
    let mut events = sse::Reader::new(stream);
    let (mut content, mut first_token) = (String::new(), None);
    loop {
        let event = match events.next() {
            Ok(Some(event)) => event,
            Ok(None) => {
                let why = "the answer broke off".to_owned();
                return Err(Error::Unreachable { address, why });
            }
            Err(e) => {
                let why = one_line(&format!("the answer broke off: {e}"));
                return Err(Error::Unreachable { address, why });
            }
        };
        let first_token = *first_token.get_or_insert_with(|| sent.elapsed());
        let said: Value = serde_json::from_str(&event.data).unwrap_or_default();
        if event.name == "error" || !said["error"].is_null() {
            return Err(Error::Refused {
                status: said["error"]["code"].as_u64().unwrap_or(500) as u16,
                message: answer::message(&event.data),
            });
        }
        content.push_str(said["content"].as_str().unwrap_or_default());
        if said["stop"] == true {
            let timings = timings(&said);
            let whole = said["tokens_evaluated"].as_u64();
            let completion = Completion {
                content,
                slot: said["id_slot"].as_u64().map(|slot| slot as u32),
                prompt_tokens: whole.unwrap_or(timings.cached + timings.evaluated),
                timings,
                first_token,
                total: sent.elapsed(),
            };
            // Read to the end, so that the server does not take the client for gone.
            while let Ok(Some(_)) = events.next() {}
            return Ok(completion);
        }
    }
}

fn timings(said: &Value) -> Timings {
    let timings = &said["timings"];
    let number = |name: &str| timings[name].as_u64();
    let milliseconds = |name: &str| timings[name].as_f64().unwrap_or_default();
    let evaluated = number("prompt_n").unwrap_or_default();
    // Servers of 2025 give the length of the prompt, but not how much was cached.
    let whole = said["tokens_evaluated"].as_u64().unwrap_or_default();
    Timings {
        cached: number("cache_n").unwrap_or(whole.saturating_sub(evaluated)),
        evaluated,
        prompt_ms: milliseconds("prompt_ms"),
        generated: number("predicted_n").unwrap_or_default(),
    }
}
