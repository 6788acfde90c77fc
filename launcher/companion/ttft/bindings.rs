//! `ttft --python`: the same experiment through the Python bindings, with one sequence in one object, and through
//! a llama-server with the same model, each with and without the prefix store.

use std::path::Path;
use std::thread::available_parallelism;

use super::contexts::Contexts;
use super::options::TtftOptions;
use super::trial::Measured;
use crate::companion::demo::running::temporary_folder;
use crate::companion::show::print_as;
use crate::say::say;
use crate::server;
use crate::variables::of_process;

mod compared;
mod python;
mod server_run;
mod show;

use compared::{Plan, Run, Trial};
use python::Python;
use server_run::OwnServer;

/// Two contexts, which no other trial has.
type Pair = [String; 2];

pub(super) fn run(options: &TtftOptions, model: &Path) -> Result<(), String> {
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

    options.write("csv", &show::csv(&runs))?;
    options.write("svg", &show::svg(&runs)?)?;
    let value = serde_json::json!({
        "context_tokens": options.context_tokens,
        "threads": threads,
        "runs": runs,
    });
    print_as(options.json, &value, || show::text(&runs))
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
