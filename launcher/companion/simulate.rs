//! `simulate`: how much of recorded traffic the server would have reused with other flags; and fleets of servers.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use contextpilot_simulate::{Point, STORE_SPEED, Setting, Sizes, Spread, without_kept_tokens};
use contextpilot_traffic::Traffic;
use serde::Serialize;

use super::adviser::estimates;
use super::connect::ControlAt;
use super::limit::{Limit, gigabytes};
use super::plot::{Axis, Plot, lines};
use super::recorded::{
    OfModel, is_recording, of_router, of_server as last_requests, open, open_all, under_way,
};
use super::show::{bytes, count, counted, percent, print_as};
use super::table::Table;
use super::traffic::open::Input;
use crate::say::say;

pub(super) mod fleet;
pub(super) mod many;

use many::Simulations;

/// Say how much of recorded traffic other flags would have reused
///
/// Reads the recording of a server that was started with CONTEXTPILOT_TRAFFIC_FILE, and replays it on a
/// model of that server, with each combination of the given values. A flag without values stays as it was
/// recorded.
///
/// With --servers, and for traces that others publish: how much a fleet of such servers reuses behind a router, and how long the
/// first token takes. The formats are those of `traffic import`. A server of a fleet is simpler: it has blocks, not tokens.
#[derive(Args)]
#[command(mut_arg("files", |files| files.required(false).help(
    "The trace or recording; several are read as one, and so is a folder. \"-\": standard input \
     [default: for one server the last requests of a running one, see --control, or if it keeps none what it is recording; for fleets what it is recording]"
)), after_help = "Examples:
  contextpilot-llama simulate traffic --parallel 2,4,8 --cache-ram 0,2048,8192 --svg reuse.svg
  contextpilot-llama simulate --store-gb 0,10,50
  contextpilot-llama simulate trace.jsonl --servers 8,16 --route session,load+prefix --store shared --link 1000")]
pub(super) struct SimulateOptions {
    #[command(flatten)]
    input: Input,
    /// The hook's endpoint of the running server, as for advise
    #[arg(long, value_name = "ADDRESS")]
    control: Option<String>,
    /// Of several running servers, the one with this process id
    #[arg(long, conflicts_with = "control")]
    pid: Option<u32>,
    /// Numbers of servers [default: the recorded one, or 1]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    servers: Vec<u32>,
    #[command(flatten)]
    fleet: fleet::Fleet,
    #[command(flatten)]
    shown: fleet::Shown,
    /// Numbers of slots
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: Vec<u32>,
    /// Sizes of the host cache in MiB; 0: none, -1: no limit
    #[arg(long, value_name = "MIB,…", value_delimiter = ',', allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=1 << 30))]
    cache_ram: Vec<i64>,
    /// Shares of a prompt that must be alike for a slot to be chosen by it
    #[arg(long, value_name = "SHARE,…", value_delimiter = ',', value_parser = share)]
    slot_prompt_similarity: Vec<f32>,
    /// Tokens that a chunk must have to be moved up
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    cache_reuse: Vec<u32>,
    /// Budgets of a prefix store (CONTEXTPILOT_STORE_GB) in 10⁹ bytes, with decimals if need be; 0: none
    #[arg(long, value_name = "GB,…", value_delimiter = ',', value_parser = gigabytes)]
    store_gb: Vec<u64>,
    /// How fast its chunks are copied in and out, in 10⁶ bytes a second
    #[arg(long, value_name = "MB", default_value_t = STORE_SPEED / 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    store_speed: u64,
    /// Write a plot of the shares of tokens that are reused
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON: a list of points with their flags, reused_share, spared_share (with what is loaded; its lowest and
    /// highest if clients asked in another order; at the recorded flags what the engine spared, as spared_share_recorded), evaluated_tokens (and evaluated_tokens_unkept, had none been kept as they were
    /// generated) and prompt_seconds
    #[arg(long)]
    json: bool,
}

fn share(text: &str) -> Result<f32, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is from 0 to 1".to_owned())
}

