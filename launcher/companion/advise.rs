//! `advise`: which flags would have saved the most evaluation.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use contextpilot_client::Control;
use contextpilot_simulate::{Advice, Change, Kind, Point, Setting};
use serde::Serialize;

use super::adviser::{ChangeData, caveat, estimates, spared_by, words};
use super::connect::ControlAt;
use super::recorded::{OfModel, of_router, of_running, of_server, open, open_all};
use super::show::{bytes, count, duration, percent, print_as};
use super::simulate::PointOut;
use super::simulate::many::Simulations;

/// Name the flags that would have saved the most evaluation of recorded traffic
///
/// Tries other flags on the recording of a server that was started with CONTEXTPILOT_TRAFFIC_FILE, and
/// names the one or two changes that gain most, with their cost in memory, or says that nothing
/// would help. Slots, host cache and prefix store are weighed against each other, and what clients can do: leave out
/// id_slot, not erase or restore slots. Also says how much only the client can change, because its prompts differ near
/// their beginning. Without a recording, the last requests of a running server are tried (CONTEXTPILOT_RECENT_MB), as `why` does.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama advise
  contextpilot-llama advise traffic --json | jq '.changes[-1].flags'")]
pub(super) struct AdviseOptions {
    /// The recording [default: the last requests of a running server, see --control; if it keeps none, the recording that it
    /// is making]
    #[arg(value_name = "FILE")]
    traffic: Option<PathBuf>,
    #[command(flatten)]
    control: ControlAt,
    /// Print JSON: recorded (what the engine did), replayed, changes (flags, point) and tokens; of a router's models a list of that, each with its model
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &AdviseOptions) -> Result<(), String> {
    let models = options.traffic.as_deref().map(of_router);
    if let Some(models) = models.filter(|models| !models.is_empty()) {
        return of_models(options, &models);
    }
    let (traffic, recorded) = match &options.traffic {
        Some(path) => open(path)?,
        None => of_server(&options.control)?,
    };
    let advice = Simulations::new(&traffic).advise(&recorded);
    print_as(options.json, &AdviceOut::new(&advice), || text(&advice))
}

/// A router's models: each has a process and a cache of its own.
fn of_models(options: &AdviseOptions, models: &[OfModel]) -> Result<(), String> {
    let mut texts = Vec::new();
    let mut all = Vec::new();
    for (recording, traffic, recorded) in open_all(models)? {
        let advice = Simulations::new(&traffic).advise(&recorded);
        texts.push(format!("{}\n{}", recording.title(), text(&advice)));
        all.push(OfModelOut {
            model: recording.model.clone(),
            advice: AdviceOut::new(&advice),
        });
    }
    print_as(options.json, &all, || texts.join("\n"))
}

/// The same as JSON, of a running server.
pub(super) fn json_of(control: &Control) -> Result<String, String> {
    let (traffic, recorded) = of_running(control)?;
    let advice = Simulations::new(&traffic).advise(&recorded);
    let advice = AdviceOut::new(&advice);
    serde_json::to_string(&advice).map_err(|e| e.to_string())
}

#[derive(Serialize)]
pub(super) struct AdviceOut {
    /// What the engine did.
    recorded: PointOut,
    /// What a replay of the recorded flags does.
    replayed: PointOut,
    changes: Vec<ChangeOut>,
    alone: Vec<ChangeOut>,
    tokens: TokensOut,
}

#[derive(Serialize)]
struct OfModelOut {
    model: String,
    #[serde(flatten)]
    advice: AdviceOut,
}

#[derive(Serialize)]
struct ChangeOut {
    #[serde(flatten)]
    change: ChangeData,
    /// 10⁹ bytes; without a change of it, null.
    store_gb: Option<f64>,
    answers_change: bool,
    point: PointOut,
}

#[derive(Serialize)]
struct TokensOut {
    prefix: u64,
    behind_a_difference: u64,
    not_wanted: u64,
    never_sent: u64,
    differs_at: Option<u32>,
}

impl ChangeOut {
    fn new(change: &Change, recorded: &Setting) -> Self {
        Self {
            change: ChangeData::new(change, recorded),
            answers_change: change.changes_answers(),
            store_gb: change.store_limit.map(|limit| limit as f64 / 1e9),
            point: PointOut::new(&change.point),
        }
    }
}

impl AdviceOut {
    pub(super) fn new(advice: &Advice) -> Self {
        let tokens = &advice.tokens;
        let setting = &advice.recorded.setting;
        let change = |change: &Change| ChangeOut::new(change, setting);
        Self {
            recorded: PointOut::new(&advice.recorded),
            replayed: PointOut::new(&advice.replayed),
            changes: advice.changes.iter().map(change).collect(),
            alone: advice.alone.iter().map(change).collect(),
            tokens: TokensOut {
                prefix: tokens.prefix,
                behind_a_difference: tokens.behind_a_difference,
                not_wanted: tokens.not_wanted,
                never_sent: tokens.never_sent,
                differs_at: tokens.differs_at,
            },
        }
    }
}

