use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Http, Patience};
use crate::metrics::Metrics;
use crate::{Completion, Error, Prompt, Result, completion};

mod types;

pub use types::{Erased, Health, Props, Restored, Saved, Slot};

/// How often to look at a busy slot.
const LOOK: Duration = Duration::from_millis(20);

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
    pub fn slots(&self) -> Result<Vec<Slot>> {
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
