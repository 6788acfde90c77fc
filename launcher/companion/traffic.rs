//! `traffic`: published traces and recordings, as each other, and what a cache of any size would reuse of them.

use std::process::ExitCode;

use clap::{Args, Subcommand};

pub(super) mod curve;
mod export;
pub(super) mod import;
pub(super) mod known;
mod lines;
mod model;
pub(super) mod open;
mod tokenizer;

/// Read traces that others publish, and say what could be reused of them
///
/// Formats are recognised: Mooncake, Qwen-Bailian, WEKA's and LMCache's agents, logs of requests to OpenAI's API (JSON, a request
/// or a session in each line, plain or gzip), and recordings (CONTEXTPILOT_TRAFFIC_FILE).
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama traffic import conversation_trace.jsonl")]
pub(super) struct TrafficOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Import(import::ImportOptions),
    Export(export::ExportOptions),
    Curve(Box<curve::CurveOptions>),
}

pub(super) fn run(options: &TrafficOptions) -> Result<ExitCode, String> {
    let done = |result: Result<(), String>| result.map(|()| ExitCode::SUCCESS);
    match &options.command {
        Command::Import(options) => done(import::run(options)),
        Command::Export(options) => done(export::run(options)),
        Command::Curve(options) => curve::run(options),
    }
}
