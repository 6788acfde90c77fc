//! What the ledger costs at its largest, 256 sequences of 131,072 tokens and 100,000 live ids, and
//! how that grows.
//!
//!     cargo bench -p contextpilot-residency [-- [--quick] [--figures FILE] [--accounts]]
//!
//! The targets, on one core: 20 million appended tokens a second, 99 of 100 events
//! within 5 µs, 12 bytes a distinct token. Only [`Ledger::apply`] is timed; the
//! events are made up before. An *event* here is what the hook sends while the
//! server generates: one token of one slot, one removal, one copy of a slot.
//! Batches of many tokens are counted by the token.
//!
//! `--accounts` only measures what it takes to say why prompts were evaluated. `--quick` only checks that everything runs. `--figures` writes the main results to a file for
//! `scripts/bench`, one a line, fields separated by tabs.
//!
//! [`Ledger::apply`]: contextpilot_residency::Ledger::apply

mod accounts;
mod bench;
mod events;
mod growth;
mod large;

use std::path::PathBuf;

/// How much is measured, and where to write it.
struct Plan {
    /// Measures a small part, to see that everything runs.
    quick: bool,
    figures: Option<PathBuf>,
    lines: String,
}

impl Plan {
    fn of_arguments() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let place = arguments
            .iter()
            .position(|argument| argument == "--figures");
        Self {
            quick: arguments.iter().any(|argument| argument == "--quick"),
            figures: place
                .and_then(|place| arguments.get(place + 1))
                .map(PathBuf::from),
            lines: String::new(),
        }
    }

    /// This many, or a hundredth with `--quick`.
    fn size(&self, full: i32) -> i32 {
        if self.quick { full / 100 } else { full }
    }

    /// Adds a main result.
    fn figure(&mut self, name: &str, value: impl std::fmt::Display) {
        self.lines.push_str(&format!("{name}\t{value}\n"));
    }
}

fn main() {
    let mut plan = Plan::of_arguments();
    if std::env::args().any(|argument| argument == "--accounts") {
        return accounts::explained(&mut plan);
    }
    println!(
        "one core; {} sequences of {} tokens\n",
        bench::SEQUENCES,
        bench::CONTEXT
    );
    large::prompts(&mut plan);
    let mut bench = large::conversations(&mut plan);
    large::generation(&mut bench, &mut plan);
    events::single(&mut bench, &mut plan);
    drop(bench);
    events::evictions(&mut plan);
    growth::grow(&mut plan);
    accounts::explained(&mut plan);
    if let Some(file) = &plan.figures {
        std::fs::write(file, &plan.lines).expect("the figures can be written");
    }
}
