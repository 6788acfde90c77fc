//! Does the simulator reuse what the server reuses?
//!
//! *At the recorded setting*: a real server records each trace of the test `exactness`, and more traces
//! in which slots are erased, restored, or chosen for requests that are then refused. If a trace is
//! sequential, recording and simulation must equal the engine's answers for each prompt, to the token.
//!
//! *Several clients at once, or clients that leave*: the share of reused tokens must be right within one
//! percentage point.
//!
//! *At other settings*: recorded traffic of several kinds is played again to servers with other flags.
//! The simulated share must be right within two percentage points.
//!
//! *Advice*: for bad set-ups, the advised flags are tried on the server.
//!
//! ```text
//! cargo test --test simulation [-- NAME...]             NAME: all whose names contain it; -NAME: no such
//! cargo test --test simulation -- --grid [REQUESTS]     also writes docs/simulate.md
//! ```

mod advised;
#[path = "../exactness/cases.rs"]
#[allow(dead_code, reason = "the exactness tests use more of it")]
mod cases;
mod changes;
mod commands;
mod concurrent;
mod elsewhere;
mod file;
#[path = "../exactness/prompts.rs"]
mod prompts;
mod recorded;
mod traffic;

use std::process::ExitCode;

/// Requests of the traffic: for docs/simulate.md, and for a check of some of its points.
const REQUESTS: usize = 300;
const FEW_REQUESTS: usize = 100;

fn main() -> ExitCode {
    let mut grid = false;
    let mut wanted: Vec<String> = Vec::new();
    for argument in std::env::args().skip(1) {
        match &*argument {
            "--grid" => grid = true,
            flag if flag.starts_with("--") => {}
            _ => wanted.push(argument),
        }
    }
    let failed = match grid {
        true => whole_grid(),
        false => {
            let advised = match is_wanted(&wanted, "advice") {
                true => advised::run(),
                false => 0,
            };
            recorded_settings(&wanted)
                + one(&wanted, "the file", file::run)
                + one(
                    &wanted,
                    "slots: restored from another process",
                    changes::unseen,
                )
                + one(&wanted, "the commands", commands::run)
                + one(&wanted, "concurrent clients", concurrent::run)
                + advised
                + some_of_the_grid(&wanted)
        }
    };
    println!("{failed} failed");
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn recorded_settings(wanted: &[String]) -> usize {
    let mut failed = 0;
    for case in cases::all().into_iter().chain(changes::cases()) {
        let name = case.name;
        if !is_wanted(wanted, name) {
            continue;
        }
        match recorded::compare(&case) {
            Ok(recorded::Verdict::Equal(prompts)) => {
                println!("test {name} ... ok ({prompts} prompts)");
            }
            Ok(recorded::Verdict::Close(prompts, engine, simulated)) => {
                let (engine, simulated) = (100.0 * engine, 100.0 * simulated);
                let shares = format!("engine {engine:.1} %, simulated {simulated:.1} %");
                println!("test {name} ... ok ({prompts} prompts in all: {shares})");
            }
            Ok(recorded::Verdict::LeftOut(why)) => println!("test {name} ... left out: {why}"),
            Err(error) => {
                failed += 1;
                println!("test {name} ... FAILED\n  {error}");
            }
        }
    }
    failed
}

fn one(wanted: &[String], name: &str, test: fn() -> contextpilot_testbed::Result<String>) -> usize {
    if !is_wanted(wanted, name) {
        return 0;
    }
    match test() {
        Ok(said) => {
            println!("test {name} ... ok ({said})");
            0
        }
        Err(error) => {
            println!("test {name} ... FAILED\n  {error}");
            1
        }
    }
}

fn is_wanted(wanted: &[String], name: &str) -> bool {
    let (without, with): (Vec<&String>, Vec<&String>) =
        wanted.iter().partition(|part| part.starts_with('-'));
    !without.iter().any(|part| name.contains(&part[1..]))
        && (with.is_empty() || with.iter().any(|part| name.contains(&***part)))
}

/// Checks every eighth point, with less traffic.
fn some_of_the_grid(wanted: &[String]) -> usize {
    if !is_wanted(wanted, "other settings") {
        return 0;
    }
    elsewhere::run(FEW_REQUESTS, 8).map_or_else(
        |error| {
            println!("test other settings ... FAILED\n  {error}");
            1
        },
        |(_, missed)| missed,
    )
}

fn whole_grid() -> usize {
    match elsewhere::run(REQUESTS, 1) {
        Ok((rows, missed)) => {
            write_page(&rows, missed);
            missed
        }
        Err(error) => {
            println!("{error}");
            1
        }
    }
}

fn write_page(rows: &str, missed: usize) {
    let points = rows.lines().count();
    let text = format!(
        "# How right the simulator is\n\n\
         Written by `scripts/simulate`. {REQUESTS} requests of made-up traffic (agents with tools,\n\
         subagents, retrieval, chats) were recorded once for each model, by a server with 3 slots and\n\
         `-c 8192`, its other flags at their defaults, and simulated at the settings below. The same requests were\n\
         then sent to llama-server itself, started with these flags. *Engine* is what it says it has\n\
         reused, of all prompt tokens; *exact* counts prompts of which the simulator said the same, to\n\
         the token. The models are tiny; so is the host cache that is filled.\n\n\
         Missed by more than two points: {missed} of {points}.\n\n\
         | model | `--parallel` | `--cache-ram` | `--slot-prompt-similarity` | `--cache-reuse` | engine | simulated | off | exact |\n\
         |---|---|---|---|---|---|---|---|---|\n{rows}"
    );
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/simulate.md");
    if let Err(error) = std::fs::write(path, text) {
        println!("cannot write {path}: {error}");
    }
}
