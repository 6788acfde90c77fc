//! `why`: why prompts were evaluated.

use std::collections::HashSet;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use contextpilot_client::Control;
use contextpilot_client::control::{Evaluated, Evaluation, Reason, RequestName, RequestState};
use serde::Serialize;

use super::connect::{ControlAt, hook_says, request};
use super::differs::Differs;
use super::show::{
    Moment, Reader, Visible, count, number, offer_coloured, offer_json, print, print_json,
};
use super::under_way;
use super::words::{NEVER_CACHED, NO_PROMPT};

mod advice;
mod advisers;
mod propose;
mod sentence;

use advice::{Advised, SECONDS};
use advisers::{Advisers, Row, WATCHED};

/// How often `--watch` asks.
const PAUSE: Duration = Duration::from_millis(300);
/// What is said of a name that nothing is known of. `hint`: the hook's, for an id.
pub(super) fn unknown(name: &str, hint: &str) -> String {
    let none = format!("is none of the last {} prompts", count(WATCHED as u64));
    if number(name).is_some() {
        format!("{name}  {none}\n")
    } else if name.parse::<u64>().is_ok() {
        format!("{name}  is no request's id, and #{name} {none}\n")
    } else {
        format!("{}  unknown  {hint}\n", Visible(name))
    }
}

/// Say why a prompt was evaluated again, and what would help
///
/// Each evaluated token has a cause, and the causes add up to the engine's own
/// prompt_n. Requests without an id have a number: #17. Advice was replayed with the last
/// requests (CONTEXTPILOT_RECENT_MB), and helped all of them together. It says how many tokens it
/// would have saved this one, and how much time at the rate of this evaluation: 64 tokens or more,
/// and a twentieth of those that were evaluated. The largest gain comes first.
///
/// Exit code: 0, or 1 if one of the requests is not known.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama why
  contextpilot-llama why req-813
  contextpilot-llama why --last 5
  contextpilot-llama why --watch
  contextpilot-llama why --propose > rules.toml")]
pub(super) struct WhyOptions {
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
    /// Print rules for `up --stabilise` and `gateway --stabilise`: one for each thing
    /// that changed in the last prompts, twice or more, and need not. The server must have
    /// been started with CONTEXTPILOT_EXPLAIN_TEXT=1
    #[arg(long, conflicts_with_all = ["ids", "last", "watch", "json", "worth"])]
    propose: bool,
    /// Give advice that would have saved so many seconds or more
    #[arg(long, value_name = "SECONDS", default_value_t = SECONDS, value_parser = seconds)]
    worth: f64,
    #[command(flatten)]
    control: ControlAt,
    /// Print JSON, one object a line: {"id", "evaluation", "advice"}, with more of it for --last
    /// and --watch, no_advice if nothing helps or nothing could be replayed, and notes if there is more to say
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
    #[serde(flatten)]
    advised: Advised,
}

/// What `--json` prints of one of the last requests.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    evaluated: &'a Evaluated,
    #[serde(flatten)]
    advised: Advised,
}

