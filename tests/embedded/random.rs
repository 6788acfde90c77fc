//! Random traffic in programs, with a store that outlives them: each answer is that of the program alone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_random::Random;
use contextpilot_testbed::Arch;

use crate::program::{Program, Run, hooked};
use crate::python::{command_with, python};

/// See [`crate::windows`]. Answers to much that comes again are off by a little more.
const ROUNDING: f64 = 0.1;

/// The kinds of models: the window of their sliding windows, in tokens.
const KINDS: [(Arch, &str); 4] = [
    (Arch::Llama, "0"),
    (Arch::Gemma2, "64"),
    (Arch::Mamba, "0"),
    (Arch::Jamba, "0"),
];

/// How many traces of each kind of model (`scripts/soak programs`).
fn traces() -> u64 {
    let given = std::env::var("CONTEXTPILOT_TEST_PROGRAM_TRACES");
    given.map_or(1, |text| text.parse().expect("a number"))
}

/// The seed of the first trace.
fn seed() -> u64 {
    let given = std::env::var("CONTEXTPILOT_TEST_SEED");
    given.map_or(1, |text| text.parse().expect("a number"))
}

/// Makes the command of a program, with these variables.
type Make<'a> = &'a dyn Fn(&[(&str, &str)]) -> Command;

fn run(make: Make, variables: &[(&str, &str)]) -> Run {
    Run::of(&make(variables).output().expect("it starts"))
}

/// Runs the program, and kills it at some moment.
fn run_and_kill(make: Make, variables: &[(&str, &str)], after: Duration) {
    let mut child = make(variables)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let until = Instant::now() + after;
    while Instant::now() < until && child.try_wait().expect("a child").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    // It may have ended.
    let _ = child.kill();
    child.wait().expect("a child");
}

/// What came of the traces of a program with one kind of model: answers, and tokens that were evaluated without a store, and
/// with it when the same traffic came again.
#[derive(Default)]
struct Sum {
    answers: usize,
    plain: u32,
    stored: u32,
}

fn trace(make: Make, window: &str, seed: u64, store: &Path, sum: &mut Sum) {
    let text = seed.to_string();
    let traffic = [("SEED", &*text), ("STEPS", "40"), ("WINDOW", window)];
    let plain = run(make, &traffic);
    let mut variables = hooked(store).to_vec();
    variables.extend(traffic);
    let evaluated = |run: &Run| run.steps.iter().map(|step| step.evaluated).sum::<u32>();
    let mut random = Random(seed);
    let mut stored = 0;
    for _ in 0..2 {
        let run = run(make, &variables);
        run.must_answer_within(&plain, ROUNDING);
        sum.answers += run.steps.len();
        stored = evaluated(&run);
        let after = Duration::from_millis(random.within(300..1800));
        run_and_kill(make, &variables, after);
    }
    sum.plain += evaluated(&plain);
    sum.stored += stored;
}

fn play(program: &str, arch: Arch, window: &str, make: Make) {
    let store = tempfile::tempdir().unwrap();
    let mut sum = Sum::default();
    for seed in seed()..seed() + traces() {
        eprintln!("{program}, {arch}, CONTEXTPILOT_TEST_SEED={seed}");
        trace(make, window, seed, store.path(), &mut sum);
    }
    let Sum {
        answers,
        plain,
        stored,
    } = sum;
    println!("| {program} | {arch} | {answers} | {plain} | {stored} |");
    // The other kinds load at certain positions only, which random traffic may miss.
    assert!(
        arch != Arch::Llama || stored < plain / 2,
        "little was loaded"
    );
}

const TABLE: &str = "| program | model | answers | evaluated without | with, when it comes again |\n|---|---|--:|--:|--:|";

#[test]
fn random_traffic_in_a_program_is_answered_as_without_a_store() {
    println!("{TABLE}");
    for (arch, window) in KINDS {
        let Some(program) = Program::with(arch) else {
            return;
        };
        let make = |variables: &[(&str, &str)]| program.command("traffic", variables);
        play("ctypes", arch, window, &make);
    }
}

#[test]
fn random_traffic_in_python_is_answered_as_without_a_store() {
    let Some(python) = python() else { return };
    println!("{TABLE}");
    for (arch, window) in KINDS {
        let make = |variables: &[(&str, &str)]| {
            let mut command = command_with(&python, "bindings_traffic.py", arch);
            command.envs(variables.iter().copied());
            command
        };
        play("llama-cpp-python", arch, window, &make);
    }
}
