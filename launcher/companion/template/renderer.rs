//! The real server that renders: one of our own with a tiny model that has the template, and the one that was given.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use contextpilot_client::{Error, LlamaServer, Prompt};
use contextpilot_tiny_model::{Arch, Chat, Spec, write_with};
use serde_json::{Value, json};

use super::conversation::tools;
use crate::companion::demo::running::{Running, bare, launcher, temporary_folder};

/// Why there is no prompt.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server does not render this. Its message.
    Refused(String),
    /// No further prompt can be had.
    Broken(String),
}

pub(super) type Rendered<T> = Result<T, Trouble>;

/// `None`: the server refuses it.
pub(super) fn unless_refused<T>(rendered: Rendered<T>) -> Rendered<Option<T>> {
    match rendered {
        Ok(done) => Ok(Some(done)),
        Err(Trouble::Refused(_)) => Ok(None),
        Err(broken) => Err(broken),
    }
}

impl From<Trouble> for String {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused(why) | Trouble::Broken(why) => why,
        }
    }
}

/// The server's program, and what it has.
pub(super) struct Program {
    path: PathBuf,
    /// Whether it must be told not to continue the last message.
    prefills: bool,
    /// A signal that asks us to end. 0: none has come.
    pub(super) signal: Arc<AtomicUsize>,
}

impl Program {
    pub(super) fn new(path: PathBuf, signal: Arc<AtomicUsize>) -> Self {
        let help = bare(&path)
            .arg("--help")
            .env_remove(crate::variables::PRELOAD)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let help = help.map_or_else(|_| Vec::new(), |output| output.stdout);
        let prefills = String::from_utf8_lossy(&help).contains("--no-prefill-assistant");
        Self {
            path,
            prefills,
            signal,
        }
    }

    /// A server with a tiny model that has this template. `days`: days after today in Greenwich.
    pub(super) fn start(&self, chat: &Chat, days: u8) -> Result<Running, String> {
        let mut command = bare(&self.path);
        command
            .args(["--ctx-size", "256"])
            .env_remove(crate::variables::PRELOAD)
            // The server asks for the local time only: in this zone it is so much later.
            .env("TZ", format!("DAY-{}", 24 * u32::from(days)));
        self.with_model(command, chat)
    }

    /// Whether a call that is generated behind `begins` keeps its tokens in a prompt that has it in the template's spelling.
    pub(super) fn keeps_tokens(&self, chat: &Chat, call: &Call) -> Result<bool, String> {
        /// Tokens where a call and what follows it may be joined, and the last one, which was not evaluated.
        const SEAM: u64 = 4;
        let mut command = bare(launcher());
        command
            .args(["--ctx-size", "16384"])
            .env("LLAMA_SERVER_BIN", &self.path)
            .env("CONTEXTPILOT_JOURNAL", "0")
            .env("CONTEXTPILOT_KEEP_TOKENS", "calls");
        let server = self.with_model(command, chat)?;
        let ask = |prompt: Prompt| server.client().complete(&prompt).map_err(|e| e.to_string());
        let said = Prompt::new(&*call.begins)
            .with("grammar", format!("root ::= {}", json!(call.written)))
            .predict(call.written.len() as u32 + 1);
        let said = ask(said)?;
        let next = ask(Prompt::new(&*call.next).predict(1))?;
        let held = said.prompt_tokens + said.timings.generated;
        Ok(said.content == call.written && next.timings.cached + SEAM >= held)
    }

    fn with_model(&self, mut command: Command, chat: &Chat) -> Result<Running, String> {
        let folder = temporary_folder()?;
        let model = folder.path().join("tiny.gguf");
        write_with(&model, &Spec::new(Arch::Llama), chat)
            .map_err(|e| format!("{} cannot be written: {e}", model.display()))?;
        command
            .args(["--jinja", "--parallel", "1"])
            .args(["--threads", "1", "--no-warmup"]);
        if self.prefills {
            command.arg("--no-prefill-assistant");
        }
        let running = Running::spawn(command, &model, folder)?;
        // Another program may have taken the port.
        let props = running.client().props().map_err(|e| e.to_string())?;
        match props.model_path.as_deref().map(Path::new) {
            Some(path) if path != model => Err(format!(
                "Another server listens at port {}: start this again",
                running.port
            )),
            _ => Ok(running),
        }
    }
}

/// A call as a model writes it.
#[derive(Debug)]
pub(super) struct Call {
    /// The prompt, up to the arguments.
    pub(super) begins: String,
    pub(super) written: String,
    /// The next prompt, which has it in the template's spelling.
    pub(super) next: String,
}

/// Renders chats, with these parameters of the template.
#[derive(Clone)]
pub(super) struct Renderer<'a> {
    pub(super) own: &'a LlamaServer,
    /// The server that was given. Its prompts count.
    pub(super) given: Option<&'a LlamaServer>,
    pub(super) signal: &'a AtomicUsize,
    /// `chat_template_kwargs`.
    pub(super) kwargs: Value,
    /// Other fields of the request.
    pub(super) fields: Value,
}

impl Renderer<'_> {
    pub(super) fn with_kwargs(&self, kwargs: Value) -> Self {
        Self {
            kwargs,
            ..self.clone()
        }
    }

    /// The prompt that is evaluated.
    pub(super) fn prompt(&self, messages: &[Value], tools: bool) -> Rendered<String> {
        self.render(self.given.unwrap_or(self.own), messages, tools, true)
    }

    /// What our own server makes of it; another than the prompt only if a server was given.
    pub(super) fn own_prompt(&self, messages: &[Value], tools: bool) -> Rendered<Option<String>> {
        match self.given {
            None => Ok(None),
            Some(_) => self.render(self.own, messages, tools, true).map(Some),
        }
    }

    /// The conversation up to what was said last, without the beginning of a further message.
    pub(super) fn history(&self, messages: &[Value], tools: bool) -> Rendered<String> {
        self.render(self.own, messages, tools, false)
    }

    fn render(
        &self,
        server: &LlamaServer,
        messages: &[Value],
        with_tools: bool,
        goes_on: bool,
    ) -> Rendered<String> {
        if self.signal.load(Ordering::Relaxed) != 0 {
            return Err(Trouble::Broken("ended by a signal".to_owned()));
        }
        let mut body = json!({"messages": messages, "add_generation_prompt": goes_on});
        if with_tools {
            body["tools"] = tools();
        }
        if self
            .kwargs
            .as_object()
            .is_some_and(|given| !given.is_empty())
        {
            body["chat_template_kwargs"] = self.kwargs.clone();
        }
        for (name, value) in self.fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        server.apply_template(&body).map_err(|error| match error {
            Error::Refused { message, .. } | Error::TooLong { message } => {
                Trouble::Refused(message)
            }
            other => Trouble::Broken(other.to_string()),
        })
    }
}
