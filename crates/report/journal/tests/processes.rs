//! Tests with real processes. Each process is this file's own executable.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_journal::{Identity, Journal, Origin};
use contextpilot_server_flags::{Generation, ServerFlags};
use contextpilot_testbed::{Random, private_folder};
use tempfile::TempDir;

/// The name of the function below that is the process.
const CHILD: &str = "the_process_that_the_other_tests_start";
const HOME: &str = "JOURNAL_TEST_HOME";
const PORT: &str = "JOURNAL_TEST_PORT";
const WORK: &str = "JOURNAL_TEST_WORK";

fn quiet(line: &str) {
    panic!("said {line:?}");
}

fn open(home: &Path, port: &str) -> (Journal, BTreeSet<String>) {
    let argv = ["llama-server", "--port", port].map(Into::into);
    let flags = ServerFlags::read(argv, |_| None, Generation::Late2026);
    let identity = Identity::of("http://index", &flags, &Origin::default());
    let lookup = |name: &str| (name == "HOME").then(|| home.into());
    let (journal, lost) = Journal::in_state_folder(lookup, None, identity, quiet);
    assert!(journal.is_on());
    (journal, lost.iter().map(ToString::to_string).collect())
}

/// A random load: what a server might note between two flushes, and which ids are live after it.
struct Load {
    random: Random,
    next: u64,
    live: VecDeque<String>,
}

impl Load {
    fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            next: 0,
            live: VecDeque::new(),
        }
    }

    fn step(&mut self, mut note: impl FnMut(&str, bool)) {
        for _ in 0..self.random.below(60) {
            let many = self.live.len() > 200;
            if self.random.below(20) < 10 + u64::from(many) * 10 && !self.live.is_empty() {
                let at = self.random.below(self.live.len() as u64) as usize;
                let id = self.live.remove(at).unwrap_or_default();
                note(&id, false);
            } else {
                let id = format!("req-{:012x}", self.next);
                self.next += 1;
                note(&id, true);
                self.live.push_back(id);
            }
        }
    }
}

