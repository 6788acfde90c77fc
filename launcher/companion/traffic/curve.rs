//! `traffic curve`: what caches of all sizes reuse, beside the best possible.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use contextpilot_trace::{Future, Policy, Reuse, Trace, best, ceiling, curve, play, warm_up};
use serde::Serialize;

use super::known::Machine;
use super::open::{Input, Opened};
use crate::companion::bounds::number;
use crate::companion::limit::Limit;
use crate::companion::plot::{Axis, Plot};
use crate::companion::show::{count, counted, print_as};
use crate::companion::table::Table;

/// Say what a cache of any size would reuse, and what the best possible is with as much room
///
/// Without --policies it is one pass for all sizes: what was used longest ago leaves (LRU). "best" is the optimal eviction
/// (Belady's), which knows the future. A request that is larger than a cache leaves its first blocks there.
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama traffic curve trace.jsonl --rooms 128,2048,8192,32768 --warm-up 0.5
  contextpilot-llama traffic curve trace.jsonl --policies lru,lfu,arc,store,best --html curve.html
  contextpilot-llama traffic curve trace.jsonl --rooms 8192 --fail-above evaluated=70")]
pub(super) struct CurveOptions {
    #[command(flatten)]
    input: Input,
    /// Sizes in blocks [default: 20, each about twice the one before, up to all blocks]
    #[arg(long, value_name = "BLOCKS,…", value_delimiter = ',')]
    rooms: Vec<u64>,
    /// Sizes in 10⁹ bytes, by the KV of a token
    #[arg(long, value_name = "GB,…", value_delimiter = ',', conflicts_with = "rooms", value_parser = crate::companion::limit::gigabytes)]
    rooms_gb: Vec<u64>,
    /// Which caches: lru, lfu, arc, store (as the prefix store does it), and best
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "lru", value_parser = Cache::from_str)]
    policies: Vec<Cache>,
    /// The share of the requests that warm the caches, and count in no figure
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    warm_up: f64,
    #[command(flatten)]
    machine: Machine,
    /// Exit with 1 if a figure of the largest room is above a value: evaluated=PERCENT of the first policy, or distance=POINTS
    /// of it to the best
    #[arg(long, value_name = "FIGURE=VALUE", value_parser = Limit::from_str)]
    fail_above: Vec<Limit>,
    /// Write a plot
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with the plot and the table
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON: ceiling, warm_up_requests, and points (blocks, and for each policy tokens and blocks as shares)
    #[arg(long)]
    json: bool,
}

/// A policy, or the best possible.
#[derive(Clone, Copy, PartialEq)]
enum Cache {
    Policy(Policy),
    Best,
}

impl FromStr for Cache {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let policies = Policy::ALL.into_iter().map(Self::Policy);
        let mut all = policies.chain([Self::Best]);
        all.find(|cache| cache.name() == name)
            .ok_or_else(|| "there are lru, lfu, arc, store and best".to_owned())
    }
}

impl Cache {
    fn name(self) -> String {
        match self {
            Self::Policy(policy) => policy.to_string(),
            Self::Best => "best".to_owned(),
        }
    }
}

pub(in crate::companion) fn share(text: &str) -> Result<f64, String> {
    let fits = |share: f64| (0.0..1.0).contains(&share);
    number(text, fits, "a share is from 0 to below 1")
}

#[derive(Serialize)]
struct Out<'a> {
    format: &'a str,
    block_size: u32,
    requests: usize,
    warm_up_requests: usize,
    unique_blocks: u64,
    sampled: f64,
    ceiling: Shares,
    points: Vec<PointOut>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct PointOut {
    blocks: u64,
    #[serde(flatten)]
    reuse: std::collections::BTreeMap<String, Shares>,
}

#[derive(Serialize)]
pub(super) struct Shares {
    tokens: f64,
    blocks: f64,
}

impl Shares {
    pub(super) fn new(reuse: &Reuse) -> Self {
        Self {
            tokens: reuse.of_tokens(),
            blocks: reuse.of_blocks(),
        }
    }
}

