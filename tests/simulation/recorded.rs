//! The simulator at the recorded setting, compared with the engine.

use contextpilot_simulate::{Point, Setting, simulate};
use contextpilot_testbed::{Builder, Completion, Error, Outcome, Result, Server, Step, Trace};
use contextpilot_traffic::{RequestRecord, Traffic, TrafficRequest, read};

use crate::cases::Case;

pub(crate) const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
pub(crate) const SIGTERM: i32 = 15;

/// How far the simulated share of reused tokens may be off if requests are not sequential.
pub(crate) const TOLERANCE: f64 = 0.01;

/// Reused and evaluated tokens of a prompt.
type Figures = (usize, usize);

/// Returns a text that says how much was compared.
pub(crate) fn compare(case: &Case) -> Result<String> {
    let (outcomes, traffic) = record(&case.server, &case.trace)?;
    if let Some(damage) = traffic.damage {
        return Err(Error::new(damage.to_string()));
    }
    let setting = Setting::recorded(&traffic);
    let setting = setting.ok_or_else(|| Error::new("the recording says nothing of the server"))?;
    let point = simulate(&traffic, &setting);
    if !is_sequential(case) {
        return in_all(&outcomes, &traffic, &point);
    }
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
        let mut recorded: Vec<Figures> = requests.iter().map(figures).collect();
        let mut simulated: Vec<Figures> = point.outcomes[next..end]
            .iter()
            .map(|outcome| outcome.map_or((0, 0), |o| (o.reused as usize, o.evaluated as usize)))
            .collect();
        for figures in [&mut engine, &mut recorded, &mut simulated] {
            figures.sort_unstable();
        }
        wrong += &answers(step, outcome, requests);
        if engine != recorded || engine != simulated {
            wrong += &format!(
                "\n  step {step}: engine {engine:?}, recorded {recorded:?}, simulated {simulated:?}"
            );
        }
        next = end;
    }
    if wrong.is_empty() {
        Ok(format!("{next} prompts"))
    } else {
        Err(Error::new(format!(
            "(reused, evaluated){wrong}\n  {setting:?}\n  {:?}",
            traffic.changes
        )))
    }
}

/// Whether the recording has all tokens of the answers to one step but the last of each, which is not evaluated: also those that were
/// drafted, and none that were guessed wrongly. Empty if so.
fn answers(step: usize, outcome: &Outcome, requests: &[TrafficRequest]) -> String {
    let told = outcome.completions.iter();
    let told = told.map(|completion| completion.raw["timings"]["predicted_n"].as_u64());
    let Some(mut told) = told.collect::<Option<Vec<u64>>>() else {
        return String::new();
    };
    let mut recorded: Vec<u64> = requests
        .iter()
        .map(|request| u64::from(request.generated()) + 1)
        .collect();
    for counts in [&mut told, &mut recorded] {
        counts.sort_unstable();
    }
    // What a draft has guessed rightly behind the end of an answer stays in the slot.
    let may_be_more = outcome.completions.iter().any(ends_within_a_draft);
    let is_more = || may_be_more && told.iter().zip(&recorded).all(|(told, more)| told <= more);
    if told == recorded || told.len() == recorded.len() && is_more() {
        String::new()
    } else {
        format!("\n  step {step}: {told:?} tokens were generated, recorded {recorded:?}")
    }
}

/// Whether the server drafted for an answer that ended by a token, and not by its length.
fn ends_within_a_draft(completion: &Completion) -> bool {
    let raw = &completion.raw;
    let is_cut = raw["stop_type"] == "limit" || raw["choices"][0]["finish_reason"] == "length";
    !is_cut && raw["timings"]["draft_n"].as_u64() > Some(0)
}

/// Whether each request is sent after the answer to the one before.
fn is_sequential(case: &Case) -> bool {
    !case.trace.steps.iter().any(|step| {
        let goes_on = matches!(step, Step::Begin(_) | Step::Queue(_) | Step::Release);
        // How far the server gets with an abandoned answer depends on chance.
        goes_on || matches!(step, Step::Abandon(..))
    })
}

/// Compares recording and simulation as a whole. Clients that leave do not learn how much was reused;
/// the recording has it. The figures of all other answers must be in the recording.
fn in_all(outcomes: &[Outcome], traffic: &Traffic, point: &Point) -> Result<String> {
    let mut recorded: Vec<Figures> = traffic.requests.iter().map(figures).collect();
    let heard = outcomes.iter().flat_map(|outcome| &outcome.completions);
    for completion in heard {
        let figures = (completion.cache_n, completion.prompt_n);
        let at = recorded.iter().position(|one| *one == figures);
        let at = at.ok_or_else(|| Error::new(format!("{figures:?} was not recorded")))?;
        recorded.remove(at);
    }
    let sum = |of: fn(&RequestRecord) -> u32| -> u64 {
        let all = traffic.requests.iter();
        all.map(|request| u64::from(of(&request.record))).sum()
    };
    let tokens = sum(|record| record.prompt);
    let engine = sum(|record| record.reused) as f64 / tokens as f64;
    let simulated = point.reused_share();
    let prompts = traffic.requests.len();
    if tokens > 0 && (simulated - engine).abs() <= TOLERANCE {
        Ok(format!(
            "{prompts} prompts in all: engine {:.1} %, simulated {:.1} %",
            100.0 * engine,
            100.0 * simulated
        ))
    } else {
        Err(Error::new(format!(
            "{prompts} prompts of {tokens} tokens: engine {engine}, simulated {simulated}"
        )))
    }
}

fn figures(request: &TrafficRequest) -> Figures {
    let record = &request.record;
    (record.reused as usize, record.evaluated as usize)
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

/// What a server records while `play` sends requests to it.
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