#[test]
#[ignore = "not a test: the tests start it as a process of its own"]
fn the_process_that_the_other_tests_start() {
    let variable = |name| std::env::var(name).ok();
    let (Some(home), Some(port), Some(work)) = (variable(HOME), variable(PORT), variable(WORK))
    else {
        // It was started by a user who runs ignored tests, not by a test.
        return;
    };
    let (mut journal, lost) = open(Path::new(&home), &port);
    let lost: Vec<_> = lost.into_iter().collect();
    let mut out = std::io::stdout();
    let mut say = |text: &str| {
        out.write_all(format!("> {text}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    };
    say(&lost.join(" "));
    if let Some(seed) = work.strip_prefix("load ") {
        let mut load = Load::new(seed.parse().unwrap());
        // The clock is injected: one step, one flush.
        let start = Instant::now();
        for n in 1..=u32::MAX {
            load.step(|id, live| {
                if live {
                    journal.note_live(&Arc::from(id));
                } else {
                    journal.note_evicted(id);
                    journal.note_gone(id);
                }
            });
            journal.flush_if_due(start + Duration::from_millis(250) * n);
            say(&n.to_string());
        }
    }
    for id in work.split(' ').filter(|id| !id.is_empty()) {
        journal.note_live(&Arc::from(id));
    }
    journal.flush();
    say("ready");
    // Waits until the parent closes standard input, or has ended.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    journal.close();
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    lost: BTreeSet<String>,
}

impl Process {
    fn start(home: &TempDir, port: &str, work: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD, "--ignored", "--nocapture"])
            .env(HOME, home.path())
            .env(PORT, port)
            .env(WORK, work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self {
            child,
            lines,
            lost: BTreeSet::new(),
        };
        let lost = process.next().expect("it opened its journal");
        process.lost = lost
            .split(' ')
            .filter(|id| !id.is_empty())
            .map(Into::into)
            .collect();
        process
    }

    /// Starts a process, and returns when its ids are on disk.
    fn holding(home: &TempDir, port: &str, ids: &str) -> Self {
        let mut process = Self::start(home, port, ids);
        assert_eq!(process.next().as_deref(), Some("ready"));
        process
    }

    fn next(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            // The test harness writes to stdout as well, without a line end.
            if let Some((_, text)) = line.split_once("> ") {
                return Some(text.to_owned());
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(ToString::to_string).collect()
}

#[test]
fn of_servers_with_different_ports_only_the_dead_ones_ids_are_reported() {
    let home = private_folder();
    let mut one = Process::holding(&home, "1", "a b");
    let mut two = Process::holding(&home, "2", "c d");
    assert_eq!((&one.lost, &two.lost), (&set(&[]), &set(&[])));
    one.kill();
    let one = Process::holding(&home, "1", "");
    assert_eq!(one.lost, set(&["a", "b"]));
    two.kill();
    // The ids of the first process are still live, and the second process has not reported them either. The process that starts
    // next takes over all that no process holds.
    one.end();
    let mut third = Process::holding(&home, "3", "");
    assert_eq!(third.lost, set(&["a", "b", "c", "d"]));
    assert_eq!(Process::holding(&home, "1", "").lost, set(&[]));
    third.kill();
    assert_eq!(
        Process::holding(&home, "2", "").lost,
        set(&["a", "b", "c", "d"])
    );
}

#[test]
fn of_two_servers_with_one_identity_only_the_dead_ones_ids_are_reported() {
    let home = private_folder();
    let mut first = Process::holding(&home, "1", "a b");
    let mut second = Process::holding(&home, "1", "c d");
    assert_eq!(second.lost, set(&[]));
    first.kill();
    let mut third = Process::holding(&home, "1", "e");
    assert_eq!(third.lost, set(&["a", "b"]));
    second.kill();
    third.kill();
    let all = Process::holding(&home, "1", "");
    assert_eq!(all.lost, set(&["a", "b", "c", "d", "e"]));
}

#[test]
fn a_clean_end_without_live_ids_leaves_no_file() {
    let home = private_folder();
    Process::holding(&home, "1", "").end();
    let folder = home.path().join(".local/state/contextpilot-llama");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}

#[test]
fn a_process_killed_at_a_random_moment_loses_no_flushed_id() {
    let home = private_folder();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut flushes, mut found) = (0, 0);
    for seed in 0..50_u64 {
        let mut process = Process::start(&home, "1", &format!("load {seed}"));
        assert_eq!(process.lost, set(&[]));
        let mut seen: u32 = 0;
        // Some of the processes live through compactions.
        let until = random.below(if seed % 5 == 0 { 5000 } else { 100 });
        while u64::from(seen) < until {
            seen = process
                .next()
                .expect("it works until it is killed")
                .parse()
                .unwrap();
        }
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        process.kill();
        while let Some(line) = process.next() {
            seen = line.parse().unwrap();
        }

        // Every flush that the process announced is on disk. The next one may be there, or a part of it.
        let mut load = Load::new(seed);
        let live = |load: &Load| -> BTreeSet<String> { load.live.iter().cloned().collect() };
        (0..seen).for_each(|_| load.step(|_, _| ()));
        let flushed = live(&load);
        load.step(|_, _| ());
        let next = live(&load);
        let (mut journal, lost) = open(home.path(), "1");
        let missing: Vec<_> = flushed
            .intersection(&next)
            .filter(|id| !lost.contains(*id))
            .collect();
        let invented: Vec<_> = lost
            .iter()
            .filter(|id| !flushed.contains(*id) && !next.contains(*id))
            .collect();
        assert!(
            missing.is_empty() && invented.is_empty(),
            "{seed}: {missing:?} {invented:?}"
        );
        flushes += seen;
        found += lost.len();
        for id in &lost {
            journal.note_gone(id);
        }
        journal.close();
    }
    println!("50 kills, {flushes} flushes, {found} ids found");
    assert!(flushes > 1000 && found > 1000, "{flushes} {found}");
}
