//! A client of a llama-server's own endpoints, and the types of its answers.

use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::http::{Http, Patience};
use crate::metrics::Metrics;
use crate::{Completion, Error, Prompt, Result, completion};

/// How often to look at a busy slot.
const LOOK: Duration = Duration::from_millis(20);

/// Whether a server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum Health {
    /// It answers requests.
    Ready,
    /// It runs, and loads its model.
    Loading,
    /// Nothing answers at the address.
    Unreachable {
        /// What the connection ended with.
        why: String,
    },
}

/// What `GET /props` says, as far as it concerns the cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Props {
    /// Number of slots; their ids are 0 to one less.
    #[serde(default)]
    pub total_slots: u32,
    /// Tokens that a slot can hold.
    #[serde(
        default,
        rename(deserialize = "default_generation_settings"),
        deserialize_with = "n_ctx"
    )]
    pub n_ctx: Option<u64>,
    /// The name under which the model is served.
    pub model_alias: Option<String>,
    /// The model's file.
    pub model_path: Option<String>,
    /// Build of llama.cpp, such as `b11669-Debian`.
    pub build_info: Option<String>,
    /// The chat template.
    pub chat_template: Option<String>,
    /// The chat template for requests with tools, if that is another one.
    pub chat_template_tool_use: Option<String>,
    /// The text of the token that a prompt begins with.
    pub bos_token: Option<String>,
    /// The text of the token that ends an answer.
    pub eos_token: Option<String>,
    /// Whether the model was unloaded because the server was idle (`--sleep-idle-seconds`).
    pub is_sleeping: Option<bool>,
}

fn n_ctx<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Value::deserialize(deserializer)?["n_ctx"].as_u64())
}

/// One slot, as `GET /slots` shows it. Fields that the server does not give are `None`: for a slot
/// that was never used it gives only a few.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerSlot {
    /// Its id.
    pub id: u32,
    /// Tokens that it can hold.
    pub n_ctx: Option<u64>,
    /// Whether it works on a request.
    pub is_processing: bool,
    /// The number of the task that it works on, or worked on last.
    pub task: Option<u64>,
    /// Tokens that it holds: the prompt, and what was generated after it.
    pub tokens: Option<u64>,
    /// While it works: tokens of the prompt that had to be evaluated.
    pub evaluated: Option<u64>,
    /// While it works: tokens of the prompt that were cached.
    pub cached: Option<u64>,
    /// While it works: tokens generated so far.
    pub generated: Option<u64>,
}

impl<'de> Deserialize<'de> for ServerSlot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let slot = Value::deserialize(deserializer)?;
        let id = slot["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let number = |name: &str| slot[name].as_u64();
        // In servers of 2026 a list with one element, before that the element itself.
        let next = match &slot["next_token"] {
            Value::Array(list) => list.first(),
            element => Some(element),
        };
        let is_processing = slot["is_processing"] == true;
        // Afterwards they are all 0.
        let now = |number: Option<u64>| number.filter(|_| is_processing);
        Ok(Self {
            id: id.ok_or_else(|| serde::de::Error::missing_field("id"))?,
            n_ctx: number("n_ctx"),
            is_processing,
            task: number("id_task"),
            tokens: number("n_prompt_tokens"),
            evaluated: now(number("n_prompt_tokens_processed")),
            cached: now(number("n_prompt_tokens_cache")),
            generated: now(next.and_then(|next| next["n_decoded"].as_u64())),
        })
    }
}

/// The result of saving a slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Saved {
    /// The slot.
    #[serde(rename = "id_slot")]
    pub slot: u32,
    /// The file, in the folder of `--slot-save-path`.
    #[serde(rename = "filename")]
    pub file: String,
    /// Tokens saved.
    #[serde(rename = "n_saved")]
    pub tokens: u64,
    /// Bytes written.
    #[serde(rename = "n_written")]
    pub bytes: u64,
}

