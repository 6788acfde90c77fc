//! A Python with llama-cpp-python, which runs our program.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use contextpilot_settings::env;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::trial::Measured;
use super::compared::Plan;
use crate::companion::demo::running::bare;
use crate::companion::run::preloaded;
use crate::variables::PRELOAD;

const PROGRAM: &str = include_str!("program.py");

/// Ended when it is dropped.
pub(super) struct Python<'a> {
    named: &'a Path,
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    errors: File,
    /// Of llama-cpp-python.
    pub(super) version: String,
}

#[derive(Deserialize)]
struct Ready {
    version: String,
}

#[derive(Deserialize)]
struct Count {
    tokens: usize,
}

impl<'a> Python<'a> {
    /// Starts it, and waits until the model is loaded. `store`: with the hook, and a store in that folder.
    pub(super) fn start(plan: &'a Plan, store: Option<&Path>) -> Result<Self, String> {
        let (model, python) = (plan.model, plan.python);
        let mut command = bare(python);
        command.args(["-c", PROGRAM]).arg(model);
        command.args([plan.n_ctx.to_string(), plan.threads.to_string()]);
        if let Some(folder) = store {
            let found = which::which(python).unwrap_or_else(|_| python.to_owned());
            let value = preloaded(&found).map_err(|e| e.to_string())?;
            command.env(PRELOAD, value).env(env::ENGINE, "1");
            command.env(env::STORE, folder);
        }
        Self::spawn(python, command)
    }

    fn spawn(named: &'a Path, mut command: Command) -> Result<Self, String> {
        let shown = named.display();
        let no_file =
            |e| format!("No temporary file ({e}): set TMPDIR to a folder that is writable");
        let errors = tempfile::tempfile().map_err(no_file)?;
        let written = errors.try_clone().map_err(no_file)?;
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = pipes.stderr(written).spawn().map_err(|e| {
            format!("{shown} cannot be started ({e}): name a Python with --python-bin")
        })?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let output = output.ok_or("a process without its output")?;
        let mut python = Self {
            named,
            process,
            input,
            output: BufReader::new(output),
            errors,
            version: String::new(),
        };
        python.version = python.answer::<Ready>()?.version;
        Ok(python)
    }

    pub(super) fn count(&mut self, text: &str) -> Result<usize, String> {
        Ok(self.ask::<Count>(&json!({"count": text}))?.tokens)
    }

    pub(super) fn complete(&mut self, prompt: &str) -> Result<Measured, String> {
        self.ask(&json!({"prompt": prompt}))
    }

    fn ask<A: DeserializeOwned>(&mut self, wish: &Value) -> Result<A, String> {
        if let Some(input) = &mut self.input {
            // If it has ended, that is found when its answer is read.
            let _ = writeln!(input, "{wish}");
        }
        self.answer()
    }

    fn answer<A: DeserializeOwned>(&mut self) -> Result<A, String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        let answer = read.ok().filter(|read| *read > 0);
        let answer = answer.and_then(|_| serde_json::from_str(&line).ok());
        answer.ok_or_else(|| {
            let why = match line.trim() {
                "" => self.last_words(),
                other => other.to_owned(),
            };
            let shown = self.named.display();
            format!(
                "{shown} does not work: {why}; install llama-cpp-python, or name another Python with --python-bin"
            )
        })
    }

    /// The last line that it has written to stderr.
    fn last_words(&mut self) -> String {
        let _ = self.process.wait();
        let mut text = Vec::new();
        let _ = self.errors.rewind();
        let _ = self.errors.read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        last.unwrap_or("it ended without a word").trim().to_owned()
    }
}

impl Drop for Python<'_> {
    fn drop(&mut self) {
        // At the end of its input it ends.
        self.input.take();
        let _ = self.process.wait();
    }
}
