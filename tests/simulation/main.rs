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
//! *Sessions of agents*, more of them than there are slots: the share of tokens that are not evaluated must be right
//! within two percentage points, also with other slots, host caches and prefix stores.
//!
//! *Prefix stores* below models whose cache cannot go back to any position: the same.
//!
//! *Advice*: for bad set-ups, the advised flags are tried on the server.
//!
//! ```text
//! cargo test --test simulation [-- NAME...]             NAME: all whose names contain it; -NAME: no such
//! cargo test --test simulation -- --grid                writes the table of settings into docs/simulate.md
//! cargo test --test simulation -- --chats               writes the table of chats, with a real model
//! cargo test --test simulation -- --sessions [FILE [N]] writes the table of sessions: recorded ones, N requests of each
//! cargo test --test simulation -- --bounded             writes the table of stores below models that cannot go back
//! cargo test --test simulation -- --again [N]           records and plays those with the least room N times
//! ```

mod advised;
mod bounded;
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
mod scenes;
mod sessions;
#[path = "../support/store.rs"]
mod store;
mod traffic;

use std::process::ExitCode;

use contextpilot_testbed::{Error, Result, Tally};

/// Requests of the traffic: for docs/simulate.md, and for a check of some of its points.
const REQUESTS: usize = 300;
const FEW_REQUESTS: usize = 100;

fn main() -> ExitCode {
    let (mut grid, mut chats, mut whole_sessions, mut again) = (false, false, false, false);
    let mut all_bounded = false;
    let mut wanted: Vec<String> = Vec::new();
    for argument in std::env::args().skip(1) {
        match &*argument {
            "--grid" => grid = true,
            "--chats" => chats = true,
            "--sessions" => whole_sessions = true,
            "--again" => again = true,
            "--bounded" => all_bounded = true,
            flag if flag.starts_with("--") => {}
            _ => wanted.push(argument),
        }
    }
    let mut tally = Tally::default();
    match (grid, chats) {
        _ if again => tally.note("sessions again", sessions_again(&wanted)),
        _ if whole_sessions => tally.note("sessions", agents(&wanted)),
        _ if all_bounded => tally.note("stores below bounded caches", whole_bounded()),
        (true, _) => tally.note("the grid", whole_grid()),
        (false, true) => match real_chats() {
            Ok(None) => return ExitCode::SUCCESS,
            Ok(Some(said)) => tally.note("chats", Ok(said)),
            Err(error) => tally.note("chats", Err(error)),
        },
        (false, false) => every_run(&wanted, &mut tally),
    }
    tally.end()
}

type Test = fn() -> Result<String>;

fn every_run(wanted: &[String], tally: &mut Tally) {
    recorded_settings(wanted, tally);
    let tests: [(&str, Test); 16] = [
        ("the file", file::run),
        ("slots: restored from another process", changes::unseen),
        ("embeddings between the questions", changes::embedded),
        ("asleep: with a prefix store", scenes::with_store),
        ("asleep: recorded, and awake", scenes::awake),
        ("requests: shifted elsewhere", scenes::shifted),
        ("requests: little is discarded", scenes::discarded),
        ("recurrent: other batches", scenes::other_batches),
        (
            "room: a small pool, with a prefix store",
            scenes::small_pool_with_store,
        ),
        ("drafts: with a prefix store", scenes::drafting_with_store),
        ("the commands", commands::run),
        ("chats of the model's own answers", chats::tiny),
        ("concurrent clients", concurrent::run),
        ("sessions of agents", sessions::some),
        ("other settings", some_of_the_grid),
        ("stores below bounded caches", some_bounded),
    ];
    for (name, test) in tests {
        if is_wanted(wanted, name) {
            tally.note(name, test());
        }
    }
    if is_wanted(wanted, "advice") {
        advised::run(tally);
    }
}

fn recorded_settings(wanted: &[String], tally: &mut Tally) {
    let all = [cases::all(), changes::cases(), scenes::cases()];
    for case in all.into_iter().flatten() {
        if !is_wanted(wanted, case.name) {
            continue;
        }
        match case.server.lacking() {
            Some(lacking) => tally.skip(case.name, &format!("no {lacking}")),
            None => tally.note(case.name, recorded::compare(&case)),
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
fn some_of_the_grid() -> Result<String> {
    let (rows, missed) = elsewhere::run(FEW_REQUESTS, 8)?;
    verdict(&rows, missed)
}

fn some_bounded() -> Result<String> {
    let (rows, missed) = bounded::run(FEW_REQUESTS / 2)?;
    verdict(&rows, missed)
}

fn whole_bounded() -> Result<String> {
    let (rows, missed) = bounded::run(FEW_REQUESTS)?;
    page::write_bounded(&rows, missed, FEW_REQUESTS);
    verdict(&rows, missed)
}

fn whole_grid() -> Result<String> {
    let (rows, missed) = elsewhere::run(REQUESTS, 1)?;
    page::write_grid(&rows, missed, REQUESTS);
    verdict(&rows, missed)
}

/// `wanted`: how many times.
fn sessions_again(wanted: &[String]) -> Result<String> {
    let rounds = wanted.first().and_then(|rounds| rounds.parse().ok());
    let (rows, missed) = sessions::again(rounds.unwrap_or(5))?;
    verdict(&rows, missed)
}

/// `wanted`: a file of recorded sessions, and how many requests of each are taken.
fn agents(wanted: &[String]) -> Result<String> {
    let file = wanted.first().map(std::path::Path::new);
    let requests = wanted.get(1).and_then(|number| number.parse().ok());
    let (rows, missed, need) = sessions::all(file, requests.unwrap_or(usize::MAX))?;
    page::write_sessions(&rows, missed, &need, file.is_some());
    verdict(&rows, missed)
}

/// `None`: there is no real model here.
fn real_chats() -> Result<Option<String>> {
    let Some((rows, missed)) = chats::real()? else {
        return Ok(None);
    };
    page::write_chats(&rows, missed);
    verdict(&rows, missed).map(Some)
}

/// What a table says: its rows, and how many of them are too far off.
fn verdict(rows: &str, missed: usize) -> Result<String> {
    let rows = rows.lines().count();
    match missed {
        0 if rows > 0 => Ok(format!("{rows} points")),
        _ => Err(Error::new(format!("{missed} of {rows} points missed"))),
    }
}