pub(super) fn run(options: &SimulateOptions) -> Result<ExitCode, String> {
    let mut input = options.input.clone();
    let control = ControlAt {
        control: options.control.clone(),
        pid: options.pid,
        // Here that is the file of a fleet's model.
        model: None,
    };
    match (input.files.as_slice(), options.servers.is_empty()) {
        ([], true) => of_servers(options, vec![(None, last_requests(&control)?)]),
        ([file], true) if is_recording(file) => of_servers(options, vec![(None, open(file)?)]),
        ([file], true) if !of_router(file).is_empty() => {
            let models = of_router(file);
            let all = open_all(&models)?.into_iter();
            let all =
                all.map(|(recording, traffic, recorded)| (Some(recording), (traffic, recorded)));
            of_servers(options, all.collect())
        }
        ([], false) => {
            input.files.push(under_way(&control)?);
            of_fleet(options, &input)
        }
        _ => of_fleet(options, &input),
    }
}

fn of_fleet(options: &SimulateOptions, input: &Input) -> Result<ExitCode, String> {
    let flags = [
        (options.parallel.is_empty(), "--parallel"),
        (options.cache_ram.is_empty(), "--cache-ram"),
        (
            options.slot_prompt_similarity.is_empty(),
            "--slot-prompt-similarity",
        ),
        (options.cache_reuse.is_empty(), "--cache-reuse"),
    ];
    if let Some((_, flag)) = flags.iter().find(|(is_empty, _)| !is_empty) {
        return Err(format!(
            "{flag} is for one server and its recording: of a fleet say --slots and --host-cache"
        ));
    }
    if options.store_gb.len() > 1 {
        return Err("A fleet has one --store-gb: run the command once for each".to_owned());
    }
    let opened = input.open()?;
    opened.must_be_whole()?;
    let speed = options.store_speed.saturating_mul(1_000_000);
    let room = options.store_gb.first().copied();
    let given = options.fleet.given(&opened, room, speed)?;
    let servers = match options.servers.as_slice() {
        [] => &[1],
        servers => servers,
    };
    let rows = fleet::rows(&opened, &options.fleet, &given, servers);
    options
        .shown
        .show(&opened, &given, &rows, options.json, options.svg.as_deref())
}

/// One server, or the models of a router: each has a process and a cache of its own.
fn of_servers(
    options: &SimulateOptions,
    servers: Vec<(Option<&OfModel>, (Traffic, Setting))>,
) -> Result<ExitCode, String> {
    if let Some(flag) = options.fleet.given_option() {
        return Err(format!(
            "{flag} is for a fleet: say --servers, too (also if it is 1); of the recorded server say --parallel, --cache-ram, --store-gb"
        ));
    }
    let all: Result<Vec<Simulated>, String> = servers
        .into_iter()
        .map(|(model, (traffic, recorded))| simulate(options, model, &traffic, recorded))
        .collect();
    let all = all?;
    let texts: Vec<&str> = all
        .iter()
        .map(|simulated| simulated.text.as_str())
        .collect();
    let text = texts.join("\n");
    let points = all.iter().flat_map(|simulated| {
        simulated
            .points
            .iter()
            .map(|point| at(simulated.model, point))
    });
    let plot = Plot {
        across: "--parallel".to_owned(),
        axis: Axis::Ones,
        lines: lines(points),
        text: text.clone(),
    };
    plot.write(options.svg.as_deref(), options.shown.html.as_deref())?;
    let out: Vec<PointOut> = all.iter().flat_map(Simulated::out).collect();
    print_as(options.json, &out, || text)?;
    Limit::check(&options.shown.fail_above, |name| {
        let evaluated = |point: &Point| 100.0 * (1.0 - point.spared_share());
        let all = all.iter().flat_map(|run| &run.points).map(evaluated);
        all.reduce(f64::max).filter(|_| name == "evaluated")
    })
}

