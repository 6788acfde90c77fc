//! The traces of the exactness test, run once with each of the contenders.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Index, Result, Score, Trace, truth};

use super::package::{Package, Visit, credited};
use super::polling::Watcher;
use crate::cases::{self, Case};
use crate::lab::{Lab, failed};
use crate::page::Page;

/// How long to wait for evictions that must come.
const PATIENCE: Duration = Duration::from_secs(30);
/// And for those that ought not to.
const LISTEN: Duration = Duration::from_millis(200);

/// Who is compared, in the order of the table.
const NAMES: [&str; 5] = [
    "this project",
    "the package's hook",
    "the package's hook, if somebody knew whose slot it is",
    "polling `/slots` as the package's watcher",
    "polling `/slots`, a new task taken for an eviction",
];

pub(super) fn compare(lab: &Lab, page: &mut Page, package: Option<&Package>) -> Result<()> {
    // Where a prompt returns, the truth would have to be asked for after every step.
    let cases: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| !case.prompts_return)
        .collect();
    let cases = match lab.quick {
        true => &cases[..1],
        false => &cases[..],
    };
    let mut scores: [Score; 5] = Default::default();
    for case in cases {
        let truth = truth(&case.trace, &case.server)?;
        let gone = truth.gone();
        let reported = reported(lab, case, package, &gone)?;
        for (score, reported) in scores.iter_mut().zip(reported) {
            score.add(case.name, &truth.score(&reported));
        }
    }
    if !scores[0].is_perfect() {
        return Err(failed(format!("this project erred: {}", scores[0])));
    }
    let mut table = String::from(
        "| | gone | reported | found | false | recall | precision |\n|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for (name, score) in NAMES.iter().zip(&scores) {
        if name.contains("hook") && package.is_none() {
            continue;
        }
        let precision = match score.reported {
            0 => "–".to_owned(),
            _ => format!("{:.2}", score.precision()),
        };
        table.push_str(&format!(
            "| {name} | {} | {} | {} | {} | {:.2} | {precision} |\n",
            score.gone,
            score.reported,
            score.gone - score.missed.len(),
            score.false_.len(),
            score.recall()
        ));
    }
    page.say(format!(
        "### What is found, on {} traces with {} ids",
        cases.len(),
        scores[0].ids
    ));
    page.say(
        "The traces of the [exactness test](exactness.md), each run with each contender on a server of\n\
         its own; *gone* is what the engine itself says on replay. The package's hook reports\n\
         `slot_N`, which the index does not know; the third row credits it with the last request\n\
         that was answered in that slot. Pollers look after every step of a trace, as if the half second\n\
         were always just over, and are told which slot each request went to.",
    );
    page.say(table);
    let [ours, _, hook, _, polling] = &scores;
    let others = match package {
        Some(_) => format!(
            "; the package's compiled hook {} (read with good will), polling at best {}, with {} false reports",
            hook.gone - hook.missed.len(),
            polling.gone - polling.missed.len(),
            polling.false_.len()
        ),
        None => String::new(),
    };
    page.in_short(
        "Exactness",
        &format!(
            "finds {} of {} evictions and reports {} falsely{others}.",
            ours.gone - ours.missed.len(),
            ours.gone,
            ours.false_.len()
        ),
    );
    Ok(())
}

/// What each contender reports of a trace.
fn reported(
    lab: &Lab,
    case: &Case,
    package: Option<&Package>,
    gone: &BTreeSet<String>,
) -> Result<[BTreeSet<String>; 5]> {
    let index = Index::start()?;
    let server = lab.hooked(&case.server, &index.url()).spawn()?;
    case.trace.run(&server)?;
    index.wait_until(|told| told.is_superset(gone), PATIENCE);
    thread::sleep(LISTEN);
    let ours = index.evicted();

    let (raw, mapped) = match package {
        Some(package) => by_package(package, case, &case.trace)?,
        None => Default::default(),
    };

    let server = case.server.plain().spawn()?;
    let mut watcher = Watcher::default();
    watcher.look(&server)?;
    case.trace.run_watched(&server, |outcome| {
        watcher.register(&server, outcome.id.as_deref()).map(drop)
    })?;
    watcher.look(&server)?;
    Ok([ours, raw, mapped, watcher.faithful, watcher.by_task])
}

/// What the package's hook posts, and what that could mean.
fn by_package(
    package: &Package,
    case: &Case,
    trace: &Trace,
) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let index = Index::start()?;
    let server = package.hooked(&case.server.plain(), &index.url()).spawn()?;
    // What it says about the trial run of the engine is no part of the trace.
    let before = index.posts().len();
    let mut watcher = Watcher::default();
    watcher.look(&server)?;
    let mut visits = Vec::new();
    trace.run_watched(&server, |outcome| {
        visits.push(Visit {
            slots: watcher.register(&server, None)?,
            end: Instant::now(),
            id: outcome.id.clone(),
        });
        Ok(())
    })?;
    thread::sleep(LISTEN);
    let posts = &index.posts()[before..];
    let raw = posts.iter().flat_map(|post| post.ids.clone()).collect();
    Ok((raw, credited(posts, &visits).into_iter().collect()))
}