pub(super) fn run(options: &CurveOptions) -> Result<ExitCode, String> {
    let mut opened = options.input.open()?;
    let rooms = rooms(options, &mut opened)?;
    let mut caches = options.policies.clone();
    caches.dedup();
    let limits = &options.fail_above;
    let curves = Curves::new(&opened, rooms, caches, options.warm_up, limits);
    let plot = curves.plot("");
    plot.write(options.svg.as_deref(), options.html.as_deref())?;
    print_as(options.json, &curves.out(), || curves.text())?;
    curves.check(limits)
}

/// What caches reuse of a trace.
pub(in crate::companion) struct Curves<'a> {
    opened: &'a Opened,
    /// Blocks, in order.
    rooms: Vec<u64>,
    caches: Vec<Cache>,
    /// For each cache, what it reuses with each room.
    columns: Vec<Vec<Reuse>>,
    /// With room for everything.
    limit: Reuse,
    /// Requests that count in no figure.
    warm: usize,
    future: Option<Future>,
}

impl<'a> Curves<'a> {
    /// LRU and the best, with rooms of 20 sizes, from cold.
    pub(in crate::companion) fn usual(opened: &'a Opened) -> Self {
        let caches = vec![Cache::Policy(Policy::Lru), Cache::Best];
        Self::new(opened, usual_rooms(&opened.trace), caches, 0.0, &[])
    }

    fn new(
        opened: &'a Opened,
        rooms: Vec<u64>,
        caches: Vec<Cache>,
        warm: f64,
        limits: &[Limit],
    ) -> Self {
        let trace = &opened.trace;
        let warm = warm_up(warm, trace.requests.len());
        let wants_best =
            caches.contains(&Cache::Best) || limits.iter().any(|limit| limit.name == "distance");
        let future = wants_best.then(|| Future::new(trace));
        let columns = caches
            .iter()
            .map(|cache| of_cache(trace, *cache, future.as_ref(), &rooms, warm))
            .collect();
        Self {
            opened,
            rooms,
            caches,
            columns,
            limit: ceiling(trace, warm),
            warm,
            future,
        }
    }

    /// The plot, with the table below it. `before`: text that comes before the table.
    pub(in crate::companion) fn plot(&self, before: &str) -> Plot {
        let line = |name: String, reuse: &mut dyn Iterator<Item = &Reuse>| {
            let at = |(room, reuse): (&u64, &Reuse)| (*room as f64, 100.0 * reuse.of_tokens());
            (name, self.rooms.iter().zip(reuse).map(at).collect())
        };
        let columns = self.caches.iter().zip(&self.columns);
        let lines = columns.map(|(cache, column)| line(cache.name(), &mut column.iter()));
        let room_for_all = line(
            "room for all".to_owned(),
            &mut std::iter::repeat(&self.limit),
        );
        Plot {
            across: format!("room in blocks of {} tokens", self.opened.trace.block),
            axis: Axis::Powers,
            lines: lines.chain([room_for_all]).collect(),
            text: format!("{before}{}", self.text()),
        }
    }

    /// Whether a figure of the largest room is above a bound.
    pub(in crate::companion) fn check(&self, limits: &[Limit]) -> Result<ExitCode, String> {
        let last = self.columns.first().and_then(|column| column.last());
        let (Some(last), Some(room)) = (last, self.rooms.last()) else {
            return Ok(ExitCode::SUCCESS);
        };
        Limit::check(limits, |name| match name {
            "evaluated" => Some(100.0 * (1.0 - last.of_tokens())),
            "distance" => {
                let best = best(&self.opened.trace, self.future.as_ref()?, *room, self.warm);
                Some(100.0 * (best.of_tokens() - last.of_tokens()))
            }
            _ => None,
        })
    }