/// What was simulated of one server.
struct Simulated<'a> {
    model: Option<&'a OfModel>,
    /// What the engine did.
    engine: Point,
    points: Vec<Point>,
    spreads: Vec<Option<Spread>>,
    without: Vec<Option<u64>>,
    text: String,
}

impl Simulated<'_> {
    fn out(&self) -> Vec<PointOut> {
        let all = self.points.iter().zip(&self.spreads).zip(&self.without);
        let all = all.map(|((point, spread), without)| PointOut {
            model: self.model.map(|recording| recording.model.clone()),
            evaluated_tokens_unkept: *without,
            spared_share_recorded: (point.setting == self.engine.setting)
                .then(|| self.engine.spared_share()),
            ..PointOut::new(point).within(*spread)
        });
        all.collect()
    }
}

fn simulate<'a>(
    options: &SimulateOptions,
    model: Option<&'a OfModel>,
    traffic: &Traffic,
    mut recorded: Setting,
) -> Result<Simulated<'a>, String> {
    recorded.store_speed = options.store_speed.saturating_mul(1_000_000);
    if options.store_gb.iter().any(|bytes| *bytes > 0) {
        if !recorded.can_have_store() {
            say(
                "A prefix store keeps nothing below this server (it has --swa-full, or is of 2025 and its model's cache cannot go back to any position), so none is simulated",
            );
        } else if !Sizes::new(&traffic.sizes).are_known() {
            say(
                "The recording does not say how large the KV of a token is: the store is simulated as if it never were full",
            );
        }
    }
    let settings = grid(options, &recorded)?;
    let simulations = Simulations::new(traffic);
    let points = simulations.grid(&settings, &recorded);
    let (engine, replayed) = simulations.recorded(&points, &recorded);
    let spreads = simulations.spreads(&points, &recorded);
    let without =
        without_kept_tokens(traffic).map(|without| Simulations::new(&without).all(&settings));
    let without: Vec<Option<u64>> = match &without {
        Some(points) => points
            .iter()
            .map(|point| Some(point.evaluated_tokens))
            .collect(),
        None => vec![None; points.len()],
    };
    let title = model
        .map(|recording| recording.title() + "\n")
        .unwrap_or_default();
    let estimates = estimates(&engine, &replayed);
    let text = title + &text(&points, &spreads, &without) + &estimates + &kept(traffic);
    Ok(Simulated {
        model,
        engine,
        points,
        spreads,
        without,
        text,
    })
}

/// The line of a point in a plot, with one for each combination of the other flags, and where it is on that.
fn at(model: Option<&OfModel>, point: &Point) -> (String, (f64, f64)) {
    let setting = &point.setting;
    let server = &setting.server;
    let (similarity, reuse) = (server.slot_prompt_similarity, server.cache_reuse);
    let ram = setting.cache_ram();
    let model = model
        .map(|recording| format!("{}: ", recording.model))
        .unwrap_or_default();
    let name = format!("{model}cache-ram {ram}, similarity {similarity}, cache-reuse {reuse}");
    let slots = f64::from(server.parallel);
    (name, (slots, 100.0 * point.reused_share()))
}

/// All combinations. A flag that is not given stays as it was recorded.
fn grid(options: &SimulateOptions, recorded: &Setting) -> Result<Vec<Setting>, String> {
    let mut all = vec![recorded.clone()];
    cross(&mut all, &options.parallel, |setting, slots| {
        Ok(setting.with_parallel(slots))
    })?;
    cross(&mut all, &options.cache_ram, |setting, mib| {
        setting.with_cache_ram(mib).map_err(|e| e.to_string())
    })?;
    cross(
        &mut all,
        &options.slot_prompt_similarity,
        |mut setting, share| {
            setting.server.slot_prompt_similarity = share;
            Ok(setting)
        },
    )?;
    cross(&mut all, &options.cache_reuse, |mut setting, tokens| {
        setting.server.cache_reuse = tokens;
        Ok(setting)
    })?;
    if recorded.can_have_store() {
        cross(&mut all, &options.store_gb, |setting, store_limit| {
            Ok(Setting {
                store_limit,
                ..setting
            })
        })?;
    }
    Ok(all)
}

