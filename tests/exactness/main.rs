//! Are exactly the evicted requests reported?
//!
//! Every case is a trace of requests. It is run once on a real llama-server under the
//! launcher, with an index. Then the truth is determined on plain servers: which
//! prompts would the engine have to evaluate again? (See
//! `contextpilot_testbed::truth`.) No eviction may be missed, and none may be false.
//! The answers must be those of a server without the hook.
//!
//! The test writes its result to `docs/exactness.md`.
//!
//! ```text
//! cargo test --test exactness [-- NAME...]
//! ```
//!
//! Some cases are checked after each step, and all of them with `--every-moment`: see `moments`.
//!
//! With `--store` the server has a prefix store. Then nothing is written, and answers may differ in the rounding
//! of numbers, so texts are not compared.
//!
//! With `CONTEXTPILOT_TEST_DRAFTS=draft-mtp` (or another kind) the server drafts in that way: see `cases::drafts`. Then
//! nothing is written, either.
//!
//! Each case is also run on a copy of the server whose own functions are hidden: see `by_prompts`.
//!
//! With `LLAMA_SERVER_BIN`, the test runs another server, such as an older one. Cases
//! that need a flag, an endpoint or a kind of model that this server lacks are skipped, and
//! nothing is written. A run in which no case passes fails.

mod by_prompts;
mod cases;
mod moments;
mod prompts;

use cases::Case;
use contextpilot_testbed::{Error, Index, Outcome, Score, Tally, Unseen, truth, unseen_server};
use moments::Comparison;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
/// How long an eviction may take to arrive before it counts as missed.
const PATIENCE: Duration = Duration::from_secs(60);

enum Verdict {
    Known(Box<Known>),
    /// The server lacks something that the case needs. The text says what.
    DoesNotApply(String),
}

/// The results of a case.
#[derive(Default)]
struct Known {
    score: Score,
    /// The score on a server where requests are tied by their prompts.
    by_prompts: Option<Score>,
    /// The comparison after each step, if there was one.
    moments: Option<Comparison>,
    problem: Option<String>,
}

