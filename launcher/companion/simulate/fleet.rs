//! Fleets: many servers behind a router, under a trace or a recording.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use contextpilot_trace::fleet::{Outcome, Own, Route, Setting, Shared, fleet};
use contextpilot_trace::{Future, Trace, best, ceiling, warm_up};
use serde::Serialize;

use crate::companion::bounds::{is_speed, number};
use crate::companion::limit::{Limit, gigabytes};
use crate::companion::plot::{Axis, Plot, lines};
use crate::companion::show::{bytes, count, counted, print_as};
use crate::companion::table::Table;
use crate::companion::traffic::curve::share;
use crate::companion::traffic::known::{Machine, ServerFigures};
use crate::companion::traffic::open::Opened;

/// What a fleet is.
#[derive(Args, Clone)]
pub(in crate::companion) struct Fleet {
    /// Who chooses the server of a request
    #[arg(long, value_name = "ROUTE,…", value_delimiter = ',', default_value = "load+prefix", value_parser = route)]
    pub(in crate::companion) route: Vec<Route>,
    /// Whose prefix stores there are
    #[arg(
        long,
        value_name = "WHOSE,…",
        value_delimiter = ',',
        default_value = "none",
        value_enum
    )]
    pub(in crate::companion) store: Vec<Whose>,
    /// How large the shared store may become in 10⁹ bytes [default: without limit]
    #[arg(long, value_name = "GB", value_parser = gigabytes)]
    remote_gb: Option<u64>,
    /// How fast the network brings a shared store's chunks to a server, in 10⁶ bytes a second
    #[arg(long, value_name = "MB", default_value_t = 1000.0, value_parser = megabytes)]
    link: f64,
    /// How often each machine looks for what is to be sent to a shared store, and for what is new there, in seconds: 0.5 is right for
    /// a Redis, 5 for a bucket, and a server's /stats say it of its own (store.remote.look_ms)
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = seconds)]
    look_every: f64,
    /// What must be new of a prompt to be written to a shared store before its slot loses it
    #[arg(long, value_name = "SHARE", default_value_t = 0.125, value_parser = share)]
    worth: f64,
    /// The share of the requests that warm the caches, and count in no figure
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    warm_up: f64,
    #[command(flatten)]
    machine: Machine,
}

/// Whose prefix stores there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::companion) enum Whose {
    /// No prefix store
    None,
    /// Each server has its own
    Own,
    /// Each has its own, and all have one over the network
    Shared,
}

impl Whose {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Own => "own",
            Self::Shared => "shared",
        }
    }
}

fn route(name: &str) -> Result<Route, String> {
    let mut all = Route::ALL.into_iter();
    all.find(|route| route.to_string() == name)
        .ok_or_else(|| "there are round-robin, session, prefix and load+prefix".to_owned())
}

fn megabytes(text: &str) -> Result<f64, String> {
    number(text, is_speed, "a speed is a number above 0")
}

pub(in crate::companion) fn seconds(text: &str) -> Result<f64, String> {
    let fits = |seconds: f64| (0.0..=1e6).contains(&seconds);
    number(text, fits, "a time is a number of seconds")
}

/// What is the same for the fleets of one command.
pub(in crate::companion) struct Given {
    pub(in crate::companion) known: ServerFigures,
    /// How large a store may become, bytes.
    room: u64,
    /// How fast one of a server's own is read, bytes a second.
    speed: f64,
}

impl Fleet {
    /// An option of a fleet that is given, and says other than its default.
    pub(super) fn given_option(&self) -> Option<&'static str> {
        let options = [
            (self.route != [Route::LoadPrefix], "--route"),
            (self.store != [Whose::None], "--store"),
            (self.remote_gb.is_some(), "--remote-gb"),
            (self.warm_up > 0.0, "--warm-up"),
        ];
        let given = options.iter().find(|(is_given, _)| *is_given);
        given.map_or_else(|| self.machine.given_option(), |(_, name)| Some(name))
    }

    /// `room`: bytes; `None`: without limit.
    pub(in crate::companion) fn given(
        &self,
        opened: &Opened,
        room: Option<u64>,
        speed: u64,
    ) -> Result<Given, String> {
        if room.is_some() && self.store == [Whose::None] {
            return Err(
                "--store-gb is for fleets with stores: say --store own or --store shared, too"
                    .to_owned(),
            );
        }
        if self.remote_gb.is_some() && !self.store.contains(&Whose::Shared) {
            return Err(
                "--remote-gb is for a store that all servers have: say --store shared, too"
                    .to_owned(),
            );
        }
        Ok(Given {
            known: self.machine.known(opened.recording.as_ref())?,
            room: room.unwrap_or(u64::MAX),
            speed: speed as f64,
        })
    }

    pub(in crate::companion) fn setting(
        &self,
        given: &Given,
        servers: u32,
        route: Route,
        whose: Whose,
    ) -> Setting {
        let known = &given.known;
        Setting {
            servers,
            route,
            slots: known.slots,
            host_tokens: known.host_bytes / known.token_bytes,
            similarity: known.similarity,
            prompt_rate: known.prompt_rate,
            answer_rate: known.answer_rate,
            token_bytes: known.token_bytes,
            own: (whose != Whose::None).then_some(Own {
                room: given.room,
                speed: given.speed,
            }),
            shared: (whose == Whose::Shared).then_some(Shared {
                room: self.remote_gb.unwrap_or(u64::MAX),
                link: self.link * 1e6,
                looks: (self.look_every * 1e6) as u64,
                worth: self.worth,
            }),
            warm_up: self.warm_up,
        }
    }
}

