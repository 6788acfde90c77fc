//! Is what the hook says what the engine would answer?
//!
//! Every case is a trace of requests. It is run once on a real llama-server
//! under the launcher, with an index that listens. Then the engine is asked for
//! the truth: which of the prompts would it have to compute again? (See
//! `contextpilot_testbed::truth`.) Nothing may be missed and nothing may be
//! reported falsely. The answers must be those of a server without the hook.
//!
//! Writes its result to `docs/exactness.md`.
//!
//! ```text
//! cargo test --test exactness [-- NAME...]
//! ```
//!
//! Some are looked at after each of their steps, and all with `--every-moment`: see `moments`.
//!
//! Each is then run on a copy of the server whose own functions are hidden: see `by_prompts`.
//!
//! With `LLAMA_SERVER_BIN`, the same of an older server: cases that need a flag
//! or an endpoint that it does not have are left out, and nothing is written.

mod by_prompts;
mod cases;
mod moments;
mod prompts;

use cases::Case;
use contextpilot_testbed::{Index, Outcome, Score, Unseen, truth, unseen_server};
use moments::Comparison;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
/// How long an eviction may take to arrive before it counts as missed.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to listen for evictions that ought not to come. The ledger waits
/// 100 ms of silence at most before it decides anything.
const LISTEN: Duration = Duration::from_millis(250);

enum Verdict {
    Known(Box<Known>),
    /// The server does not have what the case needs.
    DoesNotApply(String),
}

