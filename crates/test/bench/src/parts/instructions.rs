//! What the hook adds to an evaluation on the thread that makes it: instructions, counted by
//! callgrind, and time.
//!
//! A small program makes the server's calls, in the server's order, of an engine that does next
//! to nothing. Each is run with few calls and with twice as many; what one call takes is the
//! difference of the two runs, so that starts and ends do not count. What the hook adds is the
//! difference of that with and without it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use contextpilot_testbed::Result;

use super::launch::NOWHERE;
use crate::lab::{Lab, compile, failed, fixture, has, repository, run as run_command};
use crate::page::{Aim, Page};
use crate::sample::{Interval, Sample};

/// Targets, ns.
const A_CALL: f64 = 2000.0;
const A_TOKEN: f64 = 20.0;

/// A way to call the engine.
struct Work {
    name: &'static str,
    kind: &'static str,
    /// Tokens in each call.
    tokens: u32,
    /// What the engine is to seem to take, µs.
    pause: u32,
}

const WORKS: [Work; 4] = [
    Work {
        name: "generating in 1 slot",
        kind: "generate",
        tokens: 1,
        pause: 20,
    },
    Work {
        name: "generating in 32 slots",
        kind: "generate",
        tokens: 32,
        pause: 50,
    },
    Work {
        name: "a prompt of 16 tokens",
        kind: "prompt",
        tokens: 16,
        pause: 200,
    },
    Work {
        name: "a prompt of 512 tokens",
        kind: "prompt",
        tokens: 512,
        pause: 500,
    },
];

/// What the hook adds to one call.
struct Added {
    /// On the thread that makes the call; unknown without callgrind.
    instructions: Option<f64>,
    /// On the hook's own threads.
    elsewhere: Option<f64>,
    /// ns, of the median call.
    time: Interval,
    /// ns, of the mean.
    mean: Interval,
}

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The inference path: what the hook adds to an evaluation");
    if !has("c++") {
        page.say("Skipped: there is no C++ compiler.");
        return Ok(());
    }
    let driver = build(lab)?;
    see_that_it_is_hooked(lab, &driver)?;
    // It may be there and not know this processor.
    let counted = has("valgrind")
        && run_command(Command::new("valgrind").args(["--tool=none", "-q", "true"])).is_ok();
    let mut added = Vec::new();
    for (nth, work) in WORKS.iter().enumerate() {
        // Callgrind takes seconds to start: to see that it works, once is enough.
        let counted = counted && (nth == 0 || !lab.quick);
        added.push(measure(lab, &driver, work, counted)?);
    }
    let whole = |figure: Option<f64>| figure.map_or("?".to_owned(), |n| format!("{n:.0}"));
    let mut table = String::from(
        "| | instructions on the server's thread | on the hook's own | ns, of the median call | ns, of the mean |\n\
         |---|--:|--:|--:|--:|\n",
    );
    for (work, added) in WORKS.iter().zip(&added) {
        table.push_str(&format!(
            "| {} | {} | {} | {} | {} |\n",
            work.name,
            whole(added.instructions),
            whole(added.elsewhere),
            added.time.show(0),
            added.mean.show(0)
        ));
    }
    page.say(
        "Added to one call of the engine, its tokens included. The calls are the server's: clear the\n\
         batch, add tokens with positions and outputs, evaluate; the engine behind them does next to\n\
         nothing. Instructions are counted by callgrind, as the difference between many calls and\n\
         twice as many. Times are taken natively, in turns with and without the hook.",
    );
    page.say(table);
    if !counted {
        page.say("Instructions were not counted: there is no valgrind that runs here.");
    }
    let (call, token) = split(&added, |added| added.time.middle);
    page.aim(
        "Time of an evaluation call, generating",
        &format!("{A_CALL} ns"),
        &format!("{call:.0} ns"),
        Aim::met_if(call <= A_CALL),
    );
    let prompt = added[2].time.middle - token * f64::from(WORKS[2].tokens);
    page.aim(
        "Time of an evaluation call, of a prompt",
        &format!("{A_CALL} ns"),
        &format!("{prompt:.0} ns"),
        Aim::met_if(prompt <= A_CALL),
    );
    page.aim(
        "Time of a token",
        &format!("{A_TOKEN} ns"),
        &format!("{token:.1} ns"),
        Aim::met_if(token <= A_TOKEN),
    );
    let mut text = format!("{call:.0} ns a call and {token:.1} ns a token");
    if added.iter().all(|added| added.instructions.is_some()) {
        let (call, token) = split(&added, |added| added.instructions.unwrap_or(f64::NAN));
        text.push_str(&format!(" ({call:.0} and {token:.0} instructions)"));
    }
    page.say(format!(
        "That is {text}: a token's share is that of the long prompt over the short one, a call's is\n\
         what generating one token takes without it. A prompt takes {:.1} µs a call, its tokens not\n\
         counted. Where prompts are more than a millisecond apart it also wakes the hook's worker, which\n\
         is a system call; here the worker looks by itself. A generated token wakes nobody.",
        prompt / 1e3
    ));
    page.in_short("Inference", &format!("takes {text} more."));
    Ok(())
}

/// What a call takes, and each of its tokens.
fn split(added: &[Added], figure: impl Fn(&Added) -> f64) -> (f64, f64) {
    let (short, long) = (figure(&added[2]), figure(&added[3]));
    let token = (long - short) / f64::from(WORKS[3].tokens - WORKS[2].tokens);
    (figure(&added[0]) - token, token)
}

