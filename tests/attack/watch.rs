//! What the attacked and their neighbours do meanwhile.

use std::fs;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::peers::Sent;
use super::target::{Front, Target, exchange};

/// How often a neighbour asks, and how often processes are looked at.
const PACE: Duration = Duration::from_millis(20);

/// What was held against an attack.
pub(crate) struct Held {
    requests: u64,
    bytes: u64,
    /// Of one processor, for the hook's threads.
    pub(crate) share: f64,
    /// Tokens that a client got meanwhile, and for how long it asked.
    pub(crate) tokens: u64,
    pub(crate) took: Duration,
    /// How long health checks and evictions took, ascending.
    latencies: Vec<Duration>,
    pub(crate) unanswered: Vec<String>,
    /// MiB at most: of the server, more than at its start; of the index; of the gateway.
    pub(crate) memory: [u64; 3],
}

impl Held {
    pub(crate) const HEAD: &str = "\
| attack | tries | MB sent | neighbours' answers, p50, p99, most, ms | tokens/s | hook's threads, % of a processor | server, MiB more | index, MiB | gateway, MiB |\n\
|---|--:|--:|--:|--:|--:|--:|--:|--:|";

    pub(crate) fn latency(&self, share: f64) -> Duration {
        let rank = (share * self.latencies.len() as f64).ceil() as usize;
        let at = self
            .latencies
            .get(rank.max(1) - 1)
            .or(self.latencies.last());
        at.copied().unwrap_or(Duration::MAX)
    }

    pub(crate) fn line(&self, name: &str) -> String {
        let ms = |share| self.latency(share).as_secs_f64() * 1000.0;
        let [server, index, gateway] = self.memory;
        format!(
            "| {name} | {} | {:.1} | {:.1}, {:.1}, {:.1} | {:.0} | {:.1} | {server} | {index} | {gateway} |",
            self.requests,
            self.bytes as f64 / 1e6,
            ms(0.5),
            ms(0.99),
            ms(1.0),
            self.tokens as f64 / self.took.as_secs_f64(),
            100.0 * self.share,
        )
    }
}

/// Runs an attack, which lasts until then, beside the neighbours.
pub(crate) fn watch(target: &Target, until: Instant, attack: impl FnOnce() -> Sent + Send) -> Held {
    let begun = Instant::now();
    let front = &target.front;
    let server = front.server.pid();
    let pids = [server, front.index.pid(), front.gateway.pid()];
    let work = Work::of(server);
    let latencies = Mutex::new(Vec::new());
    let unanswered = Mutex::new(Vec::new());
    let (tokens, memory) = (AtomicU64::new(0), Mutex::new([0_u64; 3]));
    let probe = |name: &str, address: SocketAddr, method: &str, path: &str, body: &str| {
        while Instant::now() < until {
            let asked = Instant::now();
            let status =
                exchange(address, method, path, body.as_bytes()).map(|answer| answer.status);
            latencies.lock().unwrap().push(asked.elapsed());
            match status {
                Ok(200) => {}
                Ok(status) => unanswered
                    .lock()
                    .unwrap()
                    .push(format!("{name} {path}: {status}")),
                Err(error) => unanswered
                    .lock()
                    .unwrap()
                    .push(format!("{name} {path}: {error}")),
            }
            thread::sleep(PACE);
        }
    };
    let sent = thread::scope(|scope| {
        let attack = scope.spawn(attack);
        let (index, gateway) = (front.index.address, front.gateway.address);
        let evict = r#"{"request_ids": ["nobody"]}"#;
        scope.spawn(move || probe("index", index, "GET", "/ready", ""));
        scope.spawn(move || probe("index", index, "POST", "/evict", evict));
        scope.spawn(move || probe("gateway", gateway, "GET", "/health", ""));
        scope.spawn(|| generate(front.server.address(), until, &tokens));
        scope.spawn(|| {
            while Instant::now() < until {
                let mut most = memory.lock().unwrap();
                for (most, pid) in most.iter_mut().zip(pids) {
                    *most = resident(pid).max(*most);
                }
                drop(most);
                thread::sleep(PACE);
            }
        });
        attack.join().expect("the attack ends")
    });
    let took = begun.elapsed();
    let mut latencies = latencies.into_inner().unwrap();
    latencies.sort_unstable();
    let mut memory = memory.into_inner().unwrap();
    memory[0] = memory[0].saturating_sub(front.resident);
    let mut unanswered = unanswered.into_inner().unwrap();
    unanswered.truncate(5);
    Held {
        requests: sent.requests.into_inner(),
        bytes: sent.bytes.into_inner(),
        share: Work::of(server).since(&work).as_secs_f64() / took.as_secs_f64(),
        tokens: tokens.into_inner(),
        took,
        latencies,
        unanswered,
        memory,
    }
}

/// MiB that a plain server takes at most, more than at its start, beside the same attack and the same client.
pub(crate) fn memory_of_plain(
    front: &Front,
    until: Instant,
    attack: impl FnOnce() -> Sent + Send,
) -> u64 {
    let server = front.server.pid();
    let mut most = 0;
    thread::scope(|scope| {
        scope.spawn(attack);
        scope.spawn(|| generate(front.server.address(), until, &AtomicU64::new(0)));
        while Instant::now() < until {
            most = most.max(resident(server));
            thread::sleep(PACE);
        }
    });
    most.saturating_sub(front.resident)
}

/// A client that always has something to ask.
fn generate(server: SocketAddr, until: Instant, tokens: &AtomicU64) {
    let mut turn = 0;
    while Instant::now() < until {
        turn += 1;
        let body = json!({
            "prompt": format!("{} Go on.", turn % 5), "n_predict": 16, "temperature": 0, "ignore_eos": true,
            "rid": format!("neighbour-{turn}"),
        });
        let answer = exchange(server, "POST", "/completion", body.to_string().as_bytes());
        let predicted = answer.and_then(|answer| answer.json());
        let predicted = predicted.unwrap_or_default()["tokens_predicted"].as_u64();
        tokens.fetch_add(predicted.unwrap_or(0), Ordering::Relaxed);
    }
}

/// The processor time of the hook's threads.
struct Work {
    whole: u64,
    others: u64,
}

impl Work {
    /// All of the process but its own threads: those of connections to the hook may have ended.
    fn of(pid: u32) -> Self {
        let mut others = 0;
        for task in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            // Those of connections to the control endpoint are called just that.
            if !name.starts_with("contextpilot") && name.trim() != "connection" {
                others += ticks(&task.path().join("stat"));
            }
        }
        let whole = ticks(format!("/proc/{pid}/stat").as_ref());
        Self { whole, others }
    }

    fn since(&self, before: &Self) -> Duration {
        let ours = |work: &Self| work.whole.saturating_sub(work.others);
        // A hundred ticks a second.
        Duration::from_millis(10 * ours(self).saturating_sub(ours(before)))
    }
}

/// In user and kernel mode.
fn ticks(file: &std::path::Path) -> u64 {
    let stat = fs::read_to_string(file).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let times = fields.split_whitespace().skip(11).take(2);
    times.filter_map(|time| time.parse::<u64>().ok()).sum()
}

/// MiB.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}
