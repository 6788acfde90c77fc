//! Many requests from eight clients, while the index is killed and started again every few seconds: is
//! any eviction lost, and what does the hook cost?
//!
//! Run it by `scripts/soak`, which builds the launcher and hands over its path.

use contextpilot_testbed::{Behaviour, Builder, Error, Index, Request, Result, Server};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 8;
const SLOTS: u32 = 4;
/// The server closes a connection after 100 requests.
const ON_A_CONNECTION: usize = 90;
/// How long the last evictions may take to arrive.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many pairs of runs, with the hook and without, compare the speed.
const TURNS: usize = 5;
/// What the hook may add to the memory of the server, KiB.
const MOST_MEMORY: i64 = 16 << 10;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // A command for people. It has no other error message.
            eprintln!("[ContextPilot] The soak stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn failed(what: impl Into<String>) -> Error {
    Error::from(std::io::Error::other(what.into()))
}

fn run() -> Result<bool> {
    let mut args = std::env::args().skip(1);
    let launcher = args.next().ok_or_else(|| failed("run scripts/soak"))?;
    let requests = match args.next() {
        Some(number) => number
            .parse()
            .map_err(|_| failed(format!("{number:?} is no number of requests")))?,
        None => 100_000,
    };
    let flapping = Flapping::start()?;
    let hooked = Server::tiny()
        .bare_slots(SLOTS)
        .args(["-c", "1024"])
        .launcher(launcher)
        .index_url(flapping.url());
    let plain = hooked.plain();

    let (with, mut server) = load(&hooked, requests)?;

    let sent: BTreeSet<String> = (0..requests).map(id).collect();
    let reports = flapping.stop(&sent)?;
    let reported: BTreeSet<String> = reports.reports.iter().cloned().collect();
    let cached: Vec<&String> = sent.difference(&reported).collect();
    let wrong = untrue(&server, &cached)?;
    let index = Index::start_at(reports.address)?;
    let status = server.stop(libc::SIGTERM)?;
    let at_the_end = index.evicted();
    let lost = sent
        .iter()
        .filter(|id| !reported.contains(*id) && !at_the_end.contains(*id))
        .count();

    // The speed of a machine varies, so the two kinds of runs alternate.
    let steady = Index::start()?;
    let hooked = hooked.index_url(steady.url());
    let mut turns = Vec::new();
    let mut plain_memory = 0;
    for _ in 0..TURNS {
        let without = load(&plain, requests / 10)?.0;
        let with = load(&hooked, requests / 10)?.0;
        plain_memory = without.memory.max(plain_memory);
        turns.push((with.rate / without.rate, with.rate, without.rate));
    }
    turns.sort_by(|a, b| a.0.total_cmp(&b.0));
    let more = with.memory - plain_memory;
    println!("requests                {requests} from {CLIENTS} clients to {SLOTS} slots");
    println!(
        "index                   killed and started again {} times",
        reports.restarts
    );
    println!(
        "reported while running  {} ids, {} of them more than once",
        reported.len(),
        reports.reports.len() - reported.len()
    );
    println!(
        "cached at the end       {} ids, {wrong} of which the engine does not have",
        cached.len()
    );
    println!("reported at the end     {} ids, {status}", at_the_end.len());
    println!("lost                    {lost}");
    println!(
        "memory (peak)           {:.1} MiB, plain {:.1} MiB: {:+.1} MiB",
        mib(with.memory),
        mib(plain_memory),
        mib(more)
    );
    println!("requests a second       {:.0}, then in turns:", with.rate);
    for (ratio, with, without) in &turns {
        println!("                        {with:.0}, plain {without:.0}: {ratio:.3} of plain");
    }
    Ok(lost == 0 && wrong == 0 && cached.len() == SLOTS as usize && more <= MOST_MEMORY)
}

fn mib(kib: i64) -> f64 {
    kib as f64 / 1024.0
}

fn id(n: usize) -> String {
    format!("req-{n:08}")
}

/// The number, last digit first, and letters. Successive prompts differ in their first token.
fn prompt(n: usize) -> String {
    let number: String = format!("{n:08}").chars().rev().collect();
    let letters = "abcdefghij".chars().cycle().skip(n % 10).take(25);
    number.chars().chain(letters).collect()
}

