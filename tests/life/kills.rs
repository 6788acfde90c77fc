//! Servers are killed with SIGKILL at random moments under load. The next start must report the id of
//! every request that was answered before, and no id that it has cached itself.
//!
//! This holds up to the last answer: the thread that receives a request stores its id where a crash
//! does not destroy it, before the request can be answered. So the test waits neither for that nor
//! for the journal.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use contextpilot_testbed::{Index, Random, Request, Server};

use crate::support::{Home, PATIENCE, ask, is_cached, times};

const CLIENTS: usize = 4;
const SLOTS: u32 = 4;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST_MS: u64 = 400;

/// The ids of all requests, and of those that were answered.
#[derive(Default)]
struct Asked {
    sent: BTreeSet<String>,
    answered: BTreeSet<String>,
}

/// Clients send requests until the server is killed, after `life`.
fn load(server: &mut Server, next: &AtomicUsize, asked: &Mutex<Asked>, life: Duration) {
    let dead = AtomicBool::new(false);
    let address = server.address();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !dead.load(Ordering::Relaxed) {
                    let Ok(mut connection) = contextpilot_testbed::Connection::open(address) else {
                        return;
                    };
                    // The server closes a connection after 100 requests.
                    for _ in 0..90 {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        let id = format!("req-{n}");
                        // Three requests in a row have the same prompt, so their marks are at the same node.
                        let prompt = format!("{} was asked here", (n / 3) % 10_000);
                        let request = Request::completion(prompt)
                            .id(id.as_str())
                            .predict(1 + (n % 5) as u32);
                        asked.lock().unwrap().sent.insert(id.clone());
                        let body = request.wire_body();
                        let answer = connection.exchange("POST", request.path(), body.as_bytes());
                        match answer {
                            Ok(answer) if answer.status == 200 => {
                                asked.lock().unwrap().answered.insert(id);
                            }
                            _ => return,
                        }
                    }
                }
            });
        }
        std::thread::sleep(life);
        server.signal(libc::SIGKILL);
        dead.store(true, Ordering::Relaxed);
    });
    server.wait(PATIENCE).unwrap();
}

#[test]
fn when_killed_at_random_moments_under_load_no_id_is_lost() {
    let rounds = times("CONTEXTPILOT_TEST_KILLS", 10);
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, SLOTS);
    let next = AtomicUsize::new(0);
    let asked = Mutex::new(Asked::default());
    // The moments of the kills differ between rounds, and are the same in each run, as far as the machine's
    // timing allows.
    let mut random = Random(rounds);
    let mut slowest = Duration::ZERO;
    let mut server = builder.spawn().unwrap();
    for round in 0..rounds {
        let life = SHORTEST + Duration::from_micros(random.below(LONGEST_MS * 1000));
        load(&mut server, &next, &asked, life);
        server = builder.spawn().unwrap();
        // About one server in four is killed again at once, while it reports the lost ids.
        if random.below(4) == 0 {
            server.stop(libc::SIGKILL).unwrap();
            server = builder.spawn().unwrap();
        }
        let start = Instant::now();
        let mut asked = asked.lock().unwrap();
        let told = index.wait_until(|evicted| asked.answered.is_subset(evicted), PATIENCE);
        let evicted = index.evicted();
        let untold: Vec<_> = asked.answered.difference(&evicted).collect();
        assert!(told, "round {round}, after {life:?}: {untold:?} were lost");
        slowest = slowest.max(start.elapsed());
        assert!(evicted.is_subset(&asked.sent), "round {round}");

        // New requests to the new server are cached, and are not reported.
        let mine = [format!("mine-{round}-a"), format!("mine-{round}-b")];
        for (slot, id) in (0..).zip(&mine) {
            ask(&server, slot, id);
        }
        server.wait_idle().unwrap();
        for (slot, id) in (0..).zip(&mine) {
            assert!(is_cached(&server, slot, id));
            assert!(!index.evicted().contains(id), "{id} is cached");
        }
        // These ids will be lost with this process, too.
        asked.sent.extend(mine.iter().cloned());
        asked.answered.extend(mine);
    }
    // The server reports the last two cached ids when it ends.
    server.stop(libc::SIGTERM).unwrap();
    let asked = asked.lock().unwrap();
    let (reports, evicted) = (index.reports().len(), index.evicted());
    let lost: Vec<_> = asked.answered.difference(&evicted).collect();
    assert!(lost.is_empty(), "{lost:?} were lost");
    println!(
        "{rounds} kills: {} requests sent, {} answered, {} ids told ({} reports more than that), \
         told within {slowest:?} of a restart",
        asked.sent.len(),
        asked.answered.len(),
        evicted.len(),
        reports - evicted.len(),
    );
}
