//! `slots`: what the server says of its slots, next to what the ledger says.

use std::time::Duration;

use clap::{Args, Subcommand, value_parser};
use contextpilot_client::control::{self, ModelState, Stats};
use contextpilot_client::{Control, Error, Health, LlamaServer, Props, ServerSlot};
use serde_json::json;

use super::bounds::MOST_SECONDS;
use super::connect::{ControlAt, hook_says};
use super::engine::{ServerAt, no_hook, server_says};
use super::show::{Visible, bytes, count, counted, print, print_json};
use super::table::Table;
use super::under_way;
use crate::say::say;

/// Show what the server says of its slots, next to what the ledger says
///
/// Asks the server's own /health, /props and /slots, and the hook's ledger, if a
/// hook listens. With save, restore or erase: does that to a slot.
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama slots
  contextpilot-llama slots save 0 tea.bin
  contextpilot-llama slots restore 1 tea.bin --wait 10
  contextpilot-llama slots erase 0")]
pub(super) struct SlotsOptions {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    server: ServerAt,
    #[command(flatten)]
    control: ControlAt,
    /// Print JSON: server {health, props, slots} and hook (null without one)
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Save the content of a slot to a file
    #[command(after_help = "Example:
  contextpilot-llama slots save 0 tea.bin")]
    Save(WithFile),
    /// Fill a slot from a saved file; its previous content is lost
    #[command(after_help = "Example:
  contextpilot-llama slots restore 0 tea.bin")]
    Restore(WithFile),
    /// Empty a slot
    #[command(after_help = "Example:
  contextpilot-llama slots erase 0 --wait 10")]
    Erase(OnSlot),
}

#[derive(Args)]
struct OnSlot {
    /// The slot's id
    slot: u32,
    /// Wait until the slot is idle, at most so long; without this, a busy slot
    /// is an error
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    wait: Option<u64>,
}

#[derive(Args)]
struct WithFile {
    #[command(flatten)]
    on: OnSlot,
    /// A file name without a path: it lies in the folder of --slot-save-path
    file: String,
}

pub(super) fn run(options: &SlotsOptions) -> Result<(), String> {
    let (server, control) = options.server.clients(&options.control)?;
    match &options.action {
        None => show(options, &server, control.as_ref()),
        Some(action) => act(action, &server, options.json)
            .map_err(|e| advice(&e).unwrap_or_else(|| server_says(&server, &e)))
            .and_then(|text| print(&text)),
    }
}

/// A message for an error that the command line can say better.
fn advice(error: &Error) -> Option<String> {
    match error {
        Error::Busy { slot } => Some(format!(
            "Slot {slot} works on a request: try again later, or wait with --wait <seconds>"
        )),
        _ => None,
    }
}

fn act(action: &Action, server: &LlamaServer, json: bool) -> Result<String, Error> {
    let (Action::Save(WithFile { on, .. })
    | Action::Restore(WithFile { on, .. })
    | Action::Erase(on)) = action;
    if let Some(seconds) = on.wait {
        server.wait_idle(on.slot, Duration::from_secs(seconds))?;
    }
    let slot = on.slot;
    let said =
        |value: serde_json::Value, text: String| if json { value.to_string() + "\n" } else { text };
    Ok(match action {
        Action::Save(WithFile { file, .. }) => {
            let done = server.save(slot, file)?;
            let (tokens, size) = (counted(done.tokens, "token"), bytes(done.bytes));
            said(
                json!(done),
                format!("Slot {slot}: {tokens} saved to {file}, {size}\n"),
            )
        }
        Action::Restore(WithFile { file, .. }) => {
            let done = server.restore(slot, file)?;
            let (tokens, size) = (counted(done.tokens, "token"), bytes(done.bytes));
            said(
                json!(done),
                format!("Slot {slot}: {tokens} restored from {file}, {size}\n"),
            )
        }
        Action::Erase(_) => {
            let done = server.erase(slot)?;
            let tokens = counted(done.tokens, "token");
            said(json!(done), format!("Slot {slot}: {tokens} erased\n"))
        }
    })
}