/// Each of the settings with each of these values, if there are any.
fn cross<T: Copy>(
    all: &mut Vec<Setting>,
    values: &[T],
    change: impl Fn(Setting, T) -> Result<Setting, String>,
) -> Result<(), String> {
    if !values.is_empty() {
        let before = std::mem::take(all);
        for setting in &before {
            for value in values {
                all.push(change(setting.clone(), *value)?);
            }
        }
    }
    Ok(())
}

/// A point, in JSON: settings under the names of their flags.
#[derive(Serialize)]
pub(super) struct PointOut {
    /// Of a router.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    parallel: u32,
    kv_unified: bool,
    cache_ram: i64,
    slot_prompt_similarity: f32,
    cache_reuse: u32,
    store_gb: f64,
    reused_share: f64,
    spared_share: f64,
    /// Of the recorded flags in a list of points: what the engine spared.
    #[serde(skip_serializing_if = "Option::is_none")]
    spared_share_recorded: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spared_share_lowest: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spared_share_highest: Option<f64>,
    prompt_tokens: u64,
    reused_tokens: u64,
    loaded_tokens: u64,
    evaluated_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluated_tokens_unkept: Option<u64>,
    prompt_seconds: f64,
    store_seconds: f64,
    waited_seconds: f64,
    refused: u64,
    too_many_answers: u64,
    context_bytes: u64,
    host_bytes: u64,
    store_bytes: u64,
}

impl PointOut {
    pub(super) fn new(point: &Point) -> Self {
        let setting = &point.setting;
        let server = &setting.server;
        Self {
            model: None,
            parallel: server.parallel,
            kv_unified: server.kv_unified,
            cache_ram: setting.cache_ram(),
            slot_prompt_similarity: server.slot_prompt_similarity,
            cache_reuse: server.cache_reuse,
            store_gb: setting.store_limit as f64 / 1e9,
            reused_share: point.reused_share(),
            spared_share: point.spared_share(),
            spared_share_recorded: None,
            spared_share_lowest: None,
            spared_share_highest: None,
            prompt_tokens: point.prompt_tokens,
            reused_tokens: point.reused_tokens,
            loaded_tokens: point.loaded_tokens,
            evaluated_tokens: point.evaluated_tokens,
            evaluated_tokens_unkept: None,
            prompt_seconds: point.prompt_seconds,
            store_seconds: point.store_seconds,
            waited_seconds: point.waited_seconds,
            refused: point.refused,
            too_many_answers: point.too_many_answers,
            context_bytes: point.context_bytes,
            host_bytes: point.host_bytes,
            store_bytes: point.store_bytes,
        }
    }

    /// With the lowest and the highest share in other courses.
    fn within(self, spread: Option<Spread>) -> Self {
        Self {
            spared_share_lowest: spread.map(|spread| spread.lowest),
            spared_share_highest: spread.map(|spread| spread.highest),
            ..self
        }
    }
}

/// A spread that is narrower is not shown to people: with other flags, the simulation is not more exact.
const NARROW: f64 = 0.01;

/// What the column `unkept` is about. Empty: no prompt got tokens of earlier answers.
fn kept(traffic: &Traffic) -> String {
    let kept = traffic
        .requests
        .iter()
        .map(|request| u64::from(request.record.kept));
    let kept: Vec<u64> = kept.filter(|tokens| *tokens > 0).collect();
    if kept.is_empty() {
        String::new()
    } else {
        format!(
            "unkept: what would have been evaluated, had {} not kept {} as they were generated (CONTEXTPILOT_KEEP_TOKENS)\n",
            counted(kept.len() as u64, "prompt"),
            counted(kept.iter().sum(), "token")
        )
    }
}

