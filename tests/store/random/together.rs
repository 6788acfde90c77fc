//! Several servers on one folder, with random traffic, some of them killed: each answer is what a server without a store
//! says, and when they rest, they agree on what is there, within the budget.

use std::path::Path;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Random, until};

use super::traffic::{Answered, Life, Prompts};
use super::{Compared, MODELS, Reference, flags, play};
use crate::neighbours::bytes;
use crate::{SIGKILL, SIGTERM, Stored, folder};

/// The budget of each folder, in 10⁹ bytes: less than what the traffic would keep.
const BUDGET: &str = "0.004";
const BUDGET_BYTES: u64 = 4_000_000;
/// What the files may exceed it by while servers write: what they write between two looks at the folder.
const BETWEEN_LOOKS: u64 = 8_000_000;
/// How many servers use one folder, in turn.
const SERVERS: [usize; 2] = [2, 4];
/// How many rounds, if no time is given.
const ROUNDS: usize = 2;

/// How long, by `scripts/soak neighbours`.
fn time() -> Option<Duration> {
    let given = std::env::var("CONTEXTPILOT_TEST_STORE_MINUTES").ok();
    given.map(|minutes| Duration::from_secs(60 * minutes.parse::<u64>().expect("minutes")))
}

/// A server of a round, with what it is asked.
struct Playing {
    stored: Stored,
    life: Life,
    random: Random,
}

impl Playing {
    fn start(folder: &Path, seed: u64) -> Self {
        let mut random = Random(seed);
        let life = Life::new(&mut random, true, false);
        let builder = flags(MODELS[0], &life, folder);
        Self {
            stored: Stored::start_within(&builder, folder, BUDGET),
            life,
            random,
        }
    }

    fn play(&mut self, prompts: &Prompts) -> Vec<Answered> {
        play(&self.stored.server, prompts, &self.life, &mut self.random)
    }
}

/// The most that files had while `work` ran, and its result.
fn watched<R>(folder: &Path, work: impl FnOnce() -> R + Send) -> (u64, R)
where
    R: Send,
{
    std::thread::scope(|scope| {
        let running = scope.spawn(work);
        let mut most = 0;
        while !running.is_finished() {
            most = most.max(bytes(folder));
            std::thread::sleep(Duration::from_millis(100));
        }
        (most, running.join().unwrap())
    })
}

#[test]
fn several_servers_on_one_folder_answer_as_without_a_store() {
    let begin = Instant::now();
    let (mut compared, mut loaded, mut killed, mut round) = (Compared::default(), 0, 0, 0);
    let (mut reference, mut most) = (Reference::start(MODELS[0], "2048"), 0);
    let first = super::first();
    while time().map_or(round < ROUNDS, |time| begin.elapsed() < time) {
        let (folder, prompts) = (folder(), Prompts::new());
        let folder = folder.path();
        let servers = SERVERS[round % SERVERS.len()];
        let mut random = Random(first + round as u64);
        let mut start = || Playing::start(folder, random.draw());
        let mut all: Vec<Playing> = (0..servers).map(|_| start()).collect();
        // Twice: some begin anew in between, others go on.
        for half in 0..2 {
            let (bytes, answers) = watched(folder, || {
                std::thread::scope(|scope| {
                    let prompts = &prompts;
                    let clients = all.iter_mut().map(|one| scope.spawn(|| one.play(prompts)));
                    let clients: Vec<_> = clients.collect();
                    let joined = clients.into_iter().map(|one| one.join().unwrap());
                    joined.collect::<Vec<_>>()
                })
            });
            most = most.max(bytes);
            for (one, answers) in all.iter().zip(&answers) {
                let flags = one.life.flags.join(" ");
                let what = format!("round {round} of {servers} servers, {flags}");
                compared.add(&what, answers, &mut reference, false);
                let figures = one.stored.figures();
                assert_eq!(figures.problem, None, "{what}");
                loaded += figures.loaded_tokens;
            }
            if half == 0 {
                let nth = round % servers;
                let end = [SIGKILL, SIGTERM][round / servers % 2];
                all[nth].stored.server.stop(end).unwrap();
                all[nth] = Playing::start(folder, random.draw());
                killed += 1;
            }
        }
        until("all agree, within the budget", || {
            let there = bytes(folder);
            let mut counted = all.iter().map(|one| one.stored.figures().bytes);
            (there <= BUDGET_BYTES && counted.all(|bytes| bytes == there)).then_some(())
        });
        round += 1;
        if time().is_some() {
            eprintln!("round {round}: {} answers", compared.answers);
        }
    }
    eprintln!(
        "{round} rounds, {killed} servers started anew, at most {most} bytes; {loaded} tokens loaded; {}",
        compared.said()
    );
    compared.judge();
    assert!(loaded > 100 * round as u64, "{loaded}");
    assert!(most <= BUDGET_BYTES + BETWEEN_LOOKS, "{most}");
}
