//! `report`: the page with the data of a recording, of a running server, or of a log file inside; of a published trace a plot.

use std::collections::HashMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use contextpilot_client::control::{
    Diverged, Evaluated, Evaluation, LogLine, Lost, RequestName, Timestamp,
};
use contextpilot_simulate::Setting;
use contextpilot_traffic::Traffic;
use serde_json::{Value, json};

use super::advise::AdviceOut;
use super::adviser::Adviser;
use super::connect::{ControlAt, hook_says};
use super::limit::Limit;
use super::recorded::{OfModel, ended, is_recording, of_router, open, open_all};
use super::show::{bytes, print};
use super::simulate::PointOut;
use super::simulate::many::Simulations;
use super::traffic::curve::Curves;
use super::traffic::import::summary;
use super::traffic::open::Input;
use crate::say::say;

mod data;
mod line;
mod prefixes;
mod recording;

use data::Data;

/// Write what the page shows to one HTML file, to pass on
///
/// Of a recording (CONTEXTPILOT_TRAFFIC_FILE), with what other flags would have brought; of a log file
/// (CONTEXTPILOT_LOG_FILE); or, if neither is given, of a running server. The file needs nothing else, and
/// contains no text of prompts. Ids of requests are replaced by numbers.
///
/// Of a trace that others publish (as `traffic import` reads them): its ceilings, and a plot of what caches of 20 sizes reuse,
/// beside the best possible.
#[derive(Args)]
#[command(mut_arg("files", |files| files.required(false).conflicts_with("log").help(
    "The recording, or a trace; several traces are read as one, and so is a folder. \"-\": a trace from standard input"
)), after_help = "Examples:
  contextpilot-llama report traffic -o report.html
  contextpilot-llama report conversation_trace.jsonl --fail-above distance=1 -o report.html
  contextpilot-llama report --log queries.jsonl -o report.html
  contextpilot-llama report -o report.html")]
pub(super) struct ReportOptions {
    #[command(flatten)]
    input: Input,
    /// A log file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    control: ControlAt,
    /// Where to write the report, "-" for standard output [default: report.html, if there is none]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What the report is called
    #[arg(long)]
    title: Option<String>,
    /// Keep the ids of requests
    #[arg(long)]
    ids: bool,
    /// Leave out the simulator's grid and advice, which take a while for long recordings
    #[arg(long)]
    no_simulation: bool,
    /// Exit with 1 if a figure is above a value: evaluated=PERCENT of the prompt tokens; of a trace those that LRU evaluates with
    /// the largest room, and distance=POINTS of it to the best
    #[arg(long, value_name = "FIGURE=VALUE", value_parser = Limit::from_str)]
    fail_above: Vec<Limit>,
}

/// So many branches of a running server's tree, and so many of its last requests: as many as it gives.
const MOST_BRANCHES: usize = 4000;
const MOST_LAST: usize = 1000;

/// Where a report is written if nothing else is said.
const USUAL: &str = "report.html";
const STANDARD_OUTPUT: &str = "-";

pub(super) fn run(options: &ReportOptions) -> Result<ExitCode, String> {
    let output = match &options.output {
        Some(given) => given.as_path(),
        None if Path::new(USUAL).symlink_metadata().is_ok() => {
            return Err(format!("{USUAL} is there already: name a file with -o"));
        }
        None => Path::new(USUAL),
    };
    let models = match options.input.files.as_slice() {
        [path] => of_router(path),
        _ => Vec::new(),
    };
    if !models.is_empty() {
        return of_models(options, output, &models);
    }
    let mut names = Names::new(options.ids);
    let mut data = match (options.input.files.as_slice(), &options.log) {
        ([], Some(path)) => of_log(path, &mut names)?.into(),
        ([], None) => of_server(&options.control, &mut names, !options.no_simulation)?.into(),
        ([path], _) if is_recording(path) => of_recording(path, !options.no_simulation)?,
        _ => return of_trace(options, output),
    };
    if let Some(title) = &options.title {
        data.values["about"]["title"] = title.as_str().into();
    }
    write_page(&mut data, output)?;
    check(options, evaluated(&data.values))
}

/// `share`: of the prompt tokens that were evaluated.
fn check(options: &ReportOptions, share: f64) -> Result<ExitCode, String> {
    Limit::check(&options.fail_above, |name| match name {
        "evaluated" => Some(100.0 * share),
        _ => None,
    })
}

/// A router's models, each in a file of its own: `report.html` becomes `report.MODEL.html`.
fn of_models(
    options: &ReportOptions,
    output: &Path,
    models: &[OfModel],
) -> Result<ExitCode, String> {
    if output == Path::new(STANDARD_OUTPUT) {
        return Err("a router's models have a report each: name a file with -o".to_owned());
    }
    let mut worst: f64 = 0.0;
    for (recording, traffic, recorded) in open_all(models)? {
        let mut data = of_traffic(&traffic, &recorded, !options.no_simulation)?;
        let title = options.title.as_deref().map(|title| format!("{title}, "));
        data.values["about"]["title"] = (title.unwrap_or_default() + &recording.model).into();
        let mut name = output.file_stem().unwrap_or_default().to_owned();
        name.push(".");
        name.push(&recording.model);
        if let Some(ending) = output.extension() {
            name.push(".");
            name.push(ending);
        }
        let output = output.with_file_name(name);
        if options.output.is_none() && output.symlink_metadata().is_ok() {
            return Err(format!(
                "{} is there already: name a file with -o",
                output.display()
            ));
        }
        write_page(&mut data, &output)?;
        worst = worst.max(evaluated(&data.values));
    }
    check(options, worst)
}

