//! Everything is on, and everything is killed at random moments: the server, the index, a gateway that follows its
//! KV cache events, a client of its control endpoint. Clients begin conversations, go on with them, go back in them,
//! ask again, and leave in the middle of an answer.
//!
//! A life of the server ends in the middle of that by SIGKILL, or in peace. Before it ends in peace, the engine is
//! asked about every id of this life: it must be reported if, and only if, its prompt is gone, or was gone when
//! a later request had it evaluated again ([`truth`]). After each start, every id of the lives before must be reported.
//!
//! `CONTEXTPILOT_TEST_LIVES=300` runs 300 lives instead of 5 (`scripts/soak everything 300`).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Builder, Random, Server};
use serde_json::Value;

use crate::support::{Home, PATIENCE, times};

mod clients;
mod disturb;
mod truth;

use clients::{Chain, Life};
use disturb::{Flapping, Followers};

const CLIENTS: u64 = 4;
const SLOTS: u32 = 4;
const SHORTEST_MS: u64 = 100;
const LONGEST_MS: u64 = 4000;

/// A server with everything on. What it is started with differs from life to life.
fn server(home: &Home, index: &str, random: &mut Random) -> Builder {
    let file = |name: &str| home.path().join(name).display().to_string();
    let host = random.choose(&["0", "1", "64"]);
    let unified = random.choose(&["--kv-unified", "--no-kv-unified"]);
    let builder = Server::tiny()
        .args(["-c", "8192", "--cache-ram", host, unified, "--parallel"])
        .args([SLOTS.to_string()])
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .index_url(index)
        .observed();
    [
        ("XDG_STATE_HOME", file("state")),
        ("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:0".to_owned()),
        ("CONTEXTPILOT_EXPLAIN_TEXT", "1".to_owned()),
        ("CONTEXTPILOT_STORE", file("store")),
        // Small, so that chunks are removed all the time.
        ("CONTEXTPILOT_STORE_GB", "0.02".to_owned()),
        ("CONTEXTPILOT_LOG_FILE", file("log")),
        ("CONTEXTPILOT_TRAFFIC_FILE", file("traffic")),
    ]
    .into_iter()
    .fold(builder, |builder, (name, value)| builder.env(name, value))
}

/// What all lives together came to.
#[derive(Debug, Default)]
struct Account {
    kills: usize,
    requests: usize,
    left: usize,
    asked: usize,
    cached: usize,
}

#[test]
fn whatever_is_killed_the_reports_are_what_the_engine_says() {
    let lives = times("CONTEXTPILOT_TEST_LIVES", 5);
    let mut random = Random(lives);
    let home = Home::new();
    let mut flapping = Flapping::start();
    let mut account = Account::default();
    let mut answered = BTreeSet::new();
    let (mut seed, mut next) = (random.split(), 0);
    for number in 0..lives {
        let builder = server(&home, &flapping.url(), &mut random);
        let mut server = builder.spawn().unwrap();
        let lost = flapping.lost(&answered, PATIENCE);
        assert!(lost.is_empty(), "life {number}: {lost:?} were lost");

        let in_peace = random.below(3) > 0;
        let span = Duration::from_millis(random.within(SHORTEST_MS..LONGEST_MS));
        let end = Instant::now() + span;
        let life = Life::new(server.address(), next);
        let chains: Vec<Chain> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let random = seed.split();
                    scope.spawn(|| life.client(random))
                })
                .collect();
            let (follows, flaps) = (seed.split(), seed.split());
            let control = server.await_control().unwrap();
            let followers = Followers::of(&server, control);
            scope.spawn(move || followers.disturb(follows, end));
            flapping.flap(flaps, end);
            if !in_peace {
                server.signal(libc::SIGKILL);
            }
            life.end();
            clients
                .into_iter()
                .flat_map(|client| client.join().unwrap())
                .collect()
        });
        next = life.next();
        account.requests += chains.iter().map(|chain| chain.asked.len()).sum::<usize>();
        account.left += life.left();
        let asked = chains.iter().flat_map(|chain| &chain.asked);
        answered.extend(asked.map(|asked| asked.id.clone()));
        if in_peace {
            agrees(&server, &flapping, &chains, number, &mut account);
        }
        // llama-server 0.7.0 itself hangs if SIGTERM comes during a request. Here none is in progress.
        let signal = if in_peace && random.below(2) == 0 {
            libc::SIGTERM
        } else {
            libc::SIGKILL
        };
        account.kills += usize::from(signal == libc::SIGKILL);
        if in_peace {
            server.stop(signal).unwrap()
        } else {
            server.wait(PATIENCE).unwrap()
        };
    }
    let torn = torn_lines(&home.path().join("log"));
    assert!(
        torn <= account.kills,
        "{torn} lines of the log are not whole"
    );
    println!(
        "{lives} lives, {} of them ended by SIGKILL; index killed {} times; {} requests, {} clients left; \
         {} ids asked about: {} are cached, 0 wrong; {torn} torn lines in the log",
        account.kills,
        flapping.kills(),
        account.requests,
        account.left,
        account.asked,
        account.cached,
    );
    assert!((1..account.asked).contains(&account.cached), "{account:?}");
}

/// What is reported must be what the engine says, for every id.
fn agrees(
    server: &Server,
    flapping: &Flapping,
    chains: &[Chain],
    number: u64,
    account: &mut Account,
) {
    server.wait_idle().unwrap();
    server.come_to_rest().unwrap();
    let stats = disturb::get(server.await_control().unwrap(), "/stats");
    assert_eq!(stats["mode"], "reporting", "life {number}");
    assert_eq!(stats["losses"]["gaps"], 0, "life {number}: {stats}");
    let said = server.stderr();
    for word in ["internal error", "panicked"] {
        assert!(!said.contains(word), "life {number}: {said}");
    }
    let told = flapping.evicted();
    for found in truth::of(server, chains) {
        let id = &found.asked.id;
        let wrong = match (told.contains(id), found.is_cached) {
            (true, true) if !found.was_gone => "is cached all the time, but was reported",
            (false, false) => "is gone, but was not reported",
            _ => {
                account.asked += 1;
                account.cached += usize::from(found.is_cached);
                continue;
            }
        };
        let control = server.await_control().unwrap();
        let why = disturb::get(control, &format!("/requests/{id}"));
        panic!(
            "life {number}: {:?} {wrong}; of its conversation {:?} are there, which was asked as {:?}; the hook says {why}; \
             {said}",
            found.asked, found.there, found.chain
        );
    }
}

/// Lines of the log that are not JSON: a kill may have cut one off.
fn torn_lines(log: &Path) -> usize {
    let text = std::fs::read_to_string(log).unwrap();
    let is_torn = |line: &&str| serde_json::from_str::<Value>(line).is_err();
    text.lines().filter(is_torn).count()
}