/// Whether the server of each case has a prefix store.
fn has_store() -> bool {
    std::env::args().any(|argument| argument == "--store")
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
    let mut tally = Tally::default();
    for case in &chosen {
        let started = Instant::now();
        let known = match run(case, unseen.as_deref()) {
            Ok(Verdict::Known(known)) => *known,
            Ok(Verdict::DoesNotApply(lacking)) => {
                tally.skip(case.name, &lacking);
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
        let result = if problem.is_none() && score.is_perfect() {
            Ok(format!("{:.1} s", started.elapsed().as_secs_f32()))
        } else {
            Err(Error::new(format!(
                "{score:?}\n  {}",
                problem.unwrap_or_default()
            )))
        };
        tally.note(case.name, result);
        rows.push(score.row(case.name));
        total.add(case.name, &score);
        total_by_prompts.add(case.name, &by_prompts.unwrap_or_default());
        if let Some(moments) = moments {
            rows_of_moments.push(moments.row(case.name));
            total_of_moments.add(&moments);
        }
    }
    let ours = std::env::var_os("LLAMA_SERVER_BIN").is_none();
    let usual = !every_moment && !has_store() && cases::drafts::kind().is_none();
    if ours && wanted.is_empty() && usual && tally.is_complete() {
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
    tally.end()
}

fn run(case: &Case, unseen: Option<&Path>) -> contextpilot_testbed::Result<Verdict> {
    if let Some(flag) = case.server.lacking() {
        return Ok(Verdict::DoesNotApply(format!("no {flag}")));
    }
    if case.host_cache && !case.server.has_host_cache() {
        return Ok(Verdict::DoesNotApply("no host prompt cache".into()));
    }
    let other_server = std::env::var_os("LLAMA_SERVER_BIN").is_some();
    if other_server {
        if !case.server.knows_model()? {
            return Ok(Verdict::DoesNotApply("no model of this kind".into()));
        }
        if let Err(error) = case.trace.run(&case.server.plain().spawn()?) {
            let why = format!("no answer without the hook: {error}");
            return Ok(Verdict::DoesNotApply(why));
        }
    }
    let index = Index::start()?;
    let mut hooked = case
        .server
        .clone()
        .launcher(LAUNCHER)
        .index_url(index.url())
        .observed();
    let store = tempfile::tempdir()?;
    if has_store() {
        hooked = hooked.env("CONTEXTPILOT_STORE", store.path());
    }
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
        return Ok(Verdict::DoesNotApply(format!("no {path}")));
    }
    // In parallel: the truth takes many replays, which spend most of their time waiting.
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
    // A false report may come late.
    server.come_to_rest()?;
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
        if ours.timeless() != theirs.timeless() && !case.is_abandoned(number) && !has_store() {
            problem = Some(format!(
                "step {number} was answered {}, without the hook {}",
                ours.timeless(),
                theirs.timeless()
            ));
        }
    }
    if let Some(least) = case.gone_at_least {
        // Another server may evict less. The cases were written for one version.
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

/// The path of a request that another server answered with 404 or 501. `None` for the server that
/// the cases were written for.
fn unknown_endpoint(case: &Case, answers: &[Outcome]) -> Option<String> {
    std::env::var_os("LLAMA_SERVER_BIN")?;
    let mut steps = case.trace.steps.iter().zip(answers);
    steps.find_map(|(step, outcome)| {
        let unknown = [404, 501].contains(&outcome.response.status);
        let path = step.request().map(|request| request.path().to_owned());
        path.filter(|_| unknown)
    })
}

/// The evicted ids: at the end of the trace or, if prompts return or if each step is checked, after
/// each step.
fn gone(case: &Case) -> contextpilot_testbed::Result<moments::Moments> {
    if case.prompts_return || case.every_moment {
        moments::gone(case)
    } else {
        let gone = truth(&case.trace, &case.server)?.gone();
        Ok(vec![(case.trace.steps.len(), gone)])
    }
}

fn write_table(rows: &[String], total: &Score, more: &str) {
    let mut text = String::from(
        "# Exactness\n\n\
         Written by `cargo test --test exactness`. A trace is a fixed sequence of requests. Each row is a\n\
         trace, run against a real llama-server under the launcher. *Gone* is the truth: the engine's own\n\
         `cache_n` when the trace is replayed on a plain server and each prompt is sent again. *Missed* and\n\
         *false* compare that with the evictions that were reported to the index.\n\n\
         A prompt counts as cached while the engine would reuse all of it but the last token, which it\n\
         always evaluates again. A model with sliding windows, or a recurrent model, can go back only to\n\
         certain positions (checkpoints), so there nine tenths of the prompt are enough: as many tokens,\n\
         rounded up, but no more than all before the last one. It does not matter whether the engine still\n\
         holds the rest, or another prompt has taken its place. This limit is a convention, and the ledger\n\
         and the truth both have it: a reuse of 89 % counts as an eviction, one of 90 % as none.\n\n\
         A prompt that only the host prompt cache holds counts as cached. The server may skip it there: if the slot\n\
         that it chose by similarity keeps half of its content, it does not look. Then the prompt is evaluated again\n\
         (`why`: *in the host cache, not taken*), and was not evicted: the entry is still there, for the next prompt\n\
         whose slot keeps less. No trace below ends in that state.\n\n",
    );
    text.push_str(Score::HEAD);
    for row in rows.iter().chain([&total.row("**all**")]) {
        text.push('\n');
        text.push_str(row);
    }
    text.push('\n');
    text += more;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/exactness.md");
    // Write only if the text has changed, so that a checkout stays clean.
    if std::fs::read_to_string(path).ok().as_deref() != Some(&text) {
        if let Err(error) = std::fs::write(path, text) {
            println!("cannot write {path}: {error}");
        }
    }
}
