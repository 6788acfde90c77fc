//! `reset`: reports all live ids as evicted.

use clap::Args;
use contextpilot_client::control::Stats;

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
    let told = control.stats().ok().map(|stats| Told::by(&stats));
    print_as(options.json, &reset, || done(reset.evicted, told))
}

/// Who hears of evictions.
#[derive(Clone, Copy)]
enum Told {
    /// The index, by reports.
    Index,
    /// The index in front of the server, which asks.
    InFront,
    NoIndex,
}

impl Told {
    fn by(stats: &Stats) -> Self {
        match (&stats.delivery, &stats.index_in_front) {
            (Some(_), _) => Self::Index,
            (None, Some(_)) => Self::InFront,
            (None, None) => Self::NoIndex,
        }
    }
}

/// What was done. `told`: `None` if that is not known.
fn done(evicted: u64, told: Option<Told>) -> String {
    let requests = counted(evicted, "request");
    let who = match told {
        Some(Told::Index) => "; the index is told that they are evicted",
        Some(Told::InFront) => "; the index in front asks what is cached, and hears it then",
        Some(Told::NoIndex) => "; no index is told (CONTEXTPILOT_INDEX_URL is not set)",
        None => "",
    };
    format!("{requests} forgotten{who}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_index_that_there_is_counts_as_told() {
        let alone = "4 requests forgotten; no index is told (CONTEXTPILOT_INDEX_URL is not set)\n";
        assert_eq!(done(4, Some(Told::NoIndex)), alone);
        let told = "1 request forgotten; the index is told that they are evicted\n";
        assert_eq!(done(1, Some(Told::Index)), told);
        assert_eq!(done(0, None), "0 requests forgotten\n");
    }
}