fn write_page(data: &mut Data, output: &Path) -> Result<(), String> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64);
    data.values["about"]["made"] = json!(Timestamp::from_unix_ms(now));
    data.values["about"]["version"] = env!("CARGO_PKG_VERSION").into();
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(&data.text()?, 8);
    put(output, &contextpilot_page::report(&STANDARD.encode(packed)))
}

/// A published trace: what it is, and what caches of all sizes reuse.
fn of_trace(options: &ReportOptions, output: &Path) -> Result<ExitCode, String> {
    let opened = options.input.open()?;
    let curves = Curves::usual(&opened);
    let title = options.title.as_deref().map(|title| format!("{title}\n\n"));
    let before = format!("{}{}\n", title.unwrap_or_default(), summary(&opened));
    put(output, &curves.plot(&before).page()?)?;
    curves.check(&options.fail_above)
}

/// The share of prompt tokens that were evaluated.
fn evaluated(data: &Value) -> f64 {
    let of =
        |reuse: &Value| ["reused", "evaluated"].map(|name| reuse[name].as_f64().unwrap_or(0.0));
    let [reused, evaluated] = match data["stats"]["reuse"].get("total") {
        Some(total) => of(total),
        // A log says it of each request.
        None => {
            let requests = data["requests"].as_array().into_iter().flatten();
            let all = requests.map(|request| of(&request["evaluation"]));
            all.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d])
        }
    };
    if reused + evaluated > 0.0 {
        evaluated / (reused + evaluated)
    } else {
        0.0
    }
}

/// Writes a report, and says so.
fn put(output: &Path, page: &str) -> Result<(), String> {
    if output == Path::new(STANDARD_OUTPUT) {
        return print(page);
    }
    let shown = output.display();
    write(output, page.as_bytes())
        .map_err(|e| format!("{shown} cannot be written ({e}): name another file with -o"))?;
    print(&format!(
        "{shown}, {}: open it in a browser\n",
        bytes(page.len() as u64)
    ))
}

/// For this user only: a report tells of what others asked.
fn write(path: &Path, page: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    // One that was there keeps its mode. A pipe has none of ours.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    file.write_all(page)
}

fn of_recording(path: &Path, simulated: bool) -> Result<Data, String> {
    let (traffic, recorded) = open(path)?;
    of_traffic(&traffic, &recorded, simulated)
}

fn of_traffic(traffic: &Traffic, recorded: &Setting, simulated: bool) -> Result<Data, String> {
    let mut data = recording::data(traffic)?;
    if simulated {
        add_simulated(&mut data.values, traffic, recorded);
    }
    Ok(data)
}

/// What other flags would have brought.
fn add_simulated(data: &mut Value, traffic: &Traffic, recorded: &Setting) {
    let simulations = Simulations::new(traffic);
    let advice = simulations.advise(recorded);
    data["advice"] = json!(AdviceOut::new(&advice));
    data["grid"] = json!(grid(&simulations, recorded));
}

/// The recorded setting among others: slots, and sizes of the host cache.
fn grid(simulations: &Simulations<'_>, recorded: &Setting) -> Vec<PointOut> {
    let slots = distinct(vec![1, 2, 4, 8, recorded.server.parallel]);
    let sizes = distinct(vec![0, 2048, 8192, recorded.cache_ram()]);
    let mut settings = Vec::new();
    for &parallel in &slots {
        for &mib in &sizes {
            let setting = if parallel == recorded.server.parallel {
                recorded.clone()
            } else {
                recorded.clone().with_parallel(parallel)
            };
            let setting = if mib == recorded.cache_ram() {
                Ok(setting)
            } else {
                setting.with_cache_ram(mib)
            };
            // A server that is too old has no host cache.
            if let Ok(setting) = setting {
                settings.push(setting);
            }
        }
    }
    let points = simulations.grid(&settings, recorded);
    points.iter().map(PointOut::new).collect()
}

fn distinct<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort_unstable();
    all.dedup();
    all
}

