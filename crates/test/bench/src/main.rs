//! What the hook and the launcher cost, and what they bring, next to a plain llama-server. Writes `docs/benchmarks.md` and the plots beside it.
//!
//! Run it by `scripts/bench`, which builds what is measured and hands over where it is.
//!
//! ```text
//! bench LAUNCHER PAGE [--quick] [--ledger FILE] [--model FILE]
//!     [--also FILE]... [--sessions FILE [--requests N]] [--row USERS/SLOTS/HOST]... [--tokens] [--only PART]...
//! ```

mod cores;
mod lab;
mod page;
mod page_cache;
mod parts;
mod plot;
mod probe;
mod sample;
mod subscribers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use contextpilot_testbed::{Result, Sessions};

use lab::{Lab, failed};
use page::Page;

struct Options {
    launcher: PathBuf,
    page: PathBuf,
    quick: bool,
    /// The figures of the ledger's own benchmark.
    ledger: Option<PathBuf>,
    /// A real model.
    model: Option<PathBuf>,
    /// Models that are also tried: after a restart, and with sliding windows.
    also: Vec<PathBuf>,
    /// Recorded sessions, and how many requests of each are taken.
    sessions: Option<PathBuf>,
    requests: usize,
    /// Rows of the sessions' table.
    rows: parts::Rows,
    /// Parts to run; all if empty.
    only: Vec<String>,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let usage = || failed("run scripts/bench");
        let mut options = Self {
            launcher: arguments.next().ok_or_else(usage)?.into(),
            page: arguments.next().ok_or_else(usage)?.into(),
            quick: false,
            ledger: None,
            model: None,
            also: Vec::new(),
            sessions: None,
            requests: usize::MAX,
            rows: parts::Rows::default(),
            only: Vec::new(),
        };
        while let Some(option) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(usage);
            match option.as_str() {
                "--quick" => options.quick = true,
                "--ledger" => options.ledger = Some(value()?.into()),
                "--model" => options.model = Some(value()?.into()),
                "--also" => options.also.push(value()?.into()),
                "--sessions" => options.sessions = Some(value()?.into()),
                "--requests" => options.requests = value()?.parse().map_err(|_| usage())?,
                "--row" => options.rows.only.push(value()?),
                "--tokens" => options.rows.tokens = true,
                "--only" => options.only.push(value()?),
                _ => return Err(usage()),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    match Options::read(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("[ContextPilot] The measurement stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let machine = lab::machine();
    let lab = Lab::new(&options.launcher, options.model.clone(), options.quick)?;
    let sessions = match &options.sessions {
        Some(file) => Sessions::recorded(file, options.requests)?,
        None => Sessions::made_up(lab.rounds(24, 3) as u64, lab.rounds(20, 3)),
    };
    let all = parts::all(
        options.ledger.as_deref(),
        sessions,
        options.rows.clone(),
        &options.also,
    );
    let unknown = |only: &&String| all.iter().all(|(name, _)| name != only);
    if let Some(only) = options.only.iter().find(unknown) {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        return Err(failed(format!(
            "there is no part {only}: choose of {names}"
        )));
    }
    let mut page = Page::new(&options.page)?;
    let mut text = String::new();
    for (name, part) in all {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        let start = Instant::now();
        part(&lab, &mut page).map_err(|error| failed(format!("{name}: {error}")))?;
        eprintln!("{name}: {:.0} s", start.elapsed().as_secs_f64());
        // If a later part is stopped, what was measured before it is there.
        text = page.write(&machine)?;
    }
    if !options.quick {
        println!("{text}");
    }
    Ok(())
}