/// In 10⁹ bytes, as for `--store-gb`. The limit of a running server is a share of its disk, to the byte.
fn store_gb(limit: u64) -> String {
    let whole = limit as f64 / 1e9;
    let rounded = (whole * 1e3).round() / 1e3;
    let is_lost = rounded == 0.0 && limit > 0;
    (if is_lost { whole } else { rounded }).to_string()
}

/// `without`: what is evaluated if no tokens are kept as they were generated.
fn text(points: &[Point], spreads: &[Option<Spread>], without: &[Option<u64>]) -> String {
    let has_store = points.iter().any(|point| point.setting.store_limit > 0);
    let wide =
        |spread: &Option<Spread>| spread.filter(|spread| spread.highest - spread.lowest >= NARROW);
    let is_wide = spreads.iter().any(|spread| wide(spread).is_some());
    let mut head = vec!["parallel", "cache-ram", "similarity", "cache-reuse"];
    if has_store {
        head.push("store-gb");
    }
    head.push("reused");
    if has_store {
        head.push("loaded");
    }
    if is_wide {
        head.push("or");
    }
    head.push("evaluated");
    let has_kept = without.iter().any(Option::is_some);
    if has_kept {
        head.push("unkept");
    }
    head.extend(["prompts", "waited", "context", "host"]);
    if has_store {
        head.extend(["store", "copies"]);
    }
    let mut table = Table::new(&head, &[]);
    for ((point, spread), without) in points.iter().zip(spreads).zip(without) {
        let setting = &point.setting;
        let server = &setting.server;
        let shared = if server.kv_unified { " shared" } else { "" };
        let mut row = vec![
            format!("{}{shared}", server.parallel),
            setting.cache_ram().to_string(),
            server.slot_prompt_similarity.to_string(),
            server.cache_reuse.to_string(),
        ];
        if has_store {
            row.push(store_gb(setting.store_limit));
        }
        row.push(percent(Some(point.reused_share())));
        if has_store {
            row.push(percent(Some(point.spared_share() - point.reused_share())));
        }
        if is_wide {
            row.push(wide(spread).map_or_else(String::new, |spread| {
                let share = |share| percent(Some(share));
                format!("{} to {}", share(spread.lowest), share(spread.highest))
            }));
        }
        row.push(count(point.evaluated_tokens));
        if has_kept {
            row.push(without.map_or_else(String::new, count));
        }
        row.extend([
            format!("{:.1} s", point.prompt_seconds),
            format!("{:.1} s", point.waited_seconds),
            bytes(point.context_bytes),
            bytes(point.host_bytes),
        ]);
        if has_store {
            row.push(bytes(point.store_bytes));
            row.push(format!("{:.1} s", point.store_seconds));
        }
        table.row(row);
    }
    let mut text = table.text();
    if is_wide {
        text += "or: how much is reused depends on who asks first after answers that end together; so much it was in other orders\n";
    }
    for point in points {
        let slots = match point.setting.server.parallel {
            1 => "With 1 slot".to_owned(),
            slots => format!("With {slots} slots"),
        };
        let too_long = point.refused - point.too_many_answers;
        if too_long > 0 {
            text += &format!(
                "{slots} {} would be refused, too long for a slot: raise --ctx-size\n",
                counted(too_long, "prompt"),
            );
        }
        if point.too_many_answers > 0 {
            text += &format!(
                "{slots} {} would be refused, for more answers (n) than there are slots: raise --parallel\n",
                counted(point.too_many_answers, "prompt"),
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::store_gb;

    #[test]
    fn the_room_of_a_store_is_written_for_people() {
        let all = [0, 6_733_092_454, 100_000_000, 4_000_000, 50_000_000_000, 1];
        let text = ["0", "6.733", "0.1", "0.004", "50", "0.000000001"];
        assert_eq!(all.map(store_gb), text);
    }
}