struct Measured {
    /// Requests a second.
    rate: f64,
    /// The peak resident memory of the process, KiB.
    memory: i64,
}

/// Starts a server and sends it so many requests from all clients.
fn load(builder: &Builder, requests: usize) -> Result<(Measured, Server)> {
    let server = builder.spawn()?;
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    let served: Vec<Result<()>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| client(&server, &next, requests)))
            .collect();
        let join = |client: thread::ScopedJoinHandle<'_, _>| {
            client
                .join()
                .unwrap_or_else(|_| Err(failed("a client panicked")))
        };
        clients.into_iter().map(join).collect()
    });
    served.into_iter().collect::<Result<()>>()?;
    let took = start.elapsed();
    server.wait_idle()?;
    let measured = Measured {
        rate: requests as f64 / took.as_secs_f64(),
        memory: peak_memory(&server)?,
    };
    Ok((measured, server))
}

fn client(server: &Server, next: &AtomicUsize, requests: usize) -> Result<()> {
    loop {
        let mut connection = server.connect()?;
        for _ in 0..ON_A_CONNECTION {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= requests {
                return Ok(());
            }
            let request = Request::completion(prompt(n)).id(id(n)).predict(2);
            let body = request.wire_body();
            let answer = connection.exchange("POST", request.path(), body.as_bytes())?;
            if answer.status != 200 {
                return Err(failed(format!("{}: {}", answer.status, answer.text())));
            }
        }
    }
}

fn peak_memory(server: &Server) -> Result<i64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .ok_or_else(|| failed("no VmHWM in /proc"))
}

/// How many of these prompts the engine does not have. Each is sent again: that changes only the slot that
/// holds it.
fn untrue(server: &Server, cached: &[&String]) -> Result<usize> {
    let mut wrong = 0;
    for id in cached {
        let n = id.trim_start_matches("req-").parse().unwrap_or_default();
        let answer = server.complete(&Request::completion(prompt(n)).predict(1))?;
        wrong += usize::from(answer.cache_n + 1 != answer.prompt_tokens);
    }
    Ok(wrong)
}

/// An index that is killed and started again, at one address.
struct Flapping {
    address: SocketAddr,
    stop: std::sync::Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<(Reports, Index)>>,
}

#[derive(Debug)]
struct Reports {
    address: SocketAddr,
    /// The ids of all accepted reports, in order.
    reports: Vec<String>,
    restarts: usize,
}

impl Flapping {
    fn start() -> Result<Self> {
        let index = Index::start()?;
        let address = index.address();
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let thread = thread::spawn(move || flap(index, &stopped));
        Ok(Self {
            address,
            stop,
            thread,
        })
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until the index has received all evictions: those of all ids that were sent, except one for
    /// each slot, which may still be cached. Then stops it.
    fn stop(self, sent: &BTreeSet<String>) -> Result<Reports> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| failed("the index panicked");
        let (mut reports, index) = self.thread.join().map_err(panicked)??;
        let before: BTreeSet<String> = reports.reports.iter().cloned().collect();
        let expected = sent.len().saturating_sub(SLOTS as usize);
        index.wait_until(
            |evicted| evicted.union(&before).count() >= expected,
            PATIENCE,
        );
        // Time for false reports to arrive.
        thread::sleep(Duration::from_millis(500));
        reports.reports.extend(index.reports());
        Ok(reports)
    }
}

/// Kills the index after 1 to 4 seconds and starts it again up to 2 seconds later, again and again.
fn flap(mut index: Index, stop: &AtomicBool) -> Result<(Reports, Index)> {
    let address = index.address();
    let mut all = Reports {
        address,
        reports: Vec::new(),
        restarts: 0,
    };
    let rest = |life: u64| {
        let end = Instant::now() + Duration::from_millis(life);
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
    };
    for number in 1_u64.. {
        rest(1000 + number * 1777 % 3000);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // From here on, nothing is accepted: the list of accepted posts is complete.
        index.behave(Behaviour::Close);
        let last = index.reports();
        drop(index);
        all.reports.extend(last);
        rest(number * 1234 % 2000);
        index = Index::start_at(address)?;
        all.restarts += 1;
    }
    Ok((all, index))
}
