//! `reset`: reports all live ids as evicted.

use clap::Args;

use super::connect::{ControlAt, hook_says};
use super::show::{counted, print_as};

/// Report everything that is tracked as evicted, and forget it
///
/// For use after an index was cleared, so that both start from empty. The server's cache
/// stays as it is.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama reset")]
pub(super) struct ResetOptions {
    #[command(flatten)]
    control: ControlAt,
    /// Print JSON: {"evicted": number}
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &ResetOptions) -> Result<(), String> {
    let control = options.control.client()?;
    let reset = control.reset().map_err(|e| hook_says(&control, &e))?;
    print_as(options.json, &reset, || {
        let evicted = counted(reset.evicted, "request");
        format!("{evicted} reported as evicted and forgotten\n")
    })
}