/// A fleet, and what it did.
pub(in crate::companion) struct Row {
    pub(in crate::companion) setting: Setting,
    pub(in crate::companion) whose: Whose,
    pub(in crate::companion) outcome: Outcome,
    /// The share of tokens that the optimal eviction would reuse in one cache with all the room of the fleet.
    best: f64,
}

impl Row {
    pub(in crate::companion) fn new(
        trace: &Trace,
        future: Option<&Future>,
        setting: Setting,
        whose: Whose,
        outcome: Outcome,
    ) -> Self {
        let warm = warm_up(setting.warm_up, trace.requests.len());
        let best = match (future, room(trace, &setting)) {
            (Some(future), Some(room)) => best(trace, future, room, warm),
            _ => ceiling(trace, warm),
        };
        Self {
            setting,
            whose,
            outcome,
            best: best.of_tokens(),
        }
    }
}

/// The room of a fleet in blocks, if it has a bound: stores, host caches, and as much in each slot as the largest prompt.
fn room(trace: &Trace, setting: &Setting) -> Option<u64> {
    let block = u64::from(trace.block);
    let per_block = block.saturating_mul(setting.token_bytes).max(1);
    let largest = u64::from(trace.largest().unwrap_or(0));
    let slots = u64::from(setting.slots).saturating_mul(largest);
    let own = slots.saturating_add(setting.host_tokens / block);
    let servers = u64::from(setting.servers);
    let store = setting.own.map_or(0, |own| own.room / per_block);
    let shared = setting.shared.map_or(0, |shared| shared.room / per_block);
    let of_servers = own.saturating_add(store).saturating_mul(servers);
    let all = of_servers.saturating_add(shared);
    (all < trace.tree.blocks()).then_some(all)
}

#[derive(Serialize)]
struct RowOut {
    servers: u32,
    route: String,
    store: &'static str,
    reused_share: f64,
    best_share: f64,
    loaded_tokens: u64,
    evaluated_tokens: u64,
    prompt_tokens: u64,
    p50_seconds: f64,
    p95_seconds: f64,
    p99_seconds: f64,
    sent_bytes: u64,
    fetched_bytes: u64,
    imbalance: f64,
    seconds: f64,
}

/// What a command prints, draws and checks.
#[derive(Args, Clone)]
pub(in crate::companion) struct Shown {
    /// Exit with 1 if a figure of a fleet is above a value: evaluated=PERCENT, distance=POINTS (to the best possible),
    /// p50=SECONDS, p95=…, p99=…, network=GB
    #[arg(long, value_name = "FIGURE=VALUE", value_parser = Limit::from_str)]
    pub(in crate::companion) fail_above: Vec<Limit>,
    /// Write a page with the plot and the table
    #[arg(long, value_name = "FILE")]
    pub(in crate::companion) html: Option<PathBuf>,
}

impl Shown {
    pub(in crate::companion) fn show(
        &self,
        opened: &Opened,
        given: &Given,
        rows: &[Row],
        json: bool,
        plot: Option<&Path>,
    ) -> Result<ExitCode, String> {
        let text = text(opened, given, rows);
        let drawn = Plot {
            across: "servers".to_owned(),
            axis: Axis::Powers,
            lines: lines(rows.iter().map(Row::at)),
            text: text.clone(),
        };
        drawn.write(plot, self.html.as_deref())?;
        let out: Vec<RowOut> = rows.iter().map(RowOut::from_row).collect();
        print_as(json, &out, || text)?;
        let figure = |name: &str| {
            let of = |row: &Row| row.figure(name);
            let all: Option<Vec<f64>> = rows.iter().map(of).collect();
            all?.into_iter().reduce(f64::max)
        };
        Limit::check(&self.fail_above, figure)
    }
}

