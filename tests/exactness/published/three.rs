//! A long run: three routers follow a server under load, and one of them is killed and started again
//! several times. At the end each router must have exactly the engine's set of blocks.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use contextpilot_testbed::{Error, Request, Result, Server, try_until};

use crate::indexer::{BLOCK, Indexer, next_port};
use crate::prompts::text;
use crate::publisher::Publisher;
use crate::slots::{contents, names};

/// Sets the least number of requests. A server may get about 100,000 in a day.
const REQUESTS: &str = "CONTEXTPILOT_TEST_ROUTER_REQUESTS";
const CLIENTS: u64 = 4;
/// How often the third router is killed at least.
const KILLS: u64 = 4;

/// The state that clients and routers share.
struct Day {
    publisher: Publisher,
    answered: AtomicU64,
    killed: AtomicU64,
    requests: u64,
    failed: AtomicBool,
}

pub(crate) fn run(indexer: &Indexer, python: &Path) -> Result<String> {
    let wanted = std::env::var(REQUESTS).ok();
    let requests = wanted.and_then(|text| text.parse().ok()).unwrap_or(400);
    let llama = Server::tiny();
    let llama = llama.bare_slots(8).args(["-c", "4096"]);
    let day = Day {
        publisher: Publisher::start(&llama, next_port(), None)?,
        answered: AtomicU64::new(0),
        killed: AtomicU64::new(0),
        requests,
        failed: AtomicBool::new(false),
    };
    let events = day.publisher.events;
    let other = Indexer::start(python)?;
    indexer.register(events, events)?;
    other.register(events, events)?;
    let doomed = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn({
                    let day = &day;
                    move || day.load(client)
                })
            })
            .collect();
        let doomed = day.kill_again_and_again(python);
        day.failed.fetch_or(doomed.is_err(), Ordering::Relaxed);
        for client in clients {
            client
                .join()
                .map_err(|_| Error::new("a client panicked"))??;
        }
        doomed
    })?;
    day.publisher.server.wait_idle()?;
    let held = contents(&day.publisher.server)?;
    let held = held.ok_or_else(|| Error::new("the slots are not told"))?;
    let truth = names(&held, BLOCK);
    if truth.len() < 16 {
        return Err(Error::new("there is nothing to compare"));
    }
    for (name, router) in [("first", indexer), ("second", &other), ("killed", &doomed)] {
        let mut last = 0;
        try_until("a router has the engine's set", || {
            let blocks = router.blocks(events)?;
            last = blocks.symmetric_difference(&truth).count();
            Ok((blocks == truth).then_some(()))
        })
        .map_err(|error| Error::new(format!("the {name} router: {error}: {last} blocks differ")))?;
    }
    day.report(truth.len())
}

impl Day {
    fn is_over(&self) -> bool {
        let enough = self.answered.load(Ordering::Relaxed) >= self.requests
            && self.killed.load(Ordering::Relaxed) >= KILLS;
        enough || self.failed.load(Ordering::Relaxed)
    }

    /// One client. It sends prompts that begin with one of five documents, one after the other.
    fn load(&self, client: u64) -> Result<()> {
        for nth in 0.. {
            if self.is_over() {
                break;
            }
            let seed = nth * CLIENTS + client;
            let length = 24 + (seed % 7) as usize * 24;
            let prompt = format!("{}{}", text(seed % 5, 32), text(seed, length));
            let request = Request::completion(prompt).predict(2);
            let answer = self.publisher.server.complete(&request);
            self.failed.fetch_or(answer.is_err(), Ordering::Relaxed);
            answer?;
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Starts a router, and kills it when it has received some blocks. Repeats this until the load ends.
    /// Returns the last router.
    fn kill_again_and_again(&self, python: &Path) -> Result<Indexer> {
        let events = self.publisher.events;
        loop {
            let router = Indexer::start(python)?;
            router.register(events, events)?;
            try_until("it has heard of some blocks", || {
                Ok((!router.blocks(events)?.is_empty()).then_some(()))
            })?;
            if self.is_over() {
                return Ok(router);
            }
            self.work_on();
            // Dropping the router kills it with SIGKILL.
            drop(router);
            self.killed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until another hundredth of the requests is answered.
    fn work_on(&self) {
        let enough = self.answered.load(Ordering::Relaxed) + self.requests / 100;
        while !self.is_over() && self.answered.load(Ordering::Relaxed) < enough {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn report(&self, blocks: usize) -> Result<String> {
        let figures = self.publisher.figures()?;
        let number = |field: &str| figures[field].as_u64().unwrap_or(0);
        Ok(format!(
            "{} requests, a router was killed {} times, all three have the {blocks} blocks of the \
             engine; {} blocks stored and {} removed, {} replays, {} dropped",
            self.answered.load(Ordering::Relaxed),
            self.killed.load(Ordering::Relaxed),
            number("stored"),
            number("removed"),
            number("replays"),
            number("dropped")
        ))
    }
}
