//! The simulator at the recorded setting, against the engine.

use contextpilot_simulate::{Setting, simulate};
use contextpilot_testbed::{Builder, Error, Outcome, Result, Server, Step, Trace};
use contextpilot_traffic::{Traffic, read};

use crate::cases::Case;

pub(crate) const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
pub(crate) const SIGTERM: i32 = 15;

pub(crate) enum Verdict {
    /// So many prompts.
    Equal(usize),
    LeftOut(String),
}

/// Reused and evaluated tokens of a prompt.
type Figures = (usize, usize);

pub(crate) fn compare(case: &Case) -> Result<Verdict> {
    if let Some(why) = unfit(case) {
        return Ok(Verdict::LeftOut(why.to_owned()));
    }
    if let Some(lacking) = case.server.lacking() {
        return Ok(Verdict::LeftOut(format!("no {lacking}")));
    }
    let (outcomes, traffic) = record(&case.server, &case.trace)?;
    if let Some(damage) = traffic.damage {
        return Err(Error::new(damage.to_string()));
    }
    let setting = Setting::recorded(&traffic);
    let setting = setting.ok_or_else(|| Error::new("the recording says nothing of the server"))?;
    let point = simulate(&traffic, &setting);
    let mut next = 0;
    let mut wrong = String::new();
    for (step, outcome) in outcomes.iter().enumerate() {
        let mut engine: Vec<Figures> = outcome
            .completions
            .iter()
            .map(|completion| (completion.cache_n, completion.prompt_n))
            .collect();
        let end = next + engine.len();
        let Some(requests) = traffic.requests.get(next..end) else {
            return Err(Error::new(format!(
                "step {step}: {} prompts were recorded in all",
                traffic.requests.len()
            )));
        };
        let mut recorded: Vec<Figures> = requests
            .iter()
            .map(|request| {
                (
                    request.record.reused as usize,
                    request.record.evaluated as usize,
                )
            })
            .collect();
        let mut simulated: Vec<Figures> = point.outcomes[next..end]
            .iter()
            .map(|outcome| outcome.map_or((0, 0), |o| (o.reused as usize, o.evaluated as usize)))
            .collect();
        for figures in [&mut engine, &mut recorded, &mut simulated] {
            figures.sort_unstable();
        }
        if engine != recorded || engine != simulated {
            wrong += &format!(
                "\n  step {step}: engine {engine:?}, recorded {recorded:?}, simulated {simulated:?}"
            );
        }
        next = end;
    }
    match wrong.is_empty() {
        true => Ok(Verdict::Equal(next)),
        false => Err(Error::new(format!(
            "(reused, evaluated){wrong}\n  {setting:?}"
        ))),
    }
}

/// What is not traffic of clients that wait for their answers.
fn unfit(case: &Case) -> Option<&'static str> {
    case.trace.steps.iter().find_map(|step| match step {
        Step::Abandon(..) => Some("how far an abandoned answer goes is up to chance"),
        Step::Begin(_) | Step::Queue(_) | Step::Release => Some("its requests are not sequential"),
        _ => None,
    })
}

/// Plays a trace to a server that records it.
fn record(server: &Builder, trace: &Trace) -> Result<(Vec<Outcome>, Traffic)> {
    let mut outcomes = Vec::new();
    let traffic = record_with(server, |server| {
        outcomes = trace.run(server)?;
        Ok(())
    })?;
    Ok((outcomes, traffic))
}

/// What a server records while something is done to it.
pub(crate) fn record_with(
    server: &Builder,
    play: impl FnOnce(&Server) -> Result<()>,
) -> Result<Traffic> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("traffic");
    let mut server: Server = server
        .clone()
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_TRAFFIC_FILE", &path)
        .spawn()?;
    play(&server)?;
    server.stop(SIGTERM)?;
    let bytes = std::fs::read(&path)
        .map_err(|error| Error::new(format!("{error}\n{}", server.stderr())))?;
    Ok(read(&bytes))
}
