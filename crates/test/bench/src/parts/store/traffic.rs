//! Agents' sessions, more of them than there are slots.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use contextpilot_testbed::{Builder, Need, Result, Server, Sessions};

use super::stored::Stored;
use crate::lab::Lab;
use crate::page::{Aim, Page};

/// Sessions at a time, and slots.
const CROWDS: [(usize, u32); 3] = [(6, 4), (3, 2), (6, 2)];
/// The host prompt cache: what the tables call it, and the flags. By default all slots share one KV cache, idle ones are
/// copied to the host prompt cache and cleared, and it may have 8 GiB.
const HOSTS: [(&str, &[&str]); 3] = [
    ("off", &["--no-kv-unified", "--cache-ram", "0"]),
    ("3", &["--no-kv-unified", "--cache-ram", "3"]),
    ("default", &["--kv-unified"]),
];
/// A host prompt cache that holds everything.
const ENDLESS: [&str; 3] = ["--no-kv-unified", "--cache-ram", "-1"];
/// Targets: evaluated tokens as a multiple of those that are needed; the time as a multiple of that of a
/// server that holds everything; bytes on disk as a multiple of the KV of distinct tokens.
const EVALUATED: f64 = 1.05;
const TIME: f64 = 1.10;
const WRITTEN: f64 = 1.1;
/// How long an answer may take. Counts of tokens are also taken on machines that are busy with something else, where
/// several prompts of 16,000 tokens at once take long.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// How often it is said how far a replay is.
const SAY: Duration = Duration::from_secs(60);
/// KV of a token of the tiny model: 2 layers with K and V of 64 values of 2 bytes.
const KV: f64 = 2.0 * 2.0 * 64.0 * 2.0;

/// Which rows of the table are run; see `scripts/bench`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// Users, slots and host cache, with `/` between them. All rows if empty.
    pub(crate) only: Vec<String>,
    /// No plain server plays the sessions beside it: there are no times.
    pub(crate) tokens: bool,
}

impl Rows {
    fn of(&self, users: usize, slots: u32) -> Vec<(&'static str, &'static [&'static str])> {
        let wanted = |host: &str| {
            let name = format!("{users}/{slots}/{host}");
            self.only.is_empty() || self.only.contains(&name)
        };
        HOSTS.into_iter().filter(|(host, _)| wanted(host)).collect()
    }
}

/// What a replay took.
struct Played {
    /// Tokens that the server asked the engine to evaluate.
    asked: usize,
    seconds: f64,
}

pub(super) fn run(sessions: &Sessions, rows: &Rows, lab: &Lab, page: &mut Page) -> Result<()> {
    let need = sessions.need();
    introduce(sessions, &need, page);
    let mut table = String::from(
        "| sessions at a time, slots, host cache | evaluated | | time | bytes written | minutes |\n\
         |---|--:|--:|--:|--:|--:|\n",
    );
    let mut most = Worst::default();
    let mut without = None;
    for (users, slots) in CROWDS {
        let hosts = rows.of(users, slots);
        if hosts.is_empty() {
            continue;
        }
        let plain = plain(slots, &need);
        let alone = |flags: &[&str]| play(&started(&plain.clone().args(flags))?, sessions, users);
        let endless = if rows.tokens {
            None
        } else {
            Some(alone(&ENDLESS)?.seconds)
        };
        let time = |seconds: f64| endless.map(|endless| seconds / endless);
        if let (None, Some(_)) = (without, endless) {
            let (host, flags) = HOSTS[1];
            let played = alone(flags)?;
            let times = played.asked as f64 / need.evaluated as f64;
            table.push_str(&format!(
                "| {users}, {slots}, {}, **without the store** | {} | {times:.2} | {} | | {:.1} |\n",
                called(host),
                played.asked,
                shown(time(played.seconds)),
                played.seconds / 60.0,
            ));
            without = Some(times);
        }
        for (host, flags) in hosts {
            let folder = tempfile::tempdir_in(lab.scratch(""))?;
            let stored = Stored::start(lab, &plain.clone().args(flags), folder.path())?;
            let played = play(&stored.server, sessions, users)?;
            let figures = stored.figures()?;
            let evaluated = played.asked - figures.loaded_tokens as usize;
            let times = evaluated as f64 / need.evaluated as f64;
            let bytes = figures.bytes as f64 / (need.distinct as f64 * KV);
            let time = time(played.seconds);
            most.note(times, time, bytes);
            let row = format!(
                "| {users}, {slots}, {} | {evaluated} | {times:.3} | {} | {bytes:.3} | {:.1} |\n",
                called(host),
                shown(time),
                played.seconds / 60.0,
            );
            eprint!("{row}");
            table.push_str(&row);
        }
    }
    page.say(table);
    most.show(page);
    if let Some(without) = without {
        page.in_short(
            "The prefix store",
            &format!(
                "brings the tokens that are evaluated on agents' sessions from {without:.1} times what is needed to\n\
                 {:.2} times at most.",
                most.times
            ),
        );
    }
    Ok(())
}

fn introduce(sessions: &Sessions, need: &Need, page: &mut Page) {
    let origin = if sessions.are_recorded {
        "Recorded sessions of Claude Code (callanjfox/kv-cache-tester, Apache-2.0, recorded at WEKA), a\n\
             block of 64 tokens played as 4"
    } else {
        "Made-up sessions of agents"
    };
    page.say(format!(
        "{origin}: {} sessions, {} requests, {} prompt tokens, of which {} are needed: for each prompt, what is\n\
         behind the longest beginning that an earlier one had. The tiny model; one token is generated for each\n\
         prompt. *Evaluated* is what the engine says it was asked for (`prompt_n`) without what the store\n\
         loaded, as a multiple of what is needed. The time is for all answers, as a multiple of the time of\n\
         a plain server whose host prompt cache holds everything.",
        sessions.all.len(),
        need.requests,
        need.prompts,
        need.evaluated,
    ));
}

/// What a row calls a host cache.
fn called(host: &str) -> String {
    match host.parse::<u32>() {
        Ok(size) => format!("{size} MiB"),
        Err(_) => host.to_owned(),
    }
}

fn shown(time: Option<f64>) -> String {
    time.map_or(String::new(), |time| format!("{time:.2}"))
}

/// The worst of all rows.
#[derive(Debug, Default)]
struct Worst {
    times: f64,
    time: Option<f64>,
    bytes: f64,
}

impl Worst {
    fn note(&mut self, times: f64, time: Option<f64>, bytes: f64) {
        self.times = self.times.max(times);
        self.time = self.time.into_iter().chain(time).reduce(f64::max);
        self.bytes = self.bytes.max(bytes);
    }