fn text(advice: &Advice) -> String {
    let recorded = &advice.recorded;
    let mut text = format!(
        "Now {} of {} prompt tokens are {}; evaluating the others takes {:.1} s.\n",
        percent(Some(recorded.spared_share())),
        count(recorded.prompt_tokens),
        spared_by(recorded),
        recorded.prompt_seconds,
    );
    let estimates = estimates(recorded, &advice.replayed);
    text += &estimates;
    if advice.changes.is_empty() {
        text += if estimates.is_empty() {
            "No flag would have helped.\n"
        } else {
            "No flag is known to help: none brings more than the replay is off.\n"
        };
    }
    for change in &advice.changes {
        text += &change_text(change, recorded);
    }
    let is_said = |change: &&Change| {
        let same = |other: &Change| {
            (&change.flags, change.store_limit) == (&other.flags, other.store_limit)
        };
        change.kind == Kind::Client || !advice.changes.iter().any(same)
    };
    let others: Vec<&Change> = advice.alone.iter().filter(is_said).collect();
    if !others.is_empty() {
        text += if advice.changes.is_empty() {
            "Clients can help:\n"
        } else {
            "By itself, each in place of that:\n"
        };
        text.extend(
            others
                .into_iter()
                .map(|change| change_text(change, recorded)),
        );
    }
    if recorded.context_bytes == 0 {
        text += "The recording does not say how large the KV of a token is, so no prefix store was weighed.\n";
    }
    let all = advice.changes.iter().chain(&advice.alone);
    for (flag, caveat) in all.filter_map(caveat).collect::<BTreeSet<_>>() {
        text += &format!("With {flag}, {caveat}.\n");
    }
    let tokens = &advice.tokens;
    let share = |part: u64| percent(Some(part as f64 / recorded.prompt_tokens.max(1) as f64));
    text += &format!(
        "{} of the tokens repeat the beginning of an earlier request: flags decide over them.\n",
        share(tokens.prefix)
    );
    if tokens.not_wanted > 0 {
        text += &format!(
            "{} were sent before, of embeddings or rerankings: the server reuses nothing for these, whatever its flags.\n",
            share(tokens.not_wanted)
        );
    }
    text += &format!(
        "{} are new; {} were sent before behind something else",
        share(tokens.never_sent),
        share(tokens.behind_a_difference),
    );
    if let Some(at) = tokens.differs_at {
        text += &format!(
            ", mostly from token {} on: `contextpilot-llama why` says what differs there, and what helps",
            count(u64::from(at))
        );
    }
    text += ".\n";
    text
}

/// What a change saves. Empty: no time is known, or less than a millisecond.
fn time_saved(seconds: f64) -> String {
    match seconds {
        0.05.. => format!(", {seconds:.1} s less for prompts"),
        0.0005.. => format!(", {} less for prompts", duration(seconds)),
        _ => String::new(),
    }
}

fn change_text(change: &Change, recorded: &Point) -> String {
    let point = &change.point;
    let more = |now: u64, then: u64| match now.cmp(&then) {
        std::cmp::Ordering::Greater => format!("{} more", bytes(now - then)),
        std::cmp::Ordering::Less => format!("{} less", bytes(then - now)),
        std::cmp::Ordering::Equal => "no more".to_owned(),
    };
    let mut text = format!(
        "{}: {} {}{}; {} host memory, {} for the context",
        words(change, &recorded.setting),
        percent(Some(point.spared_share())),
        spared_by(point),
        time_saved(recorded.prompt_seconds - point.prompt_seconds),
        more(point.host_bytes, recorded.host_bytes),
        more(point.context_bytes, recorded.context_bytes),
    );
    if point.setting.store_limit > 0 {
        text += &format!(
            ", {} on disk, whose copies take {:.1} s",
            more(point.store_bytes, recorded.store_bytes),
            point.store_seconds,
        );
    }
    text + ".\n"
}

#[cfg(test)]
mod tests {
    use super::time_saved;

    #[test]
    fn a_time_is_said_only_if_it_is_saved() {
        let said = [12.34, 0.05, 0.0312, 0.0004, 0.0, -1.6].map(time_saved);
        let expected = [
            ", 12.3 s less for prompts",
            ", 0.1 s less for prompts",
            ", 31 ms less for prompts",
            "",
            "",
            "",
        ];
        assert_eq!(said, expected);
    }
}
