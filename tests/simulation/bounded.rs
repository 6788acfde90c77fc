//! The prefix store below models whose cache cannot go back to any position, simulated from recordings without a store: sliding
//! windows, a recurrent state, and both kinds of layers.

use contextpilot_client::Control;
use contextpilot_simulate::{Outcome, Setting, simulate};
use contextpilot_testbed::{Arch, Builder, Error, Model, Request, Result, Server, Step, Trace};
use contextpilot_traffic::{RequestRecord, Traffic};

use crate::page;
use crate::prompts::text;
use crate::recorded::record_with;
use crate::sessions::with_store;
use crate::store::await_store;
use crate::traffic;

/// How far the simulated share of tokens that are not evaluated may be off.
const TOLERANCE: f64 = 0.02;
/// A budget that holds all, bytes.
const ENOUGH: u64 = 1_000_000_000;

/// What is asked of a server, and with which flags.
struct Course {
    name: &'static str,
    flags: &'static [&'static str],
    /// Asks, and returns what was asked.
    ask: fn(&Server, usize) -> Result<Trace>,
    /// A budget that does not hold all, bytes: for windows, a recurrent state, and both kinds of layers.
    little: [u64; 3],
}

const KINDS: [(&str, Arch); 3] = [
    ("sliding window", Arch::Gemma2),
    ("recurrent", Arch::Mamba),
    ("hybrid", Arch::Jamba),
];

fn courses() -> [Course; 3] {
    [
        Course {
            name: "agents, chats",
            flags: &["-c", "8192", "--parallel", "2", "--cache-ram", "0"],
            ask: |server, requests| traffic::play(server, 11, requests),
            little: [3_000_000, 3_000_000, 3_000_000],
        },
        Course {
            name: "agents, chats; with a host cache",
            flags: &["-c", "8192", "--parallel", "2", "--cache-ram", "1"],
            ask: |server, requests| traffic::play(server, 12, requests),
            little: [3_000_000, 3_000_000, 3_000_000],
        },
        Course {
            name: "long prompts",
            flags: &[
                "-c",
                "12288",
                "--parallel",
                "1",
                "--cache-ram",
                "0",
                "-b",
                "512",
                "-ub",
                "128",
            ],
            ask: |server, requests| {
                let trace = long_prompts(requests / 4);
                trace.run(server)?;
                Ok(trace)
            },
            little: [6_000_000, 1_500_000, 6_000_000],
        },
    ]
}

/// Three conversations about long texts, which turn off at several places, also within a text.
fn long_prompts(requests: usize) -> Trace {
    (0..requests).fold(Trace::new(), |trace, nth| {
        let about = nth as u64 % 3;
        let kept = match nth / 3 % 4 {
            0 | 2 => 6000,
            1 => 5100,
            _ => 3000 + 37 * nth,
        };
        let own = text(100 + nth as u64 / 6, 300 + 40 * nth);
        let prompt = format!("{}{own}", &text(1 + about, 6000)[..kept]);
        trace.then(Step::Ask(Request::completion(prompt).predict(8)))
    })
}

/// Of each kind and course: the rows of the table in docs/simulate.md, and how many of them are too far off.
pub(super) fn run(requests: usize) -> Result<(String, usize)> {
    let (mut rows, mut missed) = (String::new(), 0);
    for (nth, (kind, arch)) in KINDS.into_iter().enumerate() {
        for course in courses() {
            let server = Server::builder().model(&Model::tiny(arch));
            let server = server.args(course.flags);
            let mut trace = Trace::new();
            let traffic = record_with(&server, |server| {
                trace = (course.ask)(server, requests)?;
                Ok(())
            })?;
            let recorded = Setting::recorded(&traffic);
            let recorded =
                recorded.ok_or_else(|| Error::new("the recording says nothing of the server"))?;
            let name = |budget| (kind, course.name, budget);
            missed += row(&mut rows, name(0), &traffic, &traffic, &recorded);
            for budget in [ENOUGH, course.little[nth]] {
                let truth = played(&server, &trace, budget)?;
                let setting = Setting {
                    store_limit: budget,
                    ..recorded.clone()
                };
                missed += row(&mut rows, name(budget), &traffic, &truth, &setting);
            }
        }
    }
    Ok((rows, missed))
}

/// What a server with such a store records of these prompts.
fn played(server: &Builder, trace: &Trace, budget: u64) -> Result<Traffic> {
    let folder = tempfile::tempdir()?;
    let server = with_store(server.clone(), &folder.path().join("store"), budget);
    let server = server.env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
    record_with(&server, |server| {
        let control = server.await_control()?.to_string();
        await_store(&Control::new(&control).map_err(|error| Error::new(error.to_string()))?);
        trace.run(server).map(|_| ())
    })
}

/// Adds a row. 1: it is too far off.
fn row(
    rows: &mut String,
    (kind, course, budget): (&str, &str, u64),
    traffic: &Traffic,
    truth: &Traffic,
    setting: &Setting,
) -> usize {
    let point = simulate(traffic, setting);
    let records = || truth.requests.iter().map(|request| &request.record);
    let sum = |of: fn(&RequestRecord) -> u32| records().map(|one| u64::from(of(one))).sum::<u64>();
    let (prompts, computed) = (sum(|one| one.prompt), sum(RequestRecord::computed));
    let engine = 1.0 - computed as f64 / prompts as f64;
    let off = point.spared_share() - engine;
    let outcomes = || records().zip(&point.outcomes);
    let is_exact = |(record, outcome): &(&RequestRecord, &Option<Outcome>)| {
        outcome.is_some_and(|one| one.evaluated == record.computed())
    };
    let exact = outcomes().filter(is_exact).count();
    if std::env::var_os("SHOW").is_some() {
        for (nth, one) in outcomes().enumerate().filter(|(_, one)| !is_exact(one)) {
            let (record, outcome) = one;
            println!(
                "  {nth}: engine {}, {} in slot {}, simulated {:?}; {} tokens",
                record.reused,
                record.loaded,
                record.slot,
                outcome.map(|one| (one.reused, one.loaded, one.slot)),
                record.prompt,
            );
        }
    }
    let bad = off.abs() > TOLERANCE || prompts != point.prompt_tokens;
    let row = format!(
        "| {kind} | {course} | {} | {computed} | {} | {:.1} | {exact} of {} |",
        match budget {
            0 => "none".to_owned(),
            bytes => format!("{} MB", bytes as f64 / 1e6),
        },
        point.evaluated_tokens,
        100.0 * engine,
        truth.requests.len(),
    );
    page::add_row(rows, &row, bad, &format!(" {:+.1}", 100.0 * off));
    usize::from(bad)
}