    fn show(&self, page: &mut Page) {
        page.aim(
            "Tokens evaluated on agents' sessions, as a multiple of what is needed, the worst",
            &format!("at most {EVALUATED}"),
            &format!("{:.3}", self.times),
            Aim::met_if(self.times <= EVALUATED),
        );
        if let Some(time) = self.time {
            page.aim(
                "The time of all answers, against a server whose host cache holds everything, the worst",
                &format!("at most {TIME}"),
                &format!("{time:.2}"),
                Aim::met_if(time <= TIME),
            );
        }
        page.aim(
            "Bytes written, against the KV of distinct tokens, the worst",
            &format!("at most {WRITTEN}"),
            &format!("{:.3}", self.bytes),
            Aim::met_if(self.bytes <= WRITTEN),
        );
    }
}

/// A server with room for the longest prompt in each slot. The host prompt cache is the caller's.
pub(super) fn plain(slots: u32, need: &Need) -> Builder {
    let context = (need.longest + 64).next_multiple_of(256) * slots as usize;
    Server::tiny()
        .args(["--parallel".to_owned(), slots.to_string()])
        .args(["-c".to_owned(), context.to_string()])
}

fn started(builder: &Builder) -> Result<Server> {
    let mut server = builder.start()?;
    server.await_ready()?;
    Ok(server)
}

/// Plays all sessions, so many at a time.
fn play(server: &Server, sessions: &Sessions, users: usize) -> Result<Played> {
    let start = Instant::now();
    let said = AtomicU64::new(0);
    let say = |ended: usize| {
        let minutes = start.elapsed().as_secs() / SAY.as_secs();
        if said.fetch_max(minutes, Ordering::Relaxed) < minutes {
            let all = sessions.all.len();
            eprintln!("{ended} of {all} sessions in {minutes} min");
        }
    };
    Ok(Played {
        asked: sessions.play(server, users, PATIENCE, say)?,
        seconds: start.elapsed().as_secs_f64(),
    })
}