fn build(lab: &Lab) -> Result<PathBuf> {
    let engine = lab.scratch("libllama.so");
    let source = repository().join("hook/tests/fixtures/llama.cpp");
    compile(
        "c++",
        &[
            "-shared".into(),
            "-fPIC".into(),
            "-o".into(),
            engine.into(),
            source.into(),
        ],
    )?;
    // The hook is for programs that are called so.
    let driver = lab.scratch("llama-server");
    let mut folder = std::ffi::OsString::from("-L");
    folder.push(driver.parent().unwrap_or(&driver));
    compile(
        "c++",
        &[
            "-o".into(),
            driver.clone().into(),
            fixture("driver.cpp").into(),
            folder,
            "-lllama".into(),
            "-Wl,-rpath,$ORIGIN".into(),
        ],
    )?;
    Ok(driver)
}

/// Or the cost of a library that does nothing would be measured.
fn see_that_it_is_hooked(lab: &Lab, driver: &Path) -> Result<()> {
    let mut command = preloaded(lab, lab.command(driver), true);
    arguments(&mut command, &WORKS[0], 1, 0);
    let output = command.stderr(Stdio::piped()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("[ContextPilot] Active: ") {
        Ok(())
    } else {
        Err(failed(format!(
            "the hook is not active in the driver: {said}"
        )))
    }
}

fn measure(lab: &Lab, driver: &PathBuf, work: &Work, counted: bool) -> Result<Added> {
    let mut added = Added {
        instructions: None,
        elsewhere: None,
        time: Interval {
            low: 0.0,
            middle: 0.0,
            high: 0.0,
        },
        mean: Interval {
            low: 0.0,
            middle: 0.0,
            high: 0.0,
        },
    };
    if counted {
        let calls = lab.rounds(1000, 100) as u32;
        let a_call = |hooked: bool| -> Result<[f64; 2]> {
            let few = count(lab, driver, work, calls, hooked)?;
            let many = count(lab, driver, work, 2 * calls, hooked)?;
            let of = |thread: usize| (many[thread] - few[thread]) / f64::from(calls);
            Ok([of(0), of(1)])
        };
        let (plain, hooked) = (a_call(false)?, a_call(true)?);
        added.instructions = Some(hooked[0] - plain[0]);
        added.elsewhere = Some(hooked[1] - plain[1]);
    }
    let (mut medians, mut means) = (Vec::new(), Vec::new());
    for round in 0..lab.rounds(21, 2) {
        let mut figures = [[0.0; 2]; 2];
        for hooked in [round % 2, 1 - round % 2] {
            let calls = lab.rounds(10_000, 200) as u32 * 100 / work.pause.max(100);
            let mut command = preloaded(lab, lab.command(driver), hooked == 1);
            arguments(&mut command, work, calls, work.pause);
            let said = run_command(&mut command)?;
            let said: Vec<f64> = said
                .split_whitespace()
                .filter_map(|n| n.parse().ok())
                .collect();
            let [median, mean] = said[..] else {
                return Err(failed(format!("the driver said {said:?}")));
            };
            figures[hooked] = [median, mean];
        }
        medians.push(figures[1][0] - figures[0][0]);
        means.push(figures[1][1] - figures[0][1]);
    }
    added.time = Sample::new(medians).interval();
    added.mean = Sample::new(means).interval();
    Ok(added)
}

fn preloaded(lab: &Lab, mut command: Command, hooked: bool) -> Command {
    if hooked {
        command
            .env("LD_PRELOAD", &lab.hook)
            .env("CONTEXTPILOT_INDEX_URL", NOWHERE)
            // The end waits for the worker to have seen everything, so that all is counted.
            .env("CONTEXTPILOT_EXIT_DRAIN_MS", "60000")
            .env("XDG_STATE_HOME", lab.scratch("state"));
    }
    command
}

fn arguments(command: &mut Command, work: &Work, calls: u32, pause: u32) {
    let numbers = [calls, work.tokens, pause].map(|number| number.to_string());
    command.arg(work.kind).args(numbers);
}

/// Instructions of the first thread, and of all others.
fn count(lab: &Lab, driver: &PathBuf, work: &Work, calls: u32, hooked: bool) -> Result<[f64; 2]> {
    let folder = lab.scratch("callgrind");
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(&folder)? {
        std::fs::remove_file(entry?.path())?;
    }
    let mut file = std::ffi::OsString::from("--callgrind-out-file=");
    file.push(folder.join("out"));
    let mut command = preloaded(lab, lab.command("valgrind".as_ref()), hooked);
    command
        .args(["--tool=callgrind", "--separate-threads=yes", "-q"])
        .arg(file)
        .arg(driver);
    arguments(&mut command, work, calls, 0);
    run_command(&mut command)?;
    let mut instructions = [0.0; 2];
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let Some(total) = total.and_then(|total| total.trim().parse::<f64>().ok()) else {
            continue;
        };
        // out-01 is the first thread's; without a number, it is a summary of nothing.
        let first = path.extension().is_none() && path.to_string_lossy().ends_with("-01");
        instructions[usize::from(!first)] += total;
    }
    if instructions[0] == 0.0 {
        return Err(failed("callgrind counted nothing"));
    }
    Ok(instructions)
}
