//! `traffic import`: what a trace is, and what could be reused of it with room for everything.

use std::path::PathBuf;

use clap::Args;
use contextpilot_trace::{Reuse, Trace, ceiling, warm_up};
use serde::Serialize;

use super::curve::Shares;
use super::export::write_file;
use super::open::{Input, Opened};
use crate::companion::show::{count, counted, print, print_json};

/// Say what a trace is, and what could be reused of it at best
///
/// The ceiling is what a cache without bounds would reuse: from cold, and with the first half of the requests as warm-up, which
/// other tools have without saying it.
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama traffic import conversation_trace.jsonl.gz
  contextpilot-llama traffic import --tokenizer model.gguf requests.jsonl --out trace.jsonl
  xz -dc trace.jsonl.xz | contextpilot-llama traffic import -")]
pub(super) struct ImportOptions {
    #[command(flatten)]
    input: Input,
    /// Write it in Mooncake's format, with its blocks' size and its sessions
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON: format, requests, sessions, tokens, blocks, cold and warm (each with tokens and blocks as shares)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Out<'a> {
    format: &'a str,
    block_size: u32,
    requests: usize,
    sessions: u32,
    has_sessions: bool,
    tokens: u64,
    blocks: u64,
    unique_blocks: u64,
    sampled: f64,
    cold: Shares,
    warm: Shares,
    warm_up_requests: usize,
    left_out: &'a [String],
    notes: &'a [String],
}

pub(super) fn run(options: &ImportOptions) -> Result<(), String> {
    let opened = options.input.open()?;
    let trace = &opened.trace;
    if let Some(path) = &options.out {
        opened.must_be_whole()?;
        write_file(trace, path)?;
    }
    let (cold, warm, half) = ceilings(trace);
    if options.json {
        return print_json(&Out {
            format: &opened.format,
            block_size: trace.block,
            requests: trace.requests.len(),
            sessions: trace.sessions,
            has_sessions: trace.has_sessions,
            tokens: cold.tokens,
            blocks: cold.blocks,
            unique_blocks: trace.tree.blocks(),
            sampled: trace.rate,
            cold: Shares::new(&cold),
            warm: Shares::new(&warm),
            warm_up_requests: half,
            left_out: &opened.left_out,
            notes: &opened.notes,
        });
    }
    print(&summary(&opened))
}

/// What there is to reuse from cold, and with the first half of the requests as warm-up; and how many these are.
fn ceilings(trace: &Trace) -> (Reuse, Reuse, usize) {
    let half = warm_up(0.5, trace.requests.len());
    (ceiling(trace, 0), ceiling(trace, half), half)
}

/// A row for each thing that is known of a trace, with its ceilings.
pub(in crate::companion) fn summary(opened: &Opened) -> String {
    let trace = &opened.trace;
    let (cold, warm, half) = ceilings(trace);
    let share = |reuse: &Reuse| {
        format!(
            "{:.2} % of tokens, {:.2} % of blocks",
            100.0 * reuse.of_tokens(),
            100.0 * reuse.of_blocks()
        )
    };
    let by = if trace.has_sessions {
        "as the trace says"
    } else {
        "by which prompts go on with which: the trace does not say it"
    };
    let mut rows = vec![
        ("format", opened.format.clone()),
        ("requests", count(trace.requests.len() as u64)),
        (
            "sessions",
            format!("{}, {by}", count(trace.sessions.into())),
        ),
        ("prompt tokens", count(cold.tokens)),
        (
            "blocks",
            format!(
                "{} of {}, {} of them different",
                count(cold.blocks),
                counted(trace.block.into(), "token"),
                count(trace.tree.blocks())
            ),
        ),
        ("ceiling, from cold", share(&cold)),
        (
            "ceiling, warmed up",
            format!(
                "{} (the first {} not counted)",
                share(&warm),
                counted(half as u64, "request")
            ),
        ),
    ];
    let left_out = if opened.left_out.is_empty() {
        "nothing".to_owned()
    } else {
        opened.left_out.join(", ")
    };
    rows.push(("left out", left_out));
    rows.extend(opened.notes.iter().map(|note| ("note", note.clone())));
    if trace.rate < 1.0 {
        let sampled = format!("{} of the blocks: all figures are estimates", trace.rate);
        rows.push(("sampled", sampled));
    }
    let lines = rows
        .iter()
        .map(|(name, value)| format!("{name:<20}{value}\n"));
    lines.collect()
}