    /// The table, and what was assumed.
    fn text(&self) -> String {
        let trace = &self.opened.trace;
        let names: Vec<String> = self.caches.iter().map(|cache| cache.name()).collect();
        let mut head = vec!["blocks", "tokens"];
        head.extend(names.iter().map(String::as_str));
        let mut table = Table::new(&head, &[]);
        for (nth, room) in self.rooms.iter().enumerate() {
            let mut row = vec![count(*room), count(room.saturating_mul(trace.block.into()))];
            row.extend(
                self.columns
                    .iter()
                    .filter_map(|column| column.get(nth))
                    .map(|reuse| format!("{:.2} %", 100.0 * reuse.of_tokens())),
            );
            table.row(row);
        }
        let mut text = table.text();
        let _ = writeln!(
            text,
            "With room for all: {:.2} % of tokens, {:.2} % of blocks ({} different blocks).",
            100.0 * self.limit.of_tokens(),
            100.0 * self.limit.of_blocks(),
            count(trace.tree.blocks()),
        );
        let from = match self.warm {
            0 => "From cold: all requests count.".to_owned(),
            1 => "Warmed up: the first request is not counted.".to_owned(),
            warm => format!(
                "Warmed up: the first {} requests are not counted.",
                count(warm as u64)
            ),
        };
        let _ = writeln!(text, "{from}");
        let is_above = |blocks: &u32| self.rooms.first() < Some(&u64::from(*blocks));
        if let Some(largest) = trace.largest().filter(is_above) {
            let _ = writeln!(
                text,
                "The largest request has {}: of one that is larger than a cache, the first blocks stay, as many as have room.",
                counted(largest.into(), "block")
            );
        }
        if trace.rate < 1.0 {
            let _ = writeln!(text, "Estimated by {} of the blocks.", trace.rate);
        }
        for what in &self.opened.left_out {
            let _ = writeln!(text, "Left out: {what}.");
        }
        for note in &self.opened.notes {
            let _ = writeln!(text, "Note: {note}.");
        }
        text
    }

    fn out(&self) -> Out<'_> {
        let trace = &self.opened.trace;
        let points = self.rooms.iter().enumerate().map(|(nth, room)| PointOut {
            blocks: *room,
            reuse: self
                .caches
                .iter()
                .zip(&self.columns)
                .filter_map(|(cache, column)| Some((cache.name(), Shares::new(column.get(nth)?))))
                .collect(),
        });
        Out {
            format: &self.opened.format,
            block_size: trace.block,
            requests: trace.requests.len(),
            warm_up_requests: self.warm,
            unique_blocks: trace.tree.blocks(),
            sampled: trace.rate,
            ceiling: Shares::new(&self.limit),
            points: points.collect(),
            notes: &self.opened.notes,
        }
    }
}

fn of_cache(
    trace: &Trace,
    cache: Cache,
    future: Option<&Future>,
    rooms: &[u64],
    warm: usize,
) -> Vec<Reuse> {
    match (cache, future) {
        (Cache::Policy(Policy::Lru), _) => curve(trace, rooms, warm),
        (Cache::Policy(policy), _) => rooms
            .iter()
            .map(|room| play(trace, policy, *room, warm))
            .collect(),
        (Cache::Best, Some(future)) => rooms
            .iter()
            .map(|room| best(trace, future, *room, warm))
            .collect(),
        (Cache::Best, None) => Vec::new(),
    }
}

/// In order.
fn rooms(options: &CurveOptions, opened: &mut Opened) -> Result<Vec<u64>, String> {
    let trace = &opened.trace;
    let mut rooms = options.rooms.clone();
    if !options.rooms_gb.is_empty() {
        let known = options.machine.known(opened.recording.as_ref())?;
        let block = known
            .token_bytes
            .saturating_mul(u64::from(trace.block))
            .max(1);
        rooms = options.rooms_gb.iter().map(|bytes| bytes / block).collect();
        opened
            .notes
            .extend(known.said.into_iter().filter(|said| said.starts_with("KV")));
    }
    if rooms.is_empty() {
        rooms = usual_rooms(trace);
    }
    rooms.sort_unstable();
    rooms.dedup();
    Ok(rooms)
}

/// 20 sizes, each about twice the one before, up to all blocks; fewer of a small trace. In order.
fn usual_rooms(trace: &Trace) -> Vec<u64> {
    let all = (trace.tree.blocks() as f64 / trace.rate).ceil().max(1.0) as u64;
    let mut rooms: Vec<u64> = (0..20).rev().map(|half| (all >> half).max(1)).collect();
    rooms.dedup();
    rooms
}
