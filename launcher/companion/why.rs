//! `why`: why prompts were evaluated.

use std::collections::HashSet;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use contextpilot_client::Control;
use contextpilot_client::control::{
    Evaluated, Evaluation, Reason, RequestName, RequestState, Stats,
};
use serde::Serialize;

use super::connect::{ControlAt, hook_says};
use super::show::{Moment, Reader, Visible, count, number, offer, offer_json, print, print_json};
use super::under_way;
use super::words::NEVER_CACHED;

mod advice;
mod sentence;
mod server;

pub(super) use advice::MOVES;
use advice::{Advice, SECONDS, advice};

/// How often `--watch` asks.
const PAUSE: Duration = Duration::from_millis(300);
/// How far `--watch` looks back each time.
const WATCHED: usize = 1000;

/// Say why a prompt was evaluated again, and what would help
///
/// Each evaluated token has a cause, and the causes add up to the engine's own
/// prompt_n. Requests without an id have a number: #17. Advice says how many tokens it
/// would have saved, and how much time at the rate of this evaluation: 64 tokens or more,
/// and a twentieth of those that were evaluated. The largest gain comes first.
///
/// Exit code: 0, or 1 if one of the requests is not known.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama why
  contextpilot-llama why req-813
  contextpilot-llama why --last 5
  contextpilot-llama why --watch")]
pub(super) struct Options {
    /// Ids, as they stand in rid or request_id of the requests, or numbers as in lists: '#17'.
    /// Without any: the last request
    ids: Vec<String>,
    /// The last requests, with and without ids, the latest last
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "ids"
    )]
    last: Option<u32>,
    /// Every request from now on, until it is stopped
    #[arg(long, conflicts_with_all = ["ids", "last"])]
    watch: bool,
    /// Give advice that would have saved so many seconds or more
    #[arg(long, value_name = "SECONDS", default_value_t = SECONDS, value_parser = seconds)]
    worth: f64,
    #[command(flatten)]
    control: ControlAt,
    /// Print JSON, one object a line: {"id", "evaluation", "advice"}, with more of it for --last
    /// and --watch
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let seconds = number.filter(|number| number.is_finite() && *number >= 0.0);
    seconds.ok_or_else(|| "a time is a number of seconds, 0 or more".to_owned())
}

/// What `--json` prints of a request that was asked for by its id.
#[derive(Serialize)]
struct Named<'a> {
    id: &'a str,
    evaluation: Option<&'a Evaluation>,
    advice: Vec<Advice>,
}

/// What `--json` prints of one of the last requests.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    evaluated: &'a Evaluated,
    advice: Vec<Advice>,
}

pub(super) fn run(options: &Options) -> Result<ExitCode, String> {
    let control = options.control.client()?;
    if options.watch {
        return watch(&control, options);
    }
    let last = options.last.or(options.ids.is_empty().then_some(1));
    if let Some(most) = last {
        let latest = control
            .latest(most as usize)
            .map_err(|e| hook_says(&control, &e))?;
        let stats = control.stats().ok();
        let evaluating: Vec<String> = (stats.iter().filter(|_| !options.json))
            .flat_map(under_way::prompts)
            .map(|(slot, prompt)| format!("slot {}  {}\n", slot.slot, under_way::line(prompt)))
            .collect();
        if latest.requests.is_empty() && evaluating.is_empty() && !options.json {
            print("No prompt was evaluated yet\n")?;
        }
        for one in latest.requests.iter().rev() {
            if show(one, stats.as_ref(), options)? == Reader::Gone {
                return Ok(ExitCode::SUCCESS);
            }
        }
        print(&evaluating.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let stats = control.stats().ok();
    let advise = |evaluation: &Evaluation| advice(evaluation, stats.as_ref(), options.worth);
    let mut all = true;
    for id in &options.ids {
        let state = control.request(id).map_err(|e| hook_says(&control, &e))?;
        if let (Some(prompt), None, false) = (
            stats.as_ref().and_then(|all| under_way::prompt_of(all, id)),
            state.evaluation(),
            options.json,
        ) {
            all = false;
            print(&format!("{}\n", under_way::line(prompt)))?;
            continue;
        }
        let is_known = !matches!(state, RequestState::Unknown { .. });
        let is_numbered = matches!(state, RequestState::Numbered { .. }) || state.id() != id;
        if let (true, Some(number)) = (is_numbered || !is_known, number(id)) {
            let latest = control
                .latest(WATCHED)
                .map_err(|e| hook_says(&control, &e))?;
            match latest.requests.iter().find(|one| one.number == number) {
                Some(one) => match show(one, stats.as_ref(), options)? {
                    Reader::Gone => break,
                    _ => continue,
                },
                None if !options.json && !is_known => {
                    all = false;
                    print(&format!(
                        "{id}  is none of the last {} prompts\n",
                        count(WATCHED as u64)
                    ))?;
                    continue;
                }
                None => {}
            }
        }
        let evaluation = state.evaluation();
        all &= evaluation.is_some();
        if options.json {
            let advice = evaluation.map(advise).unwrap_or_default();
            print_json(&Named {
                id,
                evaluation,
                advice,
            })?;
            continue;
        }
        let name = RequestName::Id(id.clone());
        match (evaluation, &state) {
            (Some(evaluation), _) => {
                print(&sentence::text(&name, evaluation, &advise(evaluation)))?;
            }
            (None, RequestState::Awaited { .. }) => {
                print(&format!("{}  not evaluated yet\n", Visible(id)))?;
            }
            (None, RequestState::Unknown { hint, .. }) => {
                print(&format!("{}  unknown  {hint}\n", Visible(id)))?;
            }
            (
                None,
                RequestState::Evicted {
                    reason: Reason::NeverCached,
                    ..
                },
            ) => print(&format!("{}  {NEVER_CACHED}\n", Visible(id)))?,
            (None, _) => print(&format!(
                "{}  not remembered: the last 10,000 requests are, unless CONTEXTPILOT_EXPLAIN_MB \
                 is 0\n",
                Visible(id)
            ))?,
        }
    }
    Ok(match all {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn watch(control: &Control, options: &Options) -> Result<ExitCode, String> {
    let latest = || control.latest(WATCHED).map_err(|e| hook_says(control, &e));
    let key = |one: &Evaluated| (one.number, one.at);
    let mut seen: HashSet<_> = latest()?.requests.iter().map(key).collect();
    loop {
        thread::sleep(PAUSE);
        let now = latest()?.requests;
        let unseen = now.iter().rev().filter(|one| !seen.contains(&key(one)));
        for one in unseen {
            if show(one, control.stats().ok().as_ref(), options)? == Reader::Gone {
                return Ok(ExitCode::SUCCESS);
            }
        }
        seen = now.iter().map(key).collect();
    }
}

fn show(one: &Evaluated, stats: Option<&Stats>, options: &Options) -> Result<Reader, String> {
    let advice = advice(&one.evaluation, stats, options.worth);
    if options.json {
        return offer_json(&Listed {
            evaluated: one,
            advice,
        });
    }
    let name = match &one.id {
        Some(id) => RequestName::Id(id.clone()),
        None => RequestName::Number(one.number),
    };
    let at = Moment::from(one.at).of_day();
    let text = sentence::text(&name, &one.evaluation, &advice);
    offer(&format!("{at}  slot {}  {text}", one.slot))
}
