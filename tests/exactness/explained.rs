//! Are the causes of evaluated tokens right, to the token?
//!
//! Runs the traces of the test `exactness`, each on a server with a control endpoint and no index.
//! After each answered request, its `evaluation` must have the engine's own figures (`cache_n`,
//! `prompt_n`), and its causes must add up to them. No token may have the cause `not_known`.
//!
//! Each trace is run again on a copy of the server whose own functions are hidden. There the hook ties
//! requests to slots by their prompts. The causes must be the same.
//!
//! ```text
//! cargo test --test explained [-- NAME...]
//! ```

#[allow(dead_code, reason = "some of it is for the other test")]
mod cases;
mod causes;
#[allow(dead_code, reason = "some of it is for the other test")]
mod prompts;
mod verbose;

use cases::Case;
use contextpilot_control::{Causes, Evaluated, Latest};
use contextpilot_testbed::{
    Completion, Connection, Error, Outcome, Result, Tally, Unseen, unseen_server,
};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
/// How long to wait for something that must happen. Only a failure takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let every_log = std::env::args().any(|argument| argument == "--every-log");
    let matches = |name: &str| {
        wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str()))
    };
    let unseen = match unseen_server(Unseen::Nameless) {
        Ok(unseen) => unseen,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let traces = cases::all().into_iter().map(|case| (None, case));
    let causes = causes::all().into_iter();
    let causes = causes.map(|shown| (Some(shown.cause), shown.case));
    let mut total = Total::default();
    let mut total_by_prompts = Total::default();
    let mut results = Tally::default();
    for (cause, case) in traces.chain(causes).filter(|(_, case)| matches(case.name)) {
        match lacking(&case) {
            Ok(None) => {}
            Ok(Some(why)) => {
                results.skip(case.name, &why);
                continue;
            }
            Err(error) => {
                results.note(case.name, Err(error));
                continue;
            }
        }
        let by_prompts = unseen
            .as_deref()
            .map(|server| (" by prompts", Some(server)));
        let mut first = None;
        for (how, server) in [("", None)].into_iter().chain(by_prompts) {
            let done = run(&case, server, cause);
            if let Ok(of_case) = &done {
                let total = match server {
                    None => &mut total,
                    Some(_) => &mut total_by_prompts,
                };
                total.add(of_case);
            }
            let done = done.map(|of_case| of_case.text());
            let same = |other: String| match first.get_or_insert_with(|| other.clone()) {
                first if *first == other || is_up_to_chance(&case) => Ok(other),
                first => Err(Error::new(format!(
                    "{other}; where launches are seen: {first}"
                ))),
            };
            results.note(&format!("{}{how}", case.name), done.and_then(same));
        }
    }
    // The log of older servers has other texts.
    let ours = std::env::var_os("LLAMA_SERVER_BIN").is_none_or(|_| every_log);
    let runs = verbose::all();
    for run in runs.iter().filter(|run| ours && matches(run.name)) {
        let done = run.compare().map(|compared| compared.text());
        results.note(run.name, done);
    }
    println!("\nall: {}", total.text());
    if unseen.is_some() {
        println!("by prompts: {}", total_by_prompts.text());
    }
    results.end()
}

/// Whether some clients leave during the trace. How much is evaluated for them depends on chance.
fn is_up_to_chance(case: &Case) -> bool {
    let mut steps = 0..case.trace.steps.len();
    steps.any(|step| case.is_abandoned(step))
}

/// What this server lacks for a case.
fn lacking(case: &Case) -> Result<Option<String>> {
    if let Some(flag) = case.server.lacking() {
        return Ok(Some(format!("no {flag}")));
    }
    if case.host_cache && !case.server.has_host_cache() {
        return Ok(Some("no host prompt cache".to_owned()));
    }
    let other_server = std::env::var_os("LLAMA_SERVER_BIN").is_some();
    let unknown = other_server && !case.server.knows_model()?;
    Ok(unknown.then(|| "no model of this kind".to_owned()))
}

/// Evaluated tokens and their causes, summed over requests.
#[derive(Default)]
struct Total {
    requests: u64,
    evaluated: u64,
    causes: Causes,
}

impl Total {
    fn note(&mut self, one: &Evaluated) {
        self.requests += 1;
        self.evaluated += one.evaluation.evaluated;
        self.causes.add(one.evaluation.causes);
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.evaluated += other.evaluated;
        self.causes.add(other.causes);
    }

