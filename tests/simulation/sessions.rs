//! Sessions of agents, more of them than there are slots: at the recorded setting, and with other slots, host caches
//! and prefix stores.

use std::path::Path;
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_simulate::{Replay, Setting, Spread};
use contextpilot_testbed::{Arch, Builder, Error, Model, Need, Result, Server, Sessions};
use contextpilot_traffic::{Traffic, read};

use crate::page;
use crate::recorded::{LAUNCHER, SIGTERM};
use crate::store::await_store;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How far the simulated share of tokens that are not evaluated may be off: from what is simulated, and from what is in other
/// orders of the clients ([`Replay::spread`]).
const TOLERANCE: f64 = 0.02;

/// What a server is started with.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Flags {
    slots: u32,
    cache_ram: i64,
    /// The prefix store's budget, bytes. 0: there is none.
    store: u64,
}

/// A recording, and the settings that are simulated with it.
struct Plan {
    at_a_time: usize,
    recorded: Flags,
    others: Vec<Flags>,
}

fn plans() -> Vec<Plan> {
    const MB: u64 = 1_000_000;
    let flags = |slots, cache_ram, store| Flags {
        slots,
        cache_ram,
        store,
    };
    vec![
        Plan {
            at_a_time: 3,
            recorded: flags(2, 3, 0),
            others: vec![
                flags(2, 0, 0),
                flags(4, 3, 0),
                flags(2, 24, 0),
                flags(2, 3, 1000 * MB),
                flags(2, 0, 1000 * MB),
                flags(2, 0, 4 * MB),
            ],
        },
        Plan {
            at_a_time: 6,
            recorded: flags(4, 0, 1000 * MB),
            others: vec![flags(4, 0, 0), flags(2, 0, 4 * MB)],
        },
        // Nothing keeps what a slot loses.
        Plan {
            at_a_time: 3,
            recorded: flags(2, 0, 0),
            others: Vec::new(),
        },
        Plan {
            at_a_time: 6,
            recorded: flags(4, 0, 0),
            others: Vec::new(),
        },
    ]
}

/// A few that are made up: the first plan's half, and those without others.
pub(super) fn some() -> Result<String> {
    let sessions = Sessions::made_up(6, 8);
    let mut plans = plans();
    let others = &mut plans[0].others;
    *others = vec![others[3], others[5]];
    plans.remove(1);
    let (rows, missed) = run(&sessions, &plans)?;
    crate::verdict(&rows, missed)
}

/// Those of a file at the recorded settings alone, or made-up ones; at most so many requests of each.
pub(super) fn all(file: Option<&Path>, requests: usize) -> Result<(String, usize, Need)> {
    let sessions = match file {
        Some(file) => Sessions::recorded(file, requests)?,
        None => Sessions::made_up(12, 20),
    };
    let mut plans = plans();
    if sessions.are_recorded {
        // Their prompts are long: each play takes minutes.
        plans.iter_mut().for_each(|plan| plan.others.clear());
    }
    let (rows, missed) = run(&sessions, &plans)?;
    Ok((rows, missed, sessions.need()))
}

/// The plan with the least room, recorded and played so many times: what differs between the rounds are the servers' own courses.
pub(super) fn again(rounds: usize) -> Result<(String, usize)> {
    let sessions = Sessions::made_up(12, 20);
    let (mut rows, mut missed) = (String::new(), 0);
    for _ in 0..rounds {
        let (some, more) = run(&sessions, &plans()[1..2])?;
        rows += &some;
        missed += more;
    }
    Ok((rows, missed))
}

/// The rows of the table, and how many of them are too far off.
fn run(sessions: &Sessions, plans: &[Plan]) -> Result<(String, usize)> {
    let mut rows = String::new();
    let mut missed = 0;
    for plan in plans {
        let (truth, traffic) = play(sessions, plan, plan.recorded, true)?;
        let traffic = traffic.ok_or_else(|| Error::new("nothing was recorded"))?;
        if let Some(damage) = traffic.damage {
            return Err(Error::new(damage.to_string()));
        }
        let recorded = Setting::recorded(&traffic);
        let recorded =
            recorded.ok_or_else(|| Error::new("the recording says nothing of the server"))?;
        let replay = Replay::new(&traffic);
        missed += row(&mut rows, plan, plan.recorded, truth, &replay, &recorded);
        for &flags in &plan.others {
            let mut setting = recorded
                .clone()
                .with_slots(flags.slots, false)
                .with_cache_ram(flags.cache_ram)
                .map_err(|error| Error::new(error.to_string()))?;
            let room = room(sessions, flags.slots) as u32;
            (setting.server.context, setting.server.slot_context) = (room, room / flags.slots);
            setting.store_limit = flags.store;
            let (truth, _) = play(sessions, plan, flags, false)?;
            missed += row(&mut rows, plan, flags, truth, &replay, &setting);
        }
    }
    Ok((rows, missed))
}