fn show(
    options: &SlotsOptions,
    server: &LlamaServer,
    control: Option<&Control>,
) -> Result<(), String> {
    let says = |e| server_says(server, &e);
    let health = server.health().map_err(says)?;
    let known = control.map(|control| (control, control.stats()));
    let sleeps = matches!(&known, Some((_, Ok(stats))) if stats.model_state == ModelState::Asleep);
    let (props, slots) = match &health {
        Health::Ready => {
            let slots = match (!sleeps).then(|| server.slots()) {
                // The question alone would have the server load its model.
                None => {
                    say("The server sleeps, and is not asked for its slots: that would wake it");
                    None
                }
                // The ledger may still know the slots.
                Some(Err(Error::Disabled { flag })) => {
                    say(format_args!(
                        "The server does not show its slots: start it with {flag}"
                    ));
                    None
                }
                Some(other) => Some(other.map_err(says)?),
            };
            (Some(server.props().map_err(says)?), slots)
        }
        Health::Loading => (None, None),
        Health::Unreachable { why } => {
            let (address, why) = (server.address().to_owned(), why.clone());
            return Err(says(Error::Unreachable { address, why }));
        }
    };
    // Without a hook the server's own slots are all there is to show. Any other error is one.
    let stats = match known {
        None => Err(no_hook(server)),
        Some((_, Ok(stats))) => Ok(stats),
        Some((control, Err(error @ Error::Unreachable { .. }))) => Err(hook_says(control, &error)),
        Some((control, Err(error))) => return Err(hook_says(control, &error)),
    };
    if options.json {
        return print_json(&json!({
            "server": {"health": health, "props": props, "slots": slots},
            "hook": stats.as_ref().ok().map(|stats| &stats.slots),
            "hook_error": stats.as_ref().err(),
        }));
    }
    let mut text = heading(server, &health, props.as_ref());
    match (&stats, control) {
        (Ok(stats), Some(control)) => {
            text += &format!("{}  {}\n", control.address(), super::stats::heading(stats));
        }
        (Ok(_), None) => {}
        (Err(why), _) => say(why),
    }
    if health == Health::Ready && !sleeps {
        text.push('\n');
        text += &table(slots.as_deref(), stats.as_ref().ok());
        for prompt in stats.as_ref().into_iter().flat_map(under_way::prompts) {
            text += &format!("slot {}  {}\n", prompt.0.slot, under_way::line(prompt));
        }
    }
    print(&text)
}

fn heading(server: &LlamaServer, health: &Health, props: Option<&Props>) -> String {
    let health = match health {
        Health::Ready => "ready",
        Health::Loading => "loading its model",
        Health::Unreachable { .. } => "not there",
    };
    let mut text = format!("{}  {health}", server.address());
    if let Some(props) = props {
        for name in [&props.build_info, &props.model_alias]
            .into_iter()
            .flatten()
        {
            text += &format!(", {}", Visible(name));
        }
        let size = props.n_ctx.map(count).unwrap_or("?".to_owned());
        text += &format!(
            ", {} of {size} tokens",
            counted(props.total_slots.into(), "slot")
        );
        if props.is_sleeping == Some(true) {
            text += ", asleep";
        }
    }
    text + "\n"
}

/// Every slot that the server or the ledger knows.
fn table(server: Option<&[ServerSlot]>, stats: Option<&Stats>) -> String {
    let theirs = server.unwrap_or_default();
    let ours = stats.map(|stats| &*stats.slots).unwrap_or_default();
    let mut ids: Vec<i64> = theirs.iter().map(|slot| slot.id.into()).collect();
    ids.extend(ours.iter().map(|slot| i64::from(slot.slot)));
    ids.sort_unstable();
    ids.dedup();

    let mut table = Table::new(
        &[
            "slot",
            "server says",
            "tokens",
            "ledger says",
            "of",
            "bytes",
            "request ids",
        ],
        &[1, 6],
    );
    for id in ids {
        let their = theirs.iter().find(|slot| i64::from(slot.id) == id);
        let our = ours.iter().find(|slot| i64::from(slot.slot) == id);
        let capacity = their
            .and_then(|slot| slot.n_ctx)
            .or(our.and_then(|slot| slot.capacity.map(u64::from)));
        let number = |number: Option<u64>| number.map_or("–".to_owned(), count);
        table.row(vec![
            id.to_string(),
            their.map_or("–".to_owned(), state),
            number(their.and_then(|slot| slot.tokens)),
            number(our.map(|slot| slot.tokens.into())),
            number(capacity),
            our.and_then(|slot| slot.bytes)
                .map_or("–".to_owned(), bytes),
            our.map(requests).unwrap_or_default(),
        ]);
    }
    table.text()
}

fn state(slot: &ServerSlot) -> String {
    match (slot.is_processing, slot.cached, slot.evaluated) {
        (true, Some(cached), Some(evaluated)) => format!(
            "busy, {} cached, {} evaluated",
            count(cached),
            count(evaluated)
        ),
        (true, _, _) => "busy".to_owned(),
        (false, _, _) => "idle".to_owned(),
    }
}

fn requests(slot: &control::Slot) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = slot
        .requests
        .iter()
        .rev()
        .take(SHOWN)
        .map(|id| Visible(id).to_string())
        .collect();
    match slot.requests_total.saturating_sub(shown.len() as u64) {
        0 => shown.join(", "),
        more => format!("{}, {} more", shown.join(", "), count(more)),
    }
}
