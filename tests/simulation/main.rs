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
//! *Chats* in which a client sends a model its own answers again must be right to the token, with the tiny
//! model, and within 0.2 percentage points with a real one.
//!
//! *Advice*: for bad set-ups, the advised flags are tried on the server.
//!
//! ```text
//! cargo test --test simulation [-- NAME...]             NAME: all whose names contain it; -NAME: no such
//! cargo test --test simulation -- --grid                writes the table of settings into docs/simulate.md
//! cargo test --test simulation -- --chats               writes the table of chats, with a real model
//! ```

mod advised;
#[path = "../exactness/cases.rs"]
#[allow(dead_code, reason = "the exactness tests use more of it")]
mod cases;
mod changes;
mod chats;
mod client;
mod commands;
mod concurrent;
mod elsewhere;
mod file;
mod page;
#[path = "../exactness/prompts.rs"]
mod prompts;
mod recorded;
mod traffic;

use std::process::ExitCode;

/// Requests of the traffic: for docs/simulate.md, and for a check of some of its points.
const REQUESTS: usize = 300;
const FEW_REQUESTS: usize = 100;

fn main() -> ExitCode {
    let (mut grid, mut chats) = (false, false);
    let mut wanted: Vec<String> = Vec::new();
    for argument in std::env::args().skip(1) {
        match &*argument {
            "--grid" => grid = true,
            "--chats" => chats = true,
            flag if flag.starts_with("--") => {}
            _ => wanted.push(argument),
        }
    }
    let failed = match (grid, chats) {
        (true, _) => whole_grid(),
        (false, true) => real_chats(),
        (false, false) => {
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
                + one(&wanted, "chats of the model's own answers", chats::tiny)
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
            page::write_grid(&rows, missed, REQUESTS);
            missed
        }
        Err(error) => {
            println!("{error}");
            1
        }
    }
}

fn real_chats() -> usize {
    match chats::real() {
        Ok(Some((rows, missed))) => {
            page::write_chats(&rows, missed);
            missed
        }
        Ok(None) => 0,
        Err(error) => {
            println!("{error}");
            1
        }
    }
}
