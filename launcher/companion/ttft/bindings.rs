//! `ttft --python`: the same experiment through the Python bindings, with one sequence in one object, and through
//! a llama-server with the same model, each with and without the prefix store.

use std::path::Path;
use std::thread::available_parallelism;

use serde::Serialize;

use super::contexts::Contexts;
use super::figures::Spread;
use super::trial::Measured;
use super::{Options, write};
use crate::companion::demo::temporary_folder;
use crate::companion::show::{print, print_json};
use crate::say::say;
use crate::server;
use crate::variables::of_process;

mod python;
mod server_run;
mod show;

use python::Python;
use server_run::OwnServer;

/// What is the same for all.
struct Plan<'a> {
    model: &'a Path,
    python: &'a Path,
    /// Room for the longest prompt, in tokens.
    n_ctx: u32,
    threads: usize,
}

/// Two contexts, which no other trial has.
type Pair = [String; 2];

/// One of the programs that are compared.
#[derive(Serialize)]
struct Run {
    /// `llama-cpp-python` or `llama-server`.
    program: &'static str,
    /// Of llama-cpp-python.
    version: Option<String>,
    /// With the hook, and a prefix store that was empty.
    store: bool,
    trials: Vec<Trial>,
    #[serde(flatten)]
    summary: Summary,
}

#[derive(Serialize)]
struct Trial {
    number: u32,
    /// [A, B] and a question, after [A, B].
    hit: Measured,
    /// [B] and the question.
    miss: Measured,
    /// The prompt of the hit once more.
    again: Measured,
}

#[derive(Serialize)]
struct Summary {
    hit: Spread,
    miss: Spread,
    again: Spread,
}

pub(super) fn run(options: &Options, model: &Path) -> Result<(), String> {
    if !model.is_file() {
        let shown = model.display();
        return Err(format!(
            "There is no model at {shown}: give the path of a .gguf file"
        ));
    }
    let threads = available_parallelism().map_or(1, |threads| threads.get());
    let plan = Plan {
        model,
        python: &options.python_bin,
        n_ctx: options.context_tokens.saturating_mul(3).saturating_add(256),
        threads,
    };
    let mut runs = Vec::new();
    let mut pairs = Vec::new();
    for store in [false, true] {
        let folder = store.then(temporary_folder).transpose()?;
        let mut python = Python::start(&plan, folder.as_ref().map(tempfile::TempDir::path))?;
        if pairs.is_empty() {
            let mut contexts = Contexts::new(|text| python.count(text), options.context_tokens)?;
            let pair = |_| [contexts.next(), contexts.next()];
            pairs = (0..options.trials).map(pair).collect();
        }
        let trials = trials(&pairs, |prompt| python.complete(prompt))?;
        let version = Some(python.version.clone());
        runs.push(Run::new("llama-cpp-python", version, store, trials));
    }
    match server::find(of_process) {
        Ok(server) => runs.extend(server_runs(&plan, &server.path, &pairs)?),
        Err(error) => say(format_args!("There is no server to compare with: {error}")),
    }

    write(options, "csv", &show::csv(&runs))?;
    write(options, "svg", &show::svg(&runs)?)?;
    if options.json {
        print_json(&serde_json::json!({
            "context_tokens": options.context_tokens,
            "threads": threads,
            "runs": runs,
        }))
    } else {
        print(&show::text(&runs))
    }
}

fn server_runs(plan: &Plan, path: &Path, pairs: &[Pair]) -> Result<Vec<Run>, String> {
    let run = |store: bool| {
        let folder = store.then(temporary_folder).transpose()?;
        let mut server =
            OwnServer::start(plan, path, folder.as_ref().map(tempfile::TempDir::path))?;
        let trials = trials(pairs, |prompt| server.complete(prompt))?;
        Ok(Run::new("llama-server", None, store, trials))
    };
    [false, true].into_iter().map(run).collect()
}

fn trials(
    pairs: &[Pair],
    mut complete: impl FnMut(&str) -> Result<Measured, String>,
) -> Result<Vec<Trial>, String> {
    let mut trials = Vec::new();
    for (number, [a, b]) in (1..).zip(pairs) {
        let both = Contexts::ask(&[a, b]);
        complete(&format!("{a}{b}"))?;
        trials.push(Trial {
            number,
            hit: complete(&both)?,
            miss: complete(&Contexts::ask(&[b]))?,
            again: complete(&both)?,
        });
    }
    Ok(trials)
}

impl Run {
    fn new(
        program: &'static str,
        version: Option<String>,
        store: bool,
        trials: Vec<Trial>,
    ) -> Self {
        let of = |which: fn(&Trial) -> &Measured| {
            Spread::of(trials.iter().map(|trial| which(trial).first_token_ms))
        };
        Self {
            program,
            version,
            store,
            summary: Summary {
                hit: of(|trial| &trial.hit),
                miss: of(|trial| &trial.miss),
                again: of(|trial| &trial.again),
            },
            trials,
        }
    }

    fn name(&self) -> String {
        let mut name = self.program.to_owned();
        if let Some(version) = &self.version {
            name = format!("{name} {version}");
        }
        if self.store {
            name += ", prefix store";
        }
        name
    }
}
