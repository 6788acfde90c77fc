//! A hostile server in place of a Redis or a bucket: it decides neither over memory nor over the disk, and keeps no
//! process alive. A hundred requests are answered, then the server ends, and what `store sync` took is measured.
//!
//! `CONTEXTPILOT_TEST_SEED` gives other nonsense. With `--nocapture` a line for each is printed, of which docs/security.md has
//! the worst figures.

mod bucket;
mod redis;

use std::fs;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use contextpilot_kv_files::{Folder, Writer};
use contextpilot_kv_store::{Chunk, Facts, Fingerprint, Origin, Store, What};
use contextpilot_testbed::{KillOnDrop, Random, or_return, until};
use tempfile::TempDir;

use super::super::moved::companion_command;
use super::super::{chunk_files, folder};
use super::Redis;

/// Bytes that the folder may have.
const BUDGET: u64 = 20_000_000;
/// Bytes of the rows of a token.
const ROW: usize = 20_000;
/// So many chunks are in the folder at the beginning, with half of that.
const GOOD: i32 = 10;
const TOKENS: i32 = 48;
/// So many requests are answered, if they are ever asked.
const REQUESTS: usize = 100;

/// What a process may take, far above what it does.
const CPU_SECONDS: f64 = 20.0;
const MEMORY_KB: u64 = 400_000;

fn seed() -> u64 {
    let given = std::env::var("CONTEXTPILOT_TEST_SEED").ok();
    given.map_or(1, |seed| seed.parse().expect("a seed"))
}

fn origin() -> Origin {
    let mut facts = Facts::default();
    facts.push(What::Model, vec![1; 16]);
    Origin::new("tea".to_owned(), &facts, None)
}

fn of() -> Fingerprint {
    origin().fingerprint
}

/// The chunks of a prompt that shares nothing with others.
fn chunks(prompt: i32, tokens: i32) -> Vec<Chunk> {
    let tokens: Vec<i32> = (0..tokens).map(|nth| prompt * 1000 + nth).collect();
    Store::new(0).missing(&of(), &tokens, ROW)
}

/// As its file has it: through a folder of its own.
fn whole(chunk: &Chunk) -> Vec<u8> {
    let home = folder();
    let folder = Folder::open(home.path()).unwrap();
    write(&folder, std::slice::from_ref(chunk));
    folder.whole(chunk).unwrap()
}

fn write(folder: &Folder, chunks: &[Chunk]) {
    let writer = Writer::start(folder.clone(), u64::MAX, || {}, || false).unwrap();
    writer.note_origin(origin());
    for chunk in chunks {
        let rows = vec![7; usize::try_from(chunk.bytes).unwrap()];
        writer.write(chunk, Arc::new(rows)).unwrap();
    }
    assert!(writer.flush(std::time::Duration::from_secs(60)));
}

/// A folder that a server has used, a process in that server's place, and `store sync` beside it.
struct Beside {
    server: KillOnDrop,
    sync: KillOnDrop,
    home: TempDir,
    good: Vec<Chunk>,
}

impl Beside {
    fn start(url: &str, variables: &[(&str, &str)]) -> Self {
        let home = folder();
        let good: Vec<Chunk> = (1..=GOOD).flat_map(|one| chunks(one, TOKENS)).collect();
        write(&Folder::open(home.path()).unwrap(), &good);
        let server = KillOnDrop(Command::new("sleep").arg("1000").spawn().unwrap());
        let of = server.id().to_string();
        let mut command = companion_command(home.path(), &["sync", url, "--of", &of]);
        command.env("CONTEXTPILOT_STORE_GB", format!("{}", BUDGET as f64 / 1e9));
        command.envs(variables.iter().copied());
        let sync = KillOnDrop(command.stderr(Stdio::piped()).spawn().unwrap());
        Self {
            home,
            good,
            server,
            sync,
        }
    }

    fn bytes(&self) -> u64 {
        let files = chunk_files(self.home.path()).into_iter();
        files
            .filter_map(|file| Some(fs::metadata(file).ok()?.len()))
            .sum()
    }

    /// The server writes something more: that is to be sent when it has ended.
    fn owe(&self) {
        write(&Folder::open(self.home.path()).unwrap(), &chunks(99, 4));
    }

    fn has(&self, chunk: &Chunk) -> bool {
        let folder = Folder::open(self.home.path()).unwrap();
        folder.header(&chunk.name).is_some()
    }

    /// What `contextpilot-llama store --json` says of the remote.
    fn said(&self) -> serde_json::Value {
        let output = companion_command(self.home.path(), &["--json"])
            .output()
            .unwrap();
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        all["remote"].clone()
    }

