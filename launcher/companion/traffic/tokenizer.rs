//! Tokens of text: by a server, by a model's file, or by bytes.

use std::path::Path;

use contextpilot_client::{Error, LlamaServer};
use contextpilot_trace::read::Text;
use serde_json::{Value, json};

use crate::companion::demo::running::{Running, bare, temporary_folder};
use crate::{server, variables};

/// Makes tokens of text.
pub(super) enum Tokenizer {
    Server(LlamaServer),
    /// A server that was started for that, and ends with it.
    Started(Box<Running>),
    /// So many bytes are a token: only how much prompts share is right, not how many tokens they have.
    Bytes(usize),
}

/// Bytes of a token, if nothing is known of its tokens.
const BYTES: usize = 4;

impl Tokenizer {
    /// `named`: the URL of a server, the file of a model, or `bytes`.
    pub(super) fn named(named: &str) -> Result<Self, String> {
        if named == "bytes" {
            return Ok(Self::Bytes(BYTES));
        }
        let path = Path::new(named);
        if path.is_file() {
            return Self::of_model(path);
        }
        let server = LlamaServer::new(named).map_err(|e| {
            format!("{named} is neither the URL of a server nor the file of a model ({e})")
        })?;
        server.health().map_err(|e| says(&server, &e))?;
        Ok(Self::Server(server))
    }

    /// The engine itself knows how its models make tokens of text: so a server is started with the file.
    fn of_model(path: &Path) -> Result<Self, String> {
        let found = server::find(variables::of_process).map_err(|e| e.to_string())?;
        let mut command = bare(&found.path);
        command.args(["--parallel", "1", "--ctx-size", "512", "--no-warmup"]);
        let running = Running::spawn(command, path, temporary_folder()?)?;
        Ok(Self::Started(Box::new(running)))
    }

    /// What is used, for people.
    pub(super) fn shown(&self, named: &str) -> String {
        match self {
            Self::Server(_) | Self::Started(..) => {
                format!("the tokenizer and the template of {named}")
            }
            Self::Bytes(bytes) => {
                format!("{bytes} bytes of text as a token: counts of tokens are guesses")
            }
        }
    }

    /// The tokens of a request's prompt.
    pub(super) fn tokens(&self, text: &Text) -> Result<Vec<u64>, String> {
        let server = match self {
            Self::Bytes(bytes) => {
                let tools = text.tools.as_ref().map(Value::to_string);
                let whole = tools.unwrap_or_default() + &text.prompt;
                let words = whole.as_bytes().chunks(*bytes).map(|bytes| {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    u64::from_le_bytes(word)
                });
                return Ok(words.collect());
            }
            Self::Server(server) => server,
            Self::Started(running) => running.client(),
        };
        let prompt = match &text.messages {
            Some(messages) => {
                let mut body = json!({ "messages": messages });
                if let Some(tools) = &text.tools {
                    body["tools"] = tools.clone();
                }
                &server.apply_template(&body).map_err(|e| says(server, &e))?
            }
            None => &text.prompt,
        };
        let tokens = server.tokens(prompt).map_err(|e| says(server, &e))?;
        Ok(tokens.into_iter().map(|token| token as u64).collect())
    }
}

fn says(server: &LlamaServer, error: &Error) -> String {
    format!(
        "The server at {} makes no tokens of text ({error}): check that it is a llama-server and has a model",
        server.address()
    )
}