/// Adds a row. 1: it is too far off.
fn row(
    rows: &mut String,
    plan: &Plan,
    flags: Flags,
    truth: f64,
    replay: &Replay<'_>,
    setting: &Setting,
) -> usize {
    // At the recorded setting it is known who asked first.
    let is_recorded = flags == plan.recorded;
    let point = if is_recorded {
        replay.as_recorded(setting)
    } else {
        replay.simulate(setting)
    };
    let share = point.spared_share();
    let spread = if is_recorded {
        None
    } else {
        replay.spread(&point)
    };
    let Spread {
        lowest: low,
        highest: high,
    } = spread.unwrap_or(Spread {
        lowest: share,
        highest: share,
    });
    let expected = low - TOLERANCE..=high + TOLERANCE;
    let bad = !expected.contains(&truth);
    let row = format!(
        "| {}{} | {} | {} | {} | {:.1} | {:.1} | {:.1} to {:.1} |",
        plan.at_a_time,
        if is_recorded { ", recorded" } else { "" },
        flags.slots,
        flags.cache_ram,
        match flags.store {
            0 => "none".to_owned(),
            bytes => format!("{} MB", bytes / 1_000_000),
        },
        100.0 * truth,
        100.0 * share,
        100.0 * low,
        100.0 * high,
    );
    page::add_row(rows, &row, bad, "");
    usize::from(bad)
}

/// Tokens of a context in which each slot has room for the longest prompt.
fn room(sessions: &Sessions, slots: u32) -> usize {
    (sessions.need().longest + 64).next_multiple_of(256) * slots as usize
}

/// Plays the sessions to a server. The share of tokens that was not evaluated, and what was recorded.
fn play(
    sessions: &Sessions,
    plan: &Plan,
    flags: Flags,
    record: bool,
) -> Result<(f64, Option<Traffic>)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("traffic");
    let mut builder: Builder = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(flags.slots)
        .args(["-c".to_owned(), room(sessions, flags.slots).to_string()])
        .args(["--cache-ram".to_owned(), flags.cache_ram.to_string()])
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
    if record {
        builder = builder.env("CONTEXTPILOT_TRAFFIC_FILE", &path);
    }
    if flags.store > 0 {
        builder = with_store(builder, &folder.path().join("store"), flags.store);
    }
    let mut server = builder.start()?;
    let control = server.await_control()?;
    server.await_ready()?;
    let control = Control::new(&control.to_string()).map_err(|e| Error::new(e.to_string()))?;
    if flags.store > 0 {
        await_store(&control);
    }
    let asked = sessions.play(&server, plan.at_a_time, PATIENCE, |_| ())?;
    let loaded = loaded(&control)?;
    server.stop(SIGTERM)?;
    let prompts = sessions.need().prompts;
    let share = 1.0 - (asked - loaded) as f64 / prompts as f64;
    let traffic = record.then(|| std::fs::read(&path)).transpose()?;
    Ok((share, traffic.map(|bytes| read(&bytes))))
}

/// With a prefix store of so many bytes.
pub(super) fn with_store(builder: Builder, folder: &Path, bytes: u64) -> Builder {
    builder.env("CONTEXTPILOT_STORE", folder).env(
        "CONTEXTPILOT_STORE_GB",
        format!("{:.9}", bytes as f64 / 1e9),
    )
}

/// How many tokens of prompts came from the store. 0: there is none.
pub(super) fn loaded(control: &Control) -> Result<usize> {
    let stats = control.stats().map_err(|e| Error::new(e.to_string()))?;
    Ok(stats.store.map_or(0, |store| store.loaded_tokens as usize))
}