    /// The server ends, and so does the other process: what both left is within the limits.
    fn end(mut self, what: &str, requests: &AtomicUsize) -> Vec<String> {
        let pid = self.sync.id();
        let memory = status(pid, "VmHWM:");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: f64 = fields[11..13]
            .iter()
            .map(|one| one.parse::<f64>().unwrap())
            .sum();
        let cpu = ticks / 100.0;
        let bytes = self.bytes();
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        let begin = Instant::now();
        until("store sync has ended", || self.sync.try_wait().unwrap());
        let took = begin.elapsed().as_secs_f64();
        println!(
            "| {what} | {} | {cpu:.1} s | {} MB | {} MB | {took:.1} s |",
            requests.load(Ordering::Relaxed),
            memory / 1000,
            bytes / 1_000_000,
        );
        assert!(cpu < CPU_SECONDS, "{what}: {cpu} s");
        assert!(memory < MEMORY_KB, "{what}: {memory} kB");
        assert!(bytes <= BUDGET / 10 * 11, "{what}: {bytes} bytes");
        assert!(took < 45.0, "{what}: it stayed for {took} s");
        for chunk in &self.good {
            assert!(self.has(chunk), "{what}: {} left", chunk.name);
        }
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.sync.stderr.take().unwrap(), &mut said).unwrap();
        said.lines().map(str::to_owned).collect()
    }
}

/// A number of kB in `/proc/<pid>/status`.
fn status(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// A real Redis to which other programs write, and which loses its keys: all of them, or those that tell what is new.
#[test]
fn what_is_new_is_heard_of_whatever_stands_beside_it_and_whichever_keys_are_lost() {
    let redis = or_return!(Redis::start(&[]));
    let (one, other) = (
        Beside::start(&redis.url(), &[]),
        Beside::start(&redis.url(), &[]),
    );
    let mut next = 200;
    let mut heard_of = |what: &str| {
        next += 1;
        let new = chunks(next, 4);
        write(&Folder::open(one.home.path()).unwrap(), &new);
        until(what, || other.has(&new[0]).then_some(()));
    };
    heard_of("the other one has it");
    let list = format!("contextpilot:kv:1:model:{}", of());
    for nth in 0..300 {
        redis.say(&format!("ZADD {list} {nth} rubbish-{nth}"));
        redis.say(&format!(
            "ZADD contextpilot:kv:1:models 1e300 rubbish-{nth}"
        ));
    }
    for score in ["1e300", "+inf", "9007199254740993", "1"] {
        redis.say(&format!("ZADD {list} {score} {}:4096", "00".repeat(16)));
    }
    heard_of("it goes on beside rubbish");
    redis.say("DEL contextpilot:kv:1:models");
    heard_of("it goes on without the list of models");
    redis.say("DEL contextpilot:kv:1:epoch");
    heard_of("it goes on without the epoch");
    redis.say("FLUSHALL");
    until("all that was lost is sent again", || {
        (redis.chunks() >= one.good.len()).then_some(())
    });
    heard_of("it goes on after all was lost");
    let asked = AtomicUsize::new(0);
    one.end("a real Redis", &asked);
    other.end("a real Redis", &asked);
}

/// As a client makes that names scales of a LoRA adapter.
#[test]
fn a_thousand_models_cost_no_more_requests_than_one() {
    let redis = or_return!(Redis::start(&[]));
    let asked = |models: u16| {
        let beside = Beside::start(&redis.url(), &[]);
        let folder = Folder::open(beside.home.path()).unwrap();
        let writer = Writer::start(folder, u64::MAX, || {}, || false).unwrap();
        for model in 1..models {
            let mut facts = Facts::default();
            facts.push(What::Scale, model.to_le_bytes().to_vec());
            writer.note_origin(Origin::new("tea".to_owned(), &facts, None));
        }
        assert!(writer.flush(std::time::Duration::from_secs(60)));
        until("it has begun", || {
            beside.said()["reachable"].as_bool().filter(|is| *is)
        });
        let calls = |only: &dyn Fn(&str) -> bool| -> u64 {
            let text = redis.text("INFO commandstats");
            let lines = text.lines().filter_map(|line| line.split_once(":calls="));
            lines
                .filter(|(command, _)| only(command))
                .map(|(_, rest)| rest.split(',').next().unwrap().parse::<u64>().unwrap())
                .sum()
        };
        // This test asks with INFO: how often depends on how long a round takes.
        let count = || calls(&|command| command != "cmdstat_info");
        let times = || calls(&|command| command == "cmdstat_time");
        // Rounds are counted, and not time. In the first ones, what the models are is sent.
        let rounds = || {
            let (begin, first) = (count(), times());
            until("some rounds are over", || {
                (times() >= first + 10).then_some(())
            });
            count() - begin
        };
        rounds();
        let asked = rounds();
        beside.end("a thousand models", &AtomicUsize::new(0));
        asked
    };
    let (one, thousand) = (asked(1), asked(1000));
    assert!(thousand <= 2 * one + 20, "{one} and {thousand}");
}

/// Bytes that mean nothing.
fn nonsense(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.draw() as u8).collect()
}
