//! `events`: prints changes of the cache as they happen.

use std::io::{self, IsTerminal};

use clap::Args;
use contextpilot_client::Update;
use contextpilot_client::control::{Change, Missed, Reason, ResidencyEvent};

use super::connect::{ControlAt, hook_says};
use super::show::{Moment, Reader, Visible, counted, offer, offer_json};
use super::words::{NEVER_CACHED, evicted};
use crate::say::say;

/// Print what is cached, moved and evicted, as it happens
///
/// Of requests with an id (rid or request_id); those without have none to report, and `why --watch` shows them.
/// Goes on until the server ends, or its output is closed.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama events --json | jq -r 'select(.change == \"evicted\").id'")]
pub(super) struct EventsOptions {
    #[command(flatten)]
    control: ControlAt,
    /// End after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print JSON, one object a line; what was missed as {"missed": number}
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &EventsOptions) -> Result<(), String> {
    let control = options.control.client()?;
    let failed = |error| hook_says(&control, &error);
    let events = control.events(None).map_err(failed)?;
    if io::stderr().is_terminal() {
        say(format_args!("Listening to {}", control.address()));
    }
    let mut left = options.count.unwrap_or(u64::MAX);
    for update in events {
        let update = update.map_err(failed)?;
        let reader = match (&update, options.json) {
            (Update::Event(event), true) => offer_json(event)?,
            (Update::Event(event), false) => offer(&line(event))?,
            (Update::Missed(missed), true) => offer_json(missed)?,
            (Update::Missed(missed), false) => {
                say(gap(missed));
                Reader::There
            }
        };
        left = left.saturating_sub(u64::from(matches!(update, Update::Event(_))));
        if left == 0 || reader == Reader::Gone {
            return Ok(());
        }
    }
    Err(format!(
        "The stream of {} has ended: the server has stopped, or is being started again",
        control.address()
    ))
}

/// The text for missed events.
pub(super) fn gap(missed: &Missed) -> String {
    match missed.missed {
        Some(number) => format!(
            "{} did not arrive: this came too slow",
            counted(number, "event")
        ),
        None => "The server was started again: its cache was empty".to_owned(),
    }
}

fn line(event: &ResidencyEvent) -> String {
    let time = Moment::from(event.at).of_day();
    format!("{time}  {}\n", change(&event.change))
}

/// An event in words.
pub(super) fn change(change: &Change) -> String {
    let several = |ids: &[String]| match ids {
        [] => "no request".to_owned(),
        [id] => Visible(id).to_string(),
        [id, rest @ ..] => format!("{} and {} more", Visible(id), rest.len()),
    };
    let n = |tokens: &u32| counted((*tokens).into(), "token");
    match change {
        Change::Cached { id, slot, tokens } => {
            format!("cached    {}  in slot {slot}, {}", Visible(id), n(tokens))
        }
        Change::MovedToHost {
            ids, slot, tokens, ..
        } => format!(
            "to host   {}  from slot {slot}, {}",
            several(ids),
            n(tokens)
        ),
        Change::Restored { ids, slot, tokens } => {
            format!("restored  {}  to slot {slot}, {}", several(ids), n(tokens))
        }
        Change::Evicted {
            id,
            reason: Reason::NeverCached,
            ..
        } => format!("refused   {}  {NEVER_CACHED}", Visible(id)),
        Change::Evicted {
            id,
            reason,
            from,
            by,
        } => {
            let why = evicted(*reason, by.as_deref(), from);
            format!("evicted   {}  {why}", Visible(id))
        }
        Change::Other => "something that this version does not know".to_owned(),
    }
}
