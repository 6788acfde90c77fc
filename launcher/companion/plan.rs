//! `plan`: how many servers some traffic needs.

use std::process::ExitCode;

use clap::Args;
use contextpilot_trace::Future;
use contextpilot_trace::fleet::plan;

use super::limit::gigabytes;
use super::show::counted;
use super::simulate::fleet::{Fleet, Row, Shown, seconds};
use super::traffic::open::Input;
use crate::say::say;

/// Say how many servers some traffic needs
///
/// Plays a trace or a recording on fleets of more and more servers, and names the smallest one with which 95 % of the requests have
/// their first token within a time. Each router and store that is named has a row.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama plan trace.jsonl --p95 5 --route session,load+prefix --store own,shared --model model.gguf")]
pub(super) struct PlanOptions {
    #[command(flatten)]
    input: Input,
    /// The time, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    p95: f64,
    /// More servers are not tried
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    most_servers: u32,
    #[command(flatten)]
    fleet: Fleet,
    /// How large each server's own prefix store may become in 10⁹ bytes [default: without limit]
    #[arg(long, value_name = "GB", value_parser = gigabytes)]
    store_gb: Option<u64>,
    /// How fast a server's own store is read, in 10⁶ bytes a second
    #[arg(long, value_name = "MB", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    store_speed: u64,
    #[command(flatten)]
    shown: Shown,
    /// Print JSON: a list of fleets, as `simulate --json` has them
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &PlanOptions) -> Result<ExitCode, String> {
    let opened = options.input.open()?;
    opened.must_be_whole()?;
    let fleet = &options.fleet;
    let speed = options.store_speed.saturating_mul(1_000_000);
    let given = fleet.given(&opened, options.store_gb, speed)?;
    let trace = &opened.trace;
    let future = Future::new(trace);
    let mut rows = Vec::new();
    for &whose in &fleet.store {
        for &route in &fleet.route {
            let setting = fleet.setting(&given, 1, route, whose);
            match plan(trace, &setting, 0.95, options.p95, options.most_servers) {
                Some((servers, outcome)) => {
                    let setting = fleet.setting(&given, servers, route, whose);
                    rows.push(Row::new(trace, Some(&future), setting, whose, outcome));
                }
                None => say(format!(
                    "With {route}, p95 within {} s takes more than {}: raise --p95, --prompt-rate or --most-servers",
                    options.p95,
                    counted(options.most_servers.into(), "server")
                )),
            }
        }
    }
    if rows.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    options
        .shown
        .show(&opened, &given, &rows, options.json, None)
}
