//! Random traffic in programs, with a store that outlives them: each answer is that of the program alone.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_random::Random;
use contextpilot_testbed::{Arch, Model, or_return, skip_optional};

use crate::loading::compile;
use crate::program::{Program, Run, Step, hooked, without_ours};
use crate::python::{command_with, python};

/// See [`crate::windows`]. Answers to much that comes again are off by a little more. Of two tokens that are no further
/// apart, either may be the likeliest.
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

/// Runs the program, and kills it at some moment. Whether it had not ended.
fn run_and_kill(make: Make, variables: &[(&str, &str)], after: Duration) -> bool {
    let mut child = make(variables)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let until = Instant::now() + after;
    let mut is_running = true;
    while Instant::now() < until && is_running {
        thread::sleep(Duration::from_millis(5));
        is_running = child.try_wait().expect("a child").is_none();
    }
    // It may have ended.
    let _ = child.kill();
    child.wait().expect("a child");
    is_running
}

/// How far the likeliest tokens of two answers are apart. Infinite, if one is not among the likeliest of both.
fn difference(ours: &Step, theirs: &Step) -> f64 {
    let values = [&ours.top[0], &theirs.top[0]];
    let of = |nth: usize, token| values[nth].iter().find(|(one, _)| *one == token);
    let differences = values.map(|top| match (of(0, top[0].0), of(1, top[0].0)) {
        (Some((_, a)), Some((_, b))) => (a - b).abs(),
        _ => f64::INFINITY,
    });
    differences[0].max(differences[1])
}

/// What came of the traces of a program with one kind of model: answers, and tokens that were evaluated without a store, and
/// with it when the same traffic came again.
#[derive(Default)]
struct Sum {
    answers: usize,
    wrong: usize,
    worst: f64,
    killed: usize,
    plain: u32,
    stored: u32,
}

impl Sum {
    fn compare(&mut self, ours: &Run, theirs: &Run) {
        let names = |run: &Run| run.steps.iter().map(|step| step.name.clone()).collect();
        let [ours_names, names]: [Vec<String>; 2] = [names(ours), names(theirs)];
        assert_eq!(ours_names, names, "{}", ours.stderr);
        for (one, other) in ours.steps.iter().zip(&theirs.steps) {
            let difference = difference(one, other);
            self.answers += 1;
            self.worst = self.worst.max(difference);
            if difference > ROUNDING {
                self.wrong += 1;
                eprintln!("wrong: {one:?}\n  instead of {other:?}");
            }
        }
    }
}

fn trace(make: Make, window: &str, seed: u64, store: &Path, sum: &mut Sum) {
    let text = seed.to_string();
    let folder = tempfile::tempdir().unwrap();
    let traffic = [
        ("SEED", &*text),
        ("STEPS", "40"),
        ("WINDOW", window),
        ("FOLDER", folder.path().to_str().expect("a plain path")),
    ];
    let begun = Instant::now();
    let plain = run(make, &traffic);
    let took = begun.elapsed();
    let mut variables = hooked(store).to_vec();
    variables.extend(traffic);
    let evaluated = |run: &Run| run.steps.iter().map(|step| step.evaluated).sum::<u32>();
    let mut random = Random(seed);
    let mut stored = 0;
    for _ in 0..2 {
        let run = run(make, &variables);
        sum.compare(&run, &plain);
        stored = evaluated(&run);
        let after = took * random.within(10..150) as u32 / 100;
        sum.killed += usize::from(run_and_kill(make, &variables, after));
    }
    sum.plain += evaluated(&plain);
    sum.stored += stored;
}

/// What says how many tokens were evaluated.
#[derive(PartialEq)]
enum Counts {
    Engine,
    /// The program tells what it gave to the engine.
    Program,
}