/// The result of restoring a slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Restored {
    /// The slot.
    #[serde(rename = "id_slot")]
    pub slot: u32,
    /// The file, in the folder of `--slot-save-path`.
    #[serde(rename = "filename")]
    pub file: String,
    /// Tokens restored.
    #[serde(rename = "n_restored")]
    pub tokens: u64,
    /// Bytes read.
    #[serde(rename = "n_read")]
    pub bytes: u64,
}

/// The result of erasing a slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Erased {
    /// The slot.
    #[serde(rename = "id_slot")]
    pub slot: u32,
    /// Tokens that it held.
    #[serde(rename = "n_erased")]
    pub tokens: u64,
}

/// A llama-server, by its native endpoints.
///
/// ```no_run
/// # use contextpilot_client::LlamaServer;
/// let server = LlamaServer::new("http://127.0.0.1:8080")?;
/// for slot in server.slots()? {
///     println!("slot {}: {:?} of {:?} tokens", slot.id, slot.tokens, slot.n_ctx);
/// }
/// # Ok::<(), contextpilot_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LlamaServer {
    http: Http,
    quick: Duration,
    slow: Duration,
}

impl LlamaServer {
    /// A client for `http://host:port[/prefix]`, `https://…`, `host:port`, or
    /// `unix:/path` for a server with `--host /path.sock`. Opens no connection.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn new(address: &str) -> Result<Self> {
        Ok(Self {
            http: Http::new(address)?,
            quick: Duration::from_secs(10),
            slow: Duration::from_secs(600),
        })
    }

    /// The key of a server with `--api-key`.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] for a key that no header can carry.
    pub fn with_api_key(mut self, key: &str) -> Result<Self> {
        self.http.authorize(key)?;
        Ok(self)
    }

    /// The time limits of calls that compute nothing (default 10 s), and of those
    /// that do: completions, save and restore (default 10 min).
    #[must_use]
    pub fn with_timeouts(mut self, quick: Duration, slow: Duration) -> Self {
        self.quick = quick;
        self.slow = slow;
        self
    }

    /// The address of the server.
    pub fn address(&self) -> &str {
        self.http.address()
    }

    /// `GET /health`. A server that cannot be reached is an answer too.
    ///
    /// # Errors
    /// Something else than a llama-server answers.
    pub fn health(&self) -> Result<Health> {
        let answer = match self.http.get("/health", Patience::Whole(self.quick)) {
            Ok(answer) => answer,
            Err(Error::Unreachable { why, .. }) => return Ok(Health::Unreachable { why }),
            Err(Error::TimedOut { .. }) => {
                let why = "no answer in time".to_owned();
                return Ok(Health::Unreachable { why });
            }
            Err(error) => return Err(error),
        };
        match answer.success() {
            Ok(_) => Ok(Health::Ready),
            Err(Error::Loading) => Ok(Health::Loading),
            Err(error) => Err(error),
        }
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    /// It takes longer; or as [`LlamaServer::health`].
    pub fn wait_ready(&self, patience: Duration) -> Result<()> {
        let deadline = Instant::now().checked_add(patience);
        loop {
            let health = self.health()?;
            let late = is_over(deadline);
            match health {
                Health::Ready => return Ok(()),
                Health::Loading if late => return Err(Error::Loading),
                Health::Unreachable { why } if late => {
                    let address = self.address().to_owned();
                    return Err(Error::Unreachable { address, why });
                }
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    /// `GET /props`.
    ///
    /// # Errors
    /// Those of the connection, [`Error::Loading`], [`Error::Unauthorized`].
    pub fn props(&self) -> Result<Props> {
        self.http.get("/props", Patience::Whole(self.quick))?.json()
    }

    /// `GET /slots`.
    ///
    /// # Errors
    /// As [`LlamaServer::props`]; [`Error::Disabled`] with `--no-slots`.
    pub fn slots(&self) -> Result<Vec<ServerSlot>> {
        self.http.get("/slots", Patience::Whole(self.quick))?.json()
    }

    /// `GET /metrics`, the server's own.
    ///
    /// # Errors
    /// As [`LlamaServer::props`]; [`Error::Disabled`] without `--metrics`.
    pub fn metrics(&self) -> Result<Metrics> {
        let answer = self.http.get("/metrics", Patience::Whole(self.quick))?;
        Ok(Metrics::parse(&answer.success()?.text()?))
    }

    /// How many tokens a text has, without those that a prompt begins with.
    ///
    /// # Errors
    /// As [`LlamaServer::props`].
    pub fn count_tokens(&self, text: &str) -> Result<usize> {
        let tokens = self.tokenize(&json!({"content": text}))?;
        Ok(tokens.len())
    }

    /// The tokens of a prompt, with those that it begins with.
    ///
    /// # Errors
    /// As [`LlamaServer::props`].
    pub fn tokens(&self, prompt: &str) -> Result<Vec<i64>> {
        let body = json!({"content": prompt, "add_special": true, "parse_special": true});
        let tokens = self.tokenize(&body)?;
        let numbers = tokens.iter().map(Value::as_i64);
        numbers
            .collect::<Option<_>>()
            .ok_or_else(|| self.unexpected("a token in the answer is no number"))
    }

    fn tokenize(&self, body: &Value) -> Result<Vec<Value>> {
        let answer = self
            .http
            .post("/tokenize", body, Patience::Whole(self.quick))?;
        let value: Value = answer.json()?;
        match value["tokens"].as_array() {
            Some(tokens) => Ok(tokens.clone()),
            None => Err(self.unexpected("no tokens in the answer")),
        }
    }

    fn unexpected(&self, why: &str) -> Error {
        Error::Unexpected {
            address: self.address().to_owned(),
            why: why.to_owned(),
        }
    }

    /// `POST /apply-template`: the prompt that a chat becomes. `body` is that of a chat request.
    ///
    /// # Errors
    /// As [`LlamaServer::props`]; [`Error::Refused`] for a chat that the template does not take.
    pub fn apply_template(&self, body: &Value) -> Result<String> {
        let answer = self
            .http
            .post("/apply-template", body, Patience::Whole(self.quick))?;
        let mut value: Value = answer.json()?;
        match value["prompt"].take() {
            Value::String(prompt) => Ok(prompt),
            _ => Err(self.unexpected("no prompt in the answer")),
        }
    }

    /// `POST /completion`, streamed, so that the first token is seen when it comes.
    ///
    /// # Errors
    /// As [`LlamaServer::props`]; [`Error::TooLong`].
    pub fn complete(&self, prompt: &Prompt) -> Result<Completion> {
        completion::complete(&self.http, prompt, self.slow)
    }

    /// Posts the body of a request to a path at which the server generates, and waits for its whole answer.
    ///
    /// # Errors
    /// As [`LlamaServer::props`]; [`Error::Refused`].
    pub fn generate(&self, path: &str, body: &Value) -> Result<Value> {
        self.http
            .post(path, body, Patience::Whole(self.slow))?
            .json()
    }

    /// Saves what a slot holds to a file in the server's `--slot-save-path`.
    ///
    /// # Errors
    /// As [`LlamaServer::props`]; [`Error::Disabled`] without
    /// `--slot-save-path`, [`Error::NoSuchSlot`], [`Error::Busy`],
    /// [`Error::FileName`].
    pub fn save(&self, slot: u32, file: &str) -> Result<Saved> {
        self.slot_action(slot, "save", Some(file))
    }

    /// Fills a slot from a saved file.
    ///
    /// # Errors
    /// As [`LlamaServer::save`]; [`Error::NotRestored`], after which the slot
    /// is empty.
    pub fn restore(&self, slot: u32, file: &str) -> Result<Restored> {
        match self.slot_action(slot, "restore", Some(file)) {
            Err(Error::Refused {
                status: 400,
                message,
            }) if message.contains("restore") => Err(Error::NotRestored {
                slot,
                file: file.to_owned(),
            }),
            other => other,
        }
    }

    /// Empties a slot. Servers demand `--slot-save-path` for this as well.
    ///
    /// # Errors
    /// As [`LlamaServer::save`].
    pub fn erase(&self, slot: u32) -> Result<Erased> {
        self.slot_action(slot, "erase", None)
    }

    /// Waits until a slot is idle.
    ///
    /// # Errors
    /// [`Error::Busy`] when it takes longer; as [`LlamaServer::slots`].
    pub fn wait_idle(&self, slot: u32, patience: Duration) -> Result<()> {
        let deadline = Instant::now().checked_add(patience);
        while self.is_busy(slot)? {
            if is_over(deadline) {
                return Err(Error::Busy { slot });
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn is_busy(&self, slot: u32) -> Result<bool> {
        let slots = self.slots()?;
        let found = slots.iter().find(|state| state.id == slot);
        match found {
            Some(found) => Ok(found.is_processing),
            None => Err(Error::NoSuchSlot {
                slot,
                slots: slots.len() as u32,
            }),
        }
    }

    /// Checks that the slot exists and is idle. The server takes the id modulo the number of slots, and
    /// lets actions on a busy slot wait.
    fn slot_action<T: serde::de::DeserializeOwned>(
        &self,
        slot: u32,
        action: &str,
        file: Option<&str>,
    ) -> Result<T> {
        let slots = self.props()?.total_slots;
        if slot >= slots {
            return Err(Error::NoSuchSlot { slot, slots });
        }
        match self.is_busy(slot) {
            Ok(true) => return Err(Error::Busy { slot }),
            // With --no-slots it cannot be told.
            Ok(false) | Err(Error::Disabled { .. }) => {}
            Err(error) => return Err(error),
        }
        let body = match file {
            Some(name) => json!({"filename": name}),
            None => json!({}),
        };
        let path = format!("/slots/{slot}?action={action}");
        let answer = self.http.post(&path, &body, Patience::Whole(self.slow))?;
        answer.json().map_err(|error| match (error, file) {
            (Error::Refused { message, .. }, Some(name)) if message == "Invalid filename" => {
                Error::FileName {
                    name: name.to_owned(),
                }
            }
            (error, _) => error,
        })
    }
}

/// `None`: a moment that the clock cannot say, which never comes.
fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_every_generation_are_read() {
        let unused = r#"{"id":1,"n_ctx":2048,"speculative":false,"is_processing":false}"#;
        let slot: ServerSlot = serde_json::from_str(unused).expect("a slot");
        assert_eq!((slot.id, slot.n_ctx), (1, Some(2048)));
        assert_eq!((slot.tokens, slot.generated), (None, None));
        for next in [r#"[{"n_decoded":7}]"#, r#"{"n_decoded":7}"#] {
            let used = format!(
                r#"{{"id":0,"id_task":-1,"is_processing":true,"n_prompt_tokens":25,
                    "n_prompt_tokens_cache":4,"next_token":{next}}}"#
            );
            let slot: ServerSlot = serde_json::from_str(&used).expect("a slot");
            assert!(slot.is_processing);
            assert_eq!((slot.tokens, slot.cached), (Some(25), Some(4)));
            assert_eq!((slot.generated, slot.task), (Some(7), None));
        }
        assert!(serde_json::from_str::<ServerSlot>(r#"{"n_ctx":1}"#).is_err());
    }

    #[test]
    fn props_without_slots_are_those_of_a_router() {
        let props: Props = serde_json::from_str(r#"{"role":"router"}"#).expect("props");
        assert_eq!((props.total_slots, props.n_ctx), (0, None));
    }
}
