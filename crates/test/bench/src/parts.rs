//! What is measured, part by part. Each writes a section of the page.

mod generation;
mod instructions;
mod launch;
mod ledger;
mod memory;
mod opened;
mod routers;
mod serving;
mod signal;
mod store;
mod tokenizing;

use std::path::{Path, PathBuf};

use contextpilot_testbed::{Result, Sessions};

use crate::lab::Lab;
use crate::page::Page;

pub(crate) use store::Rows;

type Part = Box<dyn Fn(&Lab, &mut Page) -> Result<()>>;

/// All parts, by the names under which they can be asked for, in the order of the page.
pub(crate) fn all(
    ledger: Option<&Path>,
    sessions: Sessions,
    rows: Rows,
    also: &[PathBuf],
) -> Vec<(&'static str, Part)> {
    let ledger = ledger.map(Path::to_owned);
    let restarted = sessions.clone();
    let (also, windowed) = (also.to_vec(), also.to_vec());
    vec![
        ("launch", Box::new(launch::run)),
        ("opened", Box::new(opened::run)),
        ("instructions", Box::new(instructions::run)),
        ("generation", Box::new(generation::run)),
        ("serving", Box::new(serving::run)),
        ("routers", Box::new(routers::run)),
        ("signal", Box::new(signal::run)),
        (
            "ledger",
            Box::new(move |_, page| ledger::run(ledger.as_deref(), page)),
        ),
        ("memory", Box::new(memory::run)),
        ("tokenizing", Box::new(tokenizing::run)),
        (
            "sessions",
            Box::new(move |lab, page| store::sessions(&sessions, &rows, lab, page)),
        ),
        (
            "restarts",
            Box::new(move |lab, page| store::restarts(&restarted, lab, page)),
        ),
        (
            "resumed",
            Box::new(move |lab, page| store::resumed(&also, lab, page)),
        ),
        ("store", Box::new(store::prompts)),
        (
            "windows",
            Box::new(move |lab, page| store::windows(&windowed, lab, page)),
        ),
        ("neighbour", Box::new(store::neighbour)),
    ]
}