fn of_server(control: &ControlAt, names: &mut Names, simulated: bool) -> Result<Value, String> {
    let control = control.client_or(ended)?;
    let stats = control.stats().map_err(|e| hook_says(&control, &e))?;
    let latest = control
        .latest(MOST_LAST)
        .map_err(|e| hook_says(&control, &e))?;
    let tree = control
        .tree(MOST_BRANCHES)
        .map_err(|e| hook_says(&control, &e))?;
    let mut requests = latest.requests;
    requests.reverse();
    requests
        .iter_mut()
        .for_each(|request| names.of_request(request));
    let mut tree = tree;
    for branch in &mut tree.branches {
        branch
            .requests
            .iter_mut()
            .for_each(|request| names.name(request));
    }
    let store = stats
        .store
        .as_ref()
        .map(|store| json!({ "loaded_tokens": store.loaded_tokens }));
    // Nothing else: addresses, paths and ids stay here.
    let slots: Vec<Value> = stats
        .slots
        .iter()
        .map(|slot| {
            json!({
                "slot": slot.slot, "tokens": slot.tokens, "capacity": slot.capacity,
                "bytes": slot.bytes, "busy": slot.busy,
            })
        })
        .collect();
    let mut data = json!({
        "about": {
            "kind": "server",
            "title": stats.model.as_ref().map_or("A server", |model| &model.name),
            "notes": [],
        },
        "stats": {
            "at": stats.at, "uptime_seconds": stats.uptime_seconds,
            "engine": {
                "name": stats.engine.name, "version": stats.engine.version, "build": stats.engine.build,
            },
            "flags": stats.flags, "slots": slots, "host": stats.host, "tokens": stats.tokens,
            "requests": stats.requests, "reuse": stats.reuse, "evictions": stats.evictions, "store": store,
        },
        "tree": tree,
        "requests": requests,
    });
    // Of its last requests, if it keeps them.
    if let (true, Ok(adviser)) = (simulated, Adviser::of_server(&control)) {
        add_simulated(&mut data, &adviser.traffic, &adviser.recorded);
    }
    Ok(data)
}

fn of_log(path: &Path, names: &mut Names) -> Result<Value, String> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|e| format!("{shown} cannot be read ({e}): check the path"))?;
    let mut requests = Vec::new();
    let mut changes = Vec::new();
    let mut unread = 0_u64;
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<LogLine>(line) else {
            unread += 1;
            continue;
        };
        let number = requests.len() as u64 + 1;
        let by = line.id.clone().map(|id| names.id(id));
        for evicted in &line.evicted {
            changes.push(json!({
                "change": "evicted", "at": line.at, "id": names.id(evicted.id.clone()),
                "reason": evicted.reason, "by": by, "from": { "place": "slot", "slot": line.slot },
            }));
        }
        if let Some(mut request) = of_line(line, number) {
            names.of_request(&mut request);
            requests.push(request);
        }
    }
    if requests.is_empty() {
        return Err(format!(
            "{shown} has no line of a request: name the file of CONTEXTPILOT_LOG_FILE"
        ));
    }
    match unread {
        0 => {}
        1 => say(format_args!(
            "1 line of {shown} is no line of the log, and is left out"
        )),
        _ => say(format_args!(
            "{unread} lines of {shown} are not lines of the log, and are left out"
        )),
    }
    Ok(json!({
        "about": { "kind": "log", "title": "A log of requests", "notes": [] },
        "requests": requests,
        "changes": changes,
    }))
}

/// `None`: no prompt of the request was evaluated, so there is no account.
fn of_line(line: LogLine, number: u64) -> Option<Evaluated> {
    let evaluation = match line.evaluation {
        Some(evaluation) => *evaluation,
        // Accounts were turned off.
        None if line.prompts > 0 => Evaluation {
            prompt_tokens: line.prompt_tokens,
            reused: line.reused,
            evaluated: line.evaluated,
            ..Evaluation::default()
        },
        None => return None,
    };
    let ended = line.at.unix_ms();
    let first = line.time_to_first_token_seconds.unwrap_or(0.0);
    let generated = ((line.total_seconds - first).max(0.0) * 1000.0) as u64;
    Some(Evaluated {
        number,
        id: line.id,
        at: Timestamp::from_unix_ms(ended.saturating_sub(generated)),
        slot: line.slot.unwrap_or(-1),
        time_to_first_token_seconds: line.time_to_first_token_seconds,
        ended: Some(line.at),
        sections: line.sections,
        evaluation,
    })
}

/// Replaces ids by numbers, each by the same one wherever it is.
struct Names {
    keep: bool,
    known: HashMap<String, usize>,
}

impl Names {
    fn new(keep: bool) -> Self {
        Self {
            keep,
            known: HashMap::new(),
        }
    }

    fn id(&mut self, id: String) -> String {
        if self.keep {
            return id;
        }
        let next = self.known.len() + 1;
        let number = *self.known.entry(id).or_insert(next);
        format!("request-{number}")
    }

    fn name(&mut self, name: &mut RequestName) {
        if let RequestName::Id(id) = name {
            *id = self.id(std::mem::take(id));
        }
    }

    fn of_request(&mut self, request: &mut Evaluated) {
        request.id = request.id.take().map(|id| self.id(id));
        request.evaluation.title = None;
        if let Some(Diverged { request, text, .. }) = &mut request.evaluation.diverged {
            if let Some(name) = request {
                self.name(name);
            }
            *text = None;
        }
        if let Some(Lost { by: Some(by), .. }) = &mut request.evaluation.lost {
            self.name(by);
        }
    }
}

#[cfg(test)]
mod tests;