/// What came of a case.
#[derive(Default)]
struct Known {
    score: Score,
    /// The same where requests are tied by their prompts.
    by_prompts: Option<Score>,
    /// After each step, if it was looked at so.
    moments: Option<Comparison>,
    problem: Option<String>,
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let every_moment = std::env::args().any(|argument| argument == "--every-moment");
    let mut all = cases::all();
    moments::choose(&mut all, every_moment);
    let chosen: Vec<&Case> = all
        .iter()
        .filter(|case| {
            wanted.is_empty() || wanted.iter().any(|name| case.name.contains(name.as_str()))
        })
        .collect();
    let unseen = match unseen_server(Unseen::Nameless) {
        Ok(unseen) => unseen,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut rows, mut rows_of_moments) = (Vec::new(), Vec::new());
    let mut total = Score::default();
    let mut total_of_moments = Comparison::default();
    let mut total_by_prompts = Score::default();
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    for case in &chosen {
        let started = Instant::now();
        let known = match run(case, unseen.as_deref()) {
            Ok(Verdict::Known(known)) => *known,
            Ok(Verdict::DoesNotApply(lacking)) => {
                left_out += 1;
                println!("test {} ... left out: no {lacking}", case.name);
                continue;
            }
            Err(error) => Known {
                problem: Some(error.to_string()),
                ..Known::default()
            },
        };
        let Known {
            score,
            by_prompts,
            moments,
            problem,
        } = known;
        let good = problem.is_none() && score.is_perfect();
        println!(
            "test {} ... {} ({:.1} s)",
            case.name,
            if good { "ok" } else { "FAILED" },
            started.elapsed().as_secs_f32()
        );
        if good {
            passed += 1;
        } else {
            failed += 1;
            println!("  {score:?}");
            println!("  {}", problem.unwrap_or_default());
        }
        rows.push(score.row(case.name));
        total.add(case.name, &score);
        total_by_prompts.add(case.name, &by_prompts.unwrap_or_default());
        if let Some(moments) = moments {
            rows_of_moments.push(moments.row(case.name));
            total_of_moments.add(&moments);
        }
    }
    let ours = std::env::var_os("LLAMA_SERVER_BIN").is_none();
    if ours && wanted.is_empty() && !every_moment && failed == 0 && left_out == 0 {
        let mut more = by_prompts::page(&total_by_prompts);
        more += &moments::page(&rows_of_moments, &total_of_moments);
        write_table(&rows, &total, &more);
    }
    println!("\n{}", total.row("**all**"));
    if total_of_moments.moments > 0 {
        println!("{}", total_of_moments.row("at every moment"));
    }
    if unseen.is_some() {
        println!("{}", total_by_prompts.row("by prompts"));
    }
    println!("{passed} passed, {failed} failed, {left_out} left out");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(case: &Case, unseen: Option<&Path>) -> contextpilot_testbed::Result<Verdict> {
    if let Some(flag) = case.server.lacking() {
        return Ok(Verdict::DoesNotApply(flag));
    }
    if case.host_cache && !case.server.has_host_cache() {
        return Ok(Verdict::DoesNotApply("host prompt cache".into()));
    }
    let other_server = std::env::var_os("LLAMA_SERVER_BIN").is_some();
    if other_server {
        let Ok(plain) = case.server.plain().spawn() else {
            return Ok(Verdict::DoesNotApply("model of this kind".into()));
        };
        if case.trace.run(&plain).is_err() {
            return Ok(Verdict::DoesNotApply("answer without the hook".into()));
        }
    }
    let index = Index::start()?;
    let hooked = case
        .server
        .clone()
        .launcher(LAUNCHER)
        .index_url(index.url());
    let server = hooked.spawn()?;
    let answers = case.trace.run(&server).inspect_err(|_| {
        let said = server.stderr();
        let from = said.lines().count().saturating_sub(12);
        println!("with the hook, the server said last:");
        said.lines()
            .skip(from)
            .for_each(|line| println!("  {line}"));
    })?;
    if let Some(path) = unknown_endpoint(case, &answers) {
        return Ok(Verdict::DoesNotApply(path));
    }
    // At once: the truth takes many replays, most of whose time is waiting.
    let (moments, by_prompts) = std::thread::scope(|scope| {
        let run = unseen.map(|server| scope.spawn(move || by_prompts::run(case, server)));
        let gone = gone(case);
        let run = run.map(|run| run.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        (gone, run)
    });
    let moments = moments?;
    let gone = moments.last().map(|(_, gone)| gone.clone());
    let gone = gone.unwrap_or_default();
    index.wait_until(|evicted| evicted.is_superset(&gone), PATIENCE);
    std::thread::sleep(LISTEN);
    let ids: BTreeSet<String> = case.trace.ids().into_iter().collect();
    let score = Score::of(&ids, &gone, &index.evicted());

    let mut problem = None;
    let twice: Vec<String> =
        index
            .reports()
            .into_iter()
            .fold(Vec::new(), |mut seen: Vec<String>, id| {
                seen.push(id);
                seen
            });
    let distinct = index.evicted().len();
    if twice.len() != distinct {
        problem = Some(format!("{} reports of {distinct} ids", twice.len()));
    }
    let plain = case.server.plain().spawn()?;
    for (number, (ours, theirs)) in answers.iter().zip(case.trace.run(&plain)?).enumerate() {
        if ours.timeless() != theirs.timeless() && !case.is_abandoned(number) {
            problem = Some(format!(
                "step {number} was answered {}, without the hook {}",
                ours.timeless(),
                theirs.timeless()
            ));
        }
    }
    if let Some(least) = case.gone_at_least {
        // How much falls out is the server's business; the cases are made for one.
        if gone.len() < least && !other_server {
            problem = Some(format!(
                "only {} of {} ids are gone: the case does not show what it should",
                gone.len(),
                ids.len()
            ));
        }
    }
    let mut comparison = None;
    if case.every_moment {
        let (ours, other) = moments::judge(case, &moments, unseen)?;
        comparison = Some(ours);
        problem = problem.or(other);
    }
    if problem.is_some() || !score.is_perfect() {
        println!(
            "{}",
            server
                .stderr()
                .lines()
                .filter(|line| line.contains("[ContextPilot]"))
                .collect::<Vec<_>>()
                .join("\n")
        );
    }
    let mut known = None;
    if let Some(run) = by_prompts {
        let (score, other) = by_prompts::judge(case, &run?, &gone, &answers);
        known = Some(score);
        problem = problem.or(other.map(|other| format!("by prompts: {other}")));
    }
    Ok(Verdict::Known(Box::new(Known {
        score,
        by_prompts: known,
        moments: comparison,
        problem,
    })))
}

/// Of a request that should have been answered. Only a server that the cases were not written
/// for has less than they need.
fn unknown_endpoint(case: &Case, answers: &[Outcome]) -> Option<String> {
    std::env::var_os("LLAMA_SERVER_BIN")?;
    let mut steps = case.trace.steps.iter().zip(answers);
    steps.find_map(|(step, outcome)| {
        let unknown = [404, 501].contains(&outcome.response.status);
        let path = step.request().map(|request| request.path().to_owned());
        path.filter(|_| unknown)
    })
}

/// The ids that are gone at the end or, where prompts return or each moment counts, were so after
/// each step.
fn gone(case: &Case) -> contextpilot_testbed::Result<moments::Moments> {
    match case.prompts_return || case.every_moment {
        true => moments::gone(case),
        false => {
            let gone = truth(&case.trace, &case.server)?.gone();
            Ok(vec![(case.trace.steps.len(), gone)])
        }
    }
}

fn write_table(rows: &[String], total: &Score, more: &str) {
    let mut text = String::from(
        "# Exactness\n\n\
         Written by `cargo test --test exactness`. A trace is a fixed sequence of requests. Each row is a\n\
         trace, run against a real llama-server under the launcher. *Gone* is the truth: the engine's own\n\
         `cache_n` when the trace is replayed on a plain server and each prompt is sent again. *Missed* and\n\
         *false* compare that with the evictions that were reported to the index.\n\n",
    );
    text.push_str(Score::HEAD);
    for row in rows.iter().chain([&total.row("**all**")]) {
        text.push('\n');
        text.push_str(row);
    }
    text.push('\n');
    text += more;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/exactness.md");
    // Only when it says something new: a checkout stays clean.
    if std::fs::read_to_string(path).ok().as_deref() != Some(&text) {
        if let Err(error) = std::fs::write(path, text) {
            println!("cannot write {path}: {error}");
        }
    }
}
