//! `ttft`: what a cached context is worth. Measures the time to the first token with and
//! without it, on the user's own server.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use contextpilot_client::Error;
use serde_json::json;

use super::connect::{ControlAt, hook_says};
use super::engine::{ServerAt, no_hook, server_says};
use super::show::{count, print, print_json};
use crate::say::say;

mod bindings;
mod contexts;
mod figures;
mod hook;
mod plot;
mod progress;
mod trial;

use contexts::Contexts;
use figures::Summary;
use hook::Hook;
use progress::Progress;
use trial::{Experiment, Trial};

/// Measure the time to the first token with a cached context and without
///
/// Each trial warms the server with two fresh contexts, [A, B], then asks a
/// question behind [A, B], whose KV is cached (hit), and behind [B] alone,
/// where nothing can be reused, because the prompt no longer begins with A (miss).
/// If a hook listens, it is asked before each hit and after each miss whether the
/// contexts are cached, and the engine shows whether that was right. With a prefix
/// store, the prompt of the hit is asked once more after the miss: what it then takes is
/// shown as "from the store". Writes <OUT>.csv and <OUT>.svg.
///
/// With --python, the same is done through llama-cpp-python, with one sequence in one object, and
/// through a llama-server that this command starts; each with and without a prefix store. "again" is
/// the prompt of the hit, once more after the miss.
#[allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "this is the text of --help"
)]
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama ttft --trials 20 --context-tokens 800 --out /tmp/ttft
  contextpilot-llama ttft --python model.gguf --python-bin ~/venv/bin/python")]
pub(super) struct Options {
    #[command(flatten)]
    server: ServerAt,
    #[command(flatten)]
    control: ControlAt,
    /// How many trials
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    trials: u32,
    /// About how many tokens a context has
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(8..=10_000_000))]
    context_tokens: u32,
    /// Slot to use, if there are several
    #[arg(long, value_name = "ID", default_value_t = 0)]
    slot: u32,
    /// Files to write, without .csv and .svg
    #[arg(long, value_name = "PATH", default_value = "ttft")]
    out: PathBuf,
    /// Compare llama-cpp-python and llama-server with this model, in place of a server that runs
    #[arg(long, value_name = "MODEL", conflicts_with = "slot")]
    python: Option<PathBuf>,
    /// The Python that has llama-cpp-python
    #[arg(
        long,
        value_name = "PYTHON",
        default_value = "python3",
        requires = "python"
    )]
    python_bin: PathBuf,
    /// Print JSON: trials, hit, miss and store {median, p10, p90} in milliseconds (store: null
    /// where no prompt came from a prefix store), ratio, and hook {asked, right} (null without one);
    /// with --python: runs, each with program, version, store, trials, hit, miss and again
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<(), String> {
    if let Some(model) = &options.python {
        return bindings::run(options, model);
    }
    let (server, control) = options.server.clients(&options.control)?;
    let says = |e: Error| server_says(&server, &e);

    let props = server.props().map_err(says)?;
    let slots = props.total_slots;
    if options.slot >= slots.max(1) {
        return Err(says(Error::NoSuchSlot {
            slot: options.slot,
            slots,
        }));
    }
    let contexts = Contexts::new(|text| server.count_tokens(text), options.context_tokens);
    let contexts = contexts.map_err(says)?;
    if let Some(room) = props.n_ctx {
        let needed = contexts.longest_prompt();
        if needed > room {
            return Err(format!(
                "A slot has room for {} tokens, and a prompt has about {}: \
                 take --context-tokens {} or fewer, or start the server with a larger --ctx-size",
                count(room),
                count(needed),
                contexts.that_fit(room)
            ));
        }
    }
    let hook = match control.map(|control| (control.stats(), control)) {
        Some((Ok(_), control)) => Some(Hook::new(control)),
        Some((Err(error), control)) => {
            say(hook_says(&control, &error));
            None
        }
        None => {
            say(no_hook(&server));
            None
        }
    };

    let mut experiment = Experiment {
        server: &server,
        hook,
        contexts,
        // With a single slot, no slot is named.
        slot: (slots > 1).then_some(options.slot),
    };
    let mut trials: Vec<Trial> = Vec::new();
    let progress = Progress::new(options.trials);
    let mut failed = None;
    for number in 1..=options.trials {
        progress.show(trials.last());
        match experiment.trial(number) {
            Ok(trial) => trials.push(trial),
            Err(error) => {
                failed = Some(says(error));
                break;
            }
        }
    }
    progress.clear();
    if trials.is_empty()
        && let Some(why) = failed
    {
        return Err(why);
    }

    write(options, "csv", &figures::csv(&trials))?;
    write(options, "svg", &plot::svg(&trials)?)?;
    let summary = Summary::of(&trials);
    if options.json {
        print_json(&json!({
            "trials": trials,
            "hit": summary.hit,
            "miss": summary.miss,
            "store": summary.store,
            "ratio": summary.ratio(),
            "hook": summary.hook.map(|(asked, right)| json!({"asked": asked, "right": right})),
        }))
    } else {
        print(&figures::text(&trials, &summary))
    }?;
    // What was measured may have taken hours.
    failed.map_or(Ok(()), |why| {
        Err(format!(
            "Of {} trials the first {} are written, the next has failed: {why}",
            options.trials,
            trials.len()
        ))
    })
}

fn write(options: &Options, extension: &str, text: &str) -> Result<(), String> {
    let mut name = options.out.clone().into_os_string();
    name.push(".");
    name.push(extension);
    let path = PathBuf::from(name);
    fs::write(&path, text).map_err(|e| {
        format!(
            "{} cannot be written ({e}): name another place with --out",
            path.display()
        )
    })?;
    Ok(())
}