    fn text(&self) -> String {
        let mut text = format!("{} requests, {} tokens", self.requests, self.evaluated);
        for (cause, tokens) in self.causes.all() {
            if tokens > 0 {
                text += &format!(", {cause} {tokens}");
            }
        }
        text
    }
}

/// Runs a case, on another server if one is given. `cause`: a cause that must occur.
fn run(case: &Case, program: Option<&Path>, cause: Option<&str>) -> Result<Total> {
    let mut hooked = case.server.clone().launcher(LAUNCHER);
    if let Some(program) = program {
        hooked = hooked.program(program);
    }
    hooked = hooked.env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
    if let Some(file) = std::env::var_os("EXPLAINED_TRACE") {
        hooked = hooked.env("CONTEXTPILOT_TRACE_FILE", file);
    }
    let server = hooked.spawn()?;
    let control = server.await_control()?;
    let mut last = 0;
    let mut problems = Vec::new();
    let mut step = 0;
    case.trace.run_watched(&server, |outcome| {
        if !outcome.completions.is_empty() {
            match await_next(control, last, outcome.id.as_deref()) {
                Ok(told) => {
                    last = told.number;
                    problems.extend(compare(step, outcome, &told));
                }
                Err(error) => problems.push(format!("step {step}: {error}")),
            }
        }
        step += 1;
        Ok(())
    })?;
    let mut total = Total::default();
    for one in latest(control, 10_000)?.requests {
        total.note(&one);
        let evaluation = &one.evaluation;
        let from = evaluation.from;
        let sources = from.slot + from.host + from.checkpoint + from.moved;
        let adds_up = evaluation.causes.sum() == evaluation.evaluated
            && sources == evaluation.reused
            && evaluation.reused + evaluation.evaluated == evaluation.prompt_tokens;
        if !adds_up {
            problems.push(format!("does not add up: {one:?}"));
        }
        if evaluation.causes.not_known > 0 && cause != Some("not_known") {
            problems.push(format!("not known: {one:?}"));
        }
    }
    if std::env::var_os("EXPLAINED_SHOW").is_some() {
        for one in latest(control, 10_000)?.requests.iter().rev() {
            println!("{}", serde_json::to_string(one).unwrap_or_default());
        }
    }
    let causes = total.causes.all();
    if let Some(cause) = cause.filter(|cause| !causes.iter().any(|(c, n)| c == cause && *n > 1)) {
        problems.push(format!("{cause} is not told: {}", total.text()));
    }
    if problems.is_empty() {
        return Ok(total);
    }
    Err(Error::new(problems.join("\n  ")))
}

/// Compares the evaluation that the hook reports with the engine's figures. Returns the difference.
fn compare(step: usize, outcome: &Outcome, told: &Evaluated) -> Option<String> {
    let sum = |of: fn(&Completion) -> usize| -> u64 {
        outcome.evaluated().iter().map(|one| of(one) as u64).sum()
    };
    let (reused, evaluated) = (sum(|one| one.cache_n), sum(|one| one.prompt_n));
    let evaluation = &told.evaluation;
    let same = (evaluation.reused, evaluation.evaluated) == (reused, evaluated);
    let named = told.id == outcome.id;
    (!same || !named).then(|| {
        format!(
            "step {step}: the engine says {reused} + {evaluated} for {:?}: {told:?}",
            outcome.id
        )
    })
}

/// Waits for a request that was evaluated after number `last` and has this id. If none comes in time,
/// returns the newest other one.
fn await_next(control: SocketAddr, last: u64, id: Option<&str>) -> Result<Evaluated> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let latest = latest(control, 1)?.requests.pop();
        let next = latest.filter(|one| one.number > last);
        let is_late = Instant::now() > deadline;
        match next {
            Some(next) if next.id.as_deref() == id || is_late => return Ok(next),
            None if is_late => return Err(Error::new("nothing is told of it")),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn latest(control: SocketAddr, most: usize) -> Result<Latest> {
    let mut connection = Connection::open(control)?;
    let target = format!("/requests/last?n={most}");
    let response = connection.exchange("GET", &target, b"")?;
    let text = response.text();
    serde_json::from_str(&text).map_err(|error| Error::new(format!("{error} in {text}")))
}