pub(super) fn run(options: &WhyOptions) -> Result<ExitCode, String> {
    let control = options.control.client()?;
    if options.watch {
        return watch(&control, options);
    }
    if options.propose {
        print(&propose::rules(&Advisers::ask(&control)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let last = options.last.or(options.ids.is_empty().then_some(1));
    let advisers = Advisers::ask(&control)?;
    if let Some(most) = last {
        let stats = control.stats().ok();
        let evaluating: Vec<String> = (stats.iter().filter(|_| !options.json))
            .flat_map(under_way::prompts)
            .map(|prompt| format!("slot {}  {}\n", prompt.0.slot, under_way::line(prompt)))
            .collect();
        if advisers.latest.is_empty() && evaluating.is_empty() && !options.json {
            let says = stats.as_ref().map_or(NO_PROMPT.to_owned(), |stats| {
                under_way::nothing_yet(stats, NO_PROMPT)
            });
            print(&format!("{says}\n"))?;
        }
        let shown = advisers.latest.len().min(most as usize);
        for row in advisers.latest[..shown].iter().rev() {
            if show(row, &advisers, options)? == Reader::Gone {
                return Ok(ExitCode::SUCCESS);
            }
        }
        print(&evaluating.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let stats = control.stats().ok();
    let mut all = true;
    for id in &options.ids {
        let (id, state) = &request(&control, id)?;
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
            let mut latest = advisers.latest.iter();
            if let Some(row) = latest.find(|(evaluated, _)| evaluated.number == number) {
                match show(row, &advisers, options)? {
                    Reader::Gone => break,
                    Reader::There => continue,
                }
            }
        }
        let evaluation = state
            .evaluation()
            .map(|known| advisers.evaluation(id, known));
        all &= evaluation.is_some();
        if options.json {
            let advised =
                evaluation.map(|evaluation| advisers.advised_of(id, evaluation, options.worth));
            print_json(&Named {
                id,
                evaluation,
                advised: advised.unwrap_or_default(),
            })?;
            continue;
        }
        let name = RequestName::Id(id.clone());
        match (evaluation, state) {
            (Some(evaluation), _) => {
                let advised = advisers.advised_of(id, evaluation, options.worth);
                let text = sentence::text(&name, evaluation, &advised);
                if offer_coloured(&text, colour_of(evaluation))? == Reader::Gone {
                    break;
                }
            }
            (None, RequestState::Awaited { .. }) => {
                print(&format!("{}  not evaluated yet\n", Visible(id)))?;
            }
            (None, RequestState::Unknown { hint, .. }) => {
                print(&unknown(id, hint))?;
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
    Ok(ExitCode::from(u8::from(!all)))
}

fn watch(control: &Control, options: &WhyOptions) -> Result<ExitCode, String> {
    let latest = || control.latest(WATCHED).map_err(|e| hook_says(control, &e));
    let key = |evaluated: &Evaluated| (evaluated.number, evaluated.at);
    let mut seen: HashSet<_> = latest()?.requests.iter().map(key).collect();
    loop {
        thread::sleep(PAUSE);
        if latest()?
            .requests
            .iter()
            .all(|evaluated| seen.contains(&key(evaluated)))
        {
            continue;
        }
        let advisers = Advisers::ask(control)?;
        let unseen = advisers.latest.iter().rev();
        for row in unseen.filter(|(evaluated, _)| !seen.contains(&key(evaluated))) {
            if show(row, &advisers, options)? == Reader::Gone {
                return Ok(ExitCode::SUCCESS);
            }
        }
        seen = advisers
            .latest
            .iter()
            .map(|(evaluated, _)| key(evaluated))
            .collect();
    }
}

fn show(row: &Row, advisers: &Advisers, options: &WhyOptions) -> Result<Reader, String> {
    let (evaluated, _) = row;
    let advised = advisers.advised(&evaluated.evaluation, Some(row), options.worth);
    if options.json {
        return offer_json(&Listed { evaluated, advised });
    }
    let name = match &evaluated.id {
        Some(id) => RequestName::Id(id.clone()),
        None => RequestName::Number(evaluated.number),
    };
    let at = Moment::from(evaluated.at).of_day();
    let says = sentence::text(&name, &evaluated.evaluation, &advised);
    let text = format!("{at}  slot {}  {says}", evaluated.slot);
    offer_coloured(&text, colour_of(&evaluated.evaluation))
}

/// The line that says where the prompt left an earlier one has the colour of what kind of difference it is.
fn colour_of(evaluation: &Evaluation) -> impl Fn(&str) -> Option<u8> {
    let diverged = evaluation.diverged.as_ref();
    let colour = diverged.map(|diverged| Differs::from_diverged(diverged).colour());
    move |line| colour.filter(|_| line.trim_start().starts_with(sentence::LEFT))
}