fn play(program: &str, arch: Arch, window: &str, counts: &Counts, make: Make) {
    let store = tempfile::tempdir().unwrap();
    let mut sum = Sum::default();
    for seed in seed()..seed() + traces() {
        eprintln!("{program}, {arch}, CONTEXTPILOT_TEST_SEED={seed}");
        trace(make, window, seed, store.path(), &mut sum);
    }
    let Sum {
        answers,
        wrong,
        worst,
        killed,
        plain,
        stored,
    } = sum;
    let evaluated = match counts {
        Counts::Engine => format!("{plain} | {stored}"),
        Counts::Program => "not told | not told".to_owned(),
    };
    println!("| {program} | {arch} | {answers} | {wrong} | {worst:.4} | {killed} | {evaluated} |");
    assert_eq!(wrong, 0);
    // The other kinds load at certain positions only, which random traffic may miss.
    assert!(
        arch != Arch::Llama || *counts == Counts::Program || stored < plain / 2,
        "little was loaded"
    );
}

const TABLE: &str = "\
| program | model | answers | wrong | worst difference | killed | evaluated without | with, when it comes again |
|---|---|--:|--:|--:|--:|--:|--:|";

#[test]
fn random_traffic_in_a_program_is_answered_as_without_a_store() {
    println!("{TABLE}");
    for (arch, window) in KINDS {
        let program = or_return!(Program::with(arch));
        let make = |variables: &[(&str, &str)]| program.command("traffic", variables);
        play("ctypes", arch, window, &Counts::Engine, &make);
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
        play("llama-cpp-python", arch, window, &Counts::Engine, &make);
    }
}

#[test]
fn random_traffic_in_a_c_plus_plus_program_is_answered_as_without_a_store() {
    println!("{TABLE}");
    for (arch, window) in KINDS {
        let engine = or_return!(Program::with(arch));
        let program = engine.folder().join("traffic");
        let library = engine.library().to_str().expect("a plain path");
        let ggml = engine.library().with_file_name("libggml.so.0");
        let ggml = ggml.to_str().expect("a plain path");
        // The library may need a newer C library than this machine's.
        let newer = "-Wl,--allow-shlib-undefined";
        let flags = ["-std=c++17", "-O1", "-pthread", library, ggml, newer];
        compile("c++", &program, "traffic.cpp", &flags);
        let make = |variables: &[(&str, &str)]| {
            let line = engine.line_of(&program);
            let mut command = Command::new(&line[0]);
            without_ours(&mut command);
            command.args(&line[1..]).envs(variables.iter().copied());
            command
        };
        play("C++", arch, window, &Counts::Engine, &make);
    }
}

/// A program that `scripts/soak programs` has put into target/.
fn fetched(path: &str) -> Option<PathBuf> {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if found.exists() {
        return Some(found);
    }
    skip_optional(format!("no {path} here: scripts/soak programs fetches it"));
    None
}

/// The program's loop, started with what runs it.
fn play_fetched(program: &str, start: &Path, script: &str, more: Option<&Path>) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/embedded/fixtures")
        .join(script);
    println!("{TABLE}");
    for (arch, window) in KINDS {
        let model = Model::tiny(arch);
        let make = |variables: &[(&str, &str)]| {
            let mut command = Command::new(start);
            without_ours(&mut command);
            command
                .arg(&script)
                .args(more)
                .arg(model.path())
                .envs(variables.iter().copied());
            command
        };
        play(program, arch, window, &Counts::Program, &make);
    }
}

#[test]
fn random_traffic_in_xllamacpp_is_answered_as_without_a_store() {
    if let Some(python) = fetched("target/xllamacpp/bin/python") {
        play_fetched("xllamacpp", &python, "server_traffic.py", None);
    }
}

#[test]
fn random_traffic_in_node_is_answered_as_without_a_store() {
    let folder = or_return!(fetched("target/node-llama-cpp"));
    let node = Path::new("node");
    play_fetched("node-llama-cpp", node, "traffic.mjs", Some(&folder));
}
