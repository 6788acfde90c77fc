//! `ttft`: what a cached context is worth. Measures the time to the first token with and
//! without it, on the user's own server.

use contextpilot_client::Error;
use serde_json::json;

use super::connect::hook_says;
use super::engine::{no_hook, server_says};
use super::show::{count, print_as};
use crate::say::say;

mod bindings;
mod contexts;
mod figures;
mod hook;
mod options;
mod plot;
mod progress;
mod trial;

use contexts::Contexts;
use figures::Summary;
use hook::Hook;
pub(super) use options::TtftOptions;
use progress::Progress;
use trial::{Experiment, Trial};

pub(super) fn run(options: &TtftOptions) -> Result<(), String> {
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
    let contexts =
        Contexts::new(|text| server.count_tokens(text), options.context_tokens).map_err(says)?;
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

    options.write("csv", &figures::csv(&trials))?;
    options.write("svg", &plot::svg(&trials)?)?;
    let summary = Summary::new(&trials);
    let value = json!({
        "trials": trials,
        "hit": summary.hit,
        "miss": summary.miss,
        "store": summary.store,
        "ratio": summary.ratio(),
        "hook": summary.hook.map(|(asked, right)| json!({"asked": asked, "right": right})),
    });
    print_as(options.json, &value, || figures::text(&trials, &summary))?;
    // What was measured may have taken hours.
    failed.map_or(Ok(()), |why| {
        Err(format!(
            "Of {} trials the first {} are written, the next has failed: {why}",
            options.trials,
            trials.len()
        ))
    })
}