impl Row {
    /// Its line in a plot, and its point of that.
    fn at(&self) -> (String, (f64, f64)) {
        let name = format!("{}, store {}", self.setting.route, self.whose.name());
        let reused = self.outcome.reuse.of_tokens();
        (name, (f64::from(self.setting.servers), 100.0 * reused))
    }

    fn figure(&self, name: &str) -> Option<f64> {
        let outcome = &self.outcome;
        let reused = outcome.reuse.of_tokens();
        Some(match name {
            "evaluated" => 100.0 * (1.0 - reused),
            "distance" => 100.0 * (self.best - reused),
            "p50" => outcome.first_token(0.5),
            "p95" => outcome.first_token(0.95),
            "p99" => outcome.first_token(0.99),
            "network" => (outcome.sent_bytes.saturating_add(outcome.fetched_bytes)) as f64 / 1e9,
            _ => return None,
        })
    }
}

impl RowOut {
    fn from_row(row: &Row) -> Self {
        let outcome = &row.outcome;
        Self {
            servers: row.setting.servers,
            route: row.setting.route.to_string(),
            store: row.whose.name(),
            reused_share: outcome.reuse.of_tokens(),
            best_share: row.best,
            loaded_tokens: outcome.loaded_tokens,
            evaluated_tokens: outcome.evaluated_tokens(),
            prompt_tokens: outcome.reuse.tokens,
            p50_seconds: outcome.first_token(0.5),
            p95_seconds: outcome.first_token(0.95),
            p99_seconds: outcome.first_token(0.99),
            sent_bytes: outcome.sent_bytes,
            fetched_bytes: outcome.fetched_bytes,
            imbalance: outcome.imbalance,
            seconds: outcome.seconds,
        }
    }
}

fn text(opened: &Opened, given: &Given, rows: &[Row]) -> String {
    let head = [
        "servers",
        "route",
        "store",
        "reused",
        "best",
        "loaded",
        "evaluated",
        "p50",
        "p95",
        "p99",
        "network",
        "uneven",
    ];
    let mut table = Table::new(&head, &[1, 2]);
    let time = |seconds: f64| match seconds {
        ..100.0 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.0} s"),
    };
    for row in rows {
        let outcome = &row.outcome;
        let tokens = outcome.reuse.tokens.max(1) as f64;
        table.row(vec![
            count(row.setting.servers.into()),
            row.setting.route.to_string(),
            row.whose.name().to_owned(),
            format!("{:.1} %", 100.0 * outcome.reuse.of_tokens()),
            format!("{:.1} %", 100.0 * row.best),
            format!("{:.1} %", 100.0 * outcome.loaded_tokens as f64 / tokens),
            count(outcome.evaluated_tokens()),
            time(outcome.first_token(0.5)),
            time(outcome.first_token(0.95)),
            time(outcome.first_token(0.99)),
            bytes(outcome.sent_bytes.saturating_add(outcome.fetched_bytes)),
            format!("{:.2}", outcome.imbalance),
        ]);
    }
    let mut text = table.text();
    let requests = rows.first().map_or(0, |row| row.outcome.requests);
    text += &format!(
        "{} of {} {}. A server has {}.\n",
        counted(requests, "request"),
        counted(opened.trace.sessions.into(), "session"),
        if requests == 1 { "counts" } else { "count" },
        given.known.said.join(", "),
    );
    for what in &opened.left_out {
        text += &format!("Left out: {what}.\n");
    }
    for note in &opened.notes {
        text += &format!("Note: {note}.\n");
    }
    text
}

/// Plays all combinations.
pub(in crate::companion) fn rows(
    opened: &Opened,
    options: &Fleet,
    given: &Given,
    servers: &[u32],
) -> Vec<Row> {
    let trace = &opened.trace;
    let mut settings = Vec::new();
    for &servers in servers {
        for &whose in &options.store {
            for &route in &options.route {
                settings.push((options.setting(given, servers, route, whose), whose));
            }
        }
    }
    let is_bounded = settings
        .iter()
        .any(|(setting, _)| room(trace, setting).is_some());
    let future = is_bounded.then(|| Future::new(trace));
    settings
        .into_iter()
        .map(|(setting, whose)| {
            let outcome = fleet(trace, &setting);
            Row::new(trace, future.as_ref(), setting, whose, outcome)
        })
        .collect()
}
