//! What the ledger costs at its largest: 256 sequences of 131,072 tokens and
//! 100,000 live ids.
//!
//!     cargo bench -p contextpilot-residency
//!
//! Wanted, on one core: 20 million appended tokens a second, 99 of 100 events
//! within 5 µs, 12 bytes a distinct token. Only [`Ledger::apply`] is timed; the
//! events are made up before. An *event* here is what the hook sends while the
//! server generates: one token of one slot, one removal, one copy of a slot.
//! Batches of many tokens are counted by the token.

use contextpilot_residency::{
    Arrival, BufferId, ContextId, Effect, Entry, Event, Ledger, Position, SequenceId, Token,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SEQUENCES: SequenceId = 256;
const CONTEXT: Position = 131_072;
const IDS: Position = 100_000;
/// Tokens of an evaluated piece of prompt, as with `llama-server -b 512`.
const BATCH: Position = 512;
/// What all sequences begin with.
const SYSTEM_PROMPT: Position = 1_000;
/// How often each kind of event is timed.
const SAMPLES: usize = 20_000;

/// Counts what is allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator; counting changes nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    println!("one core; {SEQUENCES} sequences of {CONTEXT} tokens\n");
    prompts();
    let mut bench = conversations();
    generation(&mut bench);
    events(&mut bench);
    evictions();
}

/// The ledger, and how long it took.
struct Bench {
    ledger: Ledger,
    effects: Vec<Effect>,
    arrivals: u64,
    started_with: usize,
}

const ENGINE: ContextId = ContextId(1);

impl Bench {
    fn new() -> Self {
        let started_with = ALLOCATED.load(Ordering::Relaxed);
        let mut bench = Self {
            ledger: Ledger::new(),
            effects: Vec::new(),
            arrivals: 0,
            started_with,
        };
        bench.apply(Event::ContextCreated { context: ENGINE });
        bench
    }

    fn apply(&mut self, event: Event) -> Duration {
        self.effects.clear();
        let start = Instant::now();
        self.ledger.apply(event, &mut self.effects);
        start.elapsed()
    }

    fn evaluate(&mut self, entries: Vec<Entry>) -> Duration {
        let submitted = Event::Submitted {
            context: ENGINE,
            entries,
        };
        let evaluated = Event::Evaluated {
            context: ENGINE,
            failed: Vec::new(),
        };
        self.apply(submitted) + self.apply(evaluated)
    }

    /// A request with an id of its own begins on a slot.
    fn launch(&mut self, sequence: SequenceId) -> Duration {
        self.arrivals += 1;
        let (arrival, task) = (Arrival(self.arrivals), self.arrivals as i32);
        let id: std::sync::Arc<str> = format!("req-{task:012x}").into();
        self.apply(Event::Posted {
            arrival,
            task,
            id: id.clone(),
        }) + self.apply(Event::Launched { sequence, task })
            + self.apply(Event::Answered { arrival, id })
    }

    fn remove(&mut self, sequence: SequenceId, from: Position) -> Duration {
        self.apply(Event::Removed {
            context: ENGINE,
            sequence,
            from,
            to: -1,
        })
    }

    fn report_memory(&self) {
        let bytes = ALLOCATED.load(Ordering::Relaxed) - self.started_with;
        let (tokens, ids) = (self.ledger.tokens(), self.ledger.live());
        println!(
            "  memory: {:.2} bytes a distinct token ({tokens} tokens and {ids} ids in {:.1} MiB)",
            bytes as f64 / tokens as f64,
            bytes as f64 / f64::from(1 << 20),
        );
    }
}

/// The token of a sequence at a position: the same at the beginning, then its own.
fn token(sequence: SequenceId, position: Position) -> Token {
    let own = if position < SYSTEM_PROMPT {
        0
    } else {
        sequence + 1
    };
    let mixed = (own as u64) << 32 | position as u64;
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 47) as Token
}

/// `count` successive tokens; the output of the last one is asked for if the prompt ends there.
fn run(sequence: SequenceId, from: Position, count: Position, ends: bool) -> Vec<Entry> {
    (from..from + count)
        .map(|position| Entry {
            sequence,
            position,
            token: token(sequence, position),
            output: ends && position + 1 == from + count,
        })
        .collect()
}

fn rate(name: &str, tokens: usize, time: Duration) {
    println!(
        "{name}: {:.1} million tokens a second ({tokens} in {:.2} s)",
        tokens as f64 / time.as_secs_f64() / 1e6,
        time.as_secs_f64()
    );
}

/// One long prompt in each slot, 512 tokens at a time, slot after slot.
fn prompts() {
    let mut bench = Bench::new();
    let mut time = Duration::ZERO;
    for from in (0..CONTEXT).step_by(BATCH as usize) {
        for sequence in 0..SEQUENCES {
            let entries = run(sequence, from, BATCH, from + BATCH == CONTEXT);
            time += bench.evaluate(entries);
        }
    }
    rate("prompts", (SEQUENCES * CONTEXT) as usize, time);
    bench.report_memory();
}

/// The same tokens as conversations: each turn is a request with an id.
fn conversations() -> Bench {
    let mut bench = Bench::new();
    let turns = (IDS + SEQUENCES - 1) / SEQUENCES;
    let turn = CONTEXT / turns;
    let mut time = Duration::ZERO;
    let mut launches = Duration::ZERO;
    for nth in 0..turns {
        for sequence in 0..SEQUENCES {
            launches += bench.launch(sequence);
            time += bench.evaluate(run(sequence, nth * turn, turn, true));
        }
    }
    rate("conversations", (SEQUENCES * turns * turn) as usize, time);
    println!(
        "  {turns} turns of {turn} tokens in each; request, launch and answer: {:.2} µs a turn",
        launches.as_secs_f64() * 1e6 / f64::from(SEQUENCES * turns)
    );
    assert!(bench.ledger.live() >= IDS as usize, "ids were lost");
    bench.report_memory();
    bench
}

/// All slots generate: batches of one token from each.
fn generation(bench: &mut Bench) {
    let steps = 2_000;
    let mut time = Duration::ZERO;
    let held: Vec<Position> = (0..SEQUENCES)
        .map(|sequence| bench.ledger.held(sequence) as Position)
        .collect();
    for step in 0..steps {
        let entries = (0..SEQUENCES)
            .flat_map(|sequence| run(sequence, held[sequence as usize] + step, 1, true))
            .collect();
        time += bench.evaluate(entries);
    }
    rate(
        "generation, 256 slots at once",
        (SEQUENCES * steps) as usize,
        time,
    );
}

/// Times of one kind of event.
struct Times {
    name: &'static str,
    nanoseconds: Vec<u64>,
}

impl Times {
    fn new(name: &'static str) -> Self {
        let nanoseconds = Vec::with_capacity(SAMPLES);
        Self { name, nanoseconds }
    }

    fn add(&mut self, time: Duration) {
        self.nanoseconds.push(time.as_nanos() as u64);
    }
}

fn print_percentiles(name: &str, mut nanoseconds: Vec<u64>) {
    nanoseconds.sort_unstable();
    let at = |part: f64| nanoseconds[((nanoseconds.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    println!(
        "  {name:<42} p50 {:>6.2}   p99 {:>6.2}   p99.9 {:>6.2}   most {:>8.2} µs",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

/// Single events on the full ledger, each kind in turn, over all slots.
fn events(bench: &mut Bench) {
    let mut submitted = Times::new("submitted, one token");
    let mut evaluated = Times::new("evaluated, one token");
    let mut rejected = Times::new("removed, the last 4 tokens");
    let mut again = Times::new("submitted, 4 tokens the slot had left");
    let mut posted = Times::new("posted");
    let mut launched = Times::new("launched");
    let mut answered = Times::new("answered");
    let mut marked = Times::new("evaluated, a prompt ends");
    let mut superseded = Times::new("posted, the same id again");
    let mut saved = Times::new("saved, a whole slot");
    let mut emptied = Times::new("removed, a whole slot");
    let mut restored = Times::new("restored, a whole slot");
    let mut freed = Times::new("freed, its copy");
    let mut quiet = Times::new("quiet, 5 ms");
    for nth in 0..SAMPLES {
        let sequence = nth as SequenceId % SEQUENCES;
        let held = bench.ledger.held(sequence) as Position;
        let one = |position| run(sequence, position, 1, true);
        submitted.add(bench.apply(Event::Submitted {
            context: ENGINE,
            entries: one(held),
        }));
        let done = || Event::Evaluated {
            context: ENGINE,
            failed: Vec::new(),
        };
        evaluated.add(bench.apply(done()));
        rejected.add(bench.remove(sequence, held - 3));
        let entries = run(sequence, held - 3, 4, true);
        again.add(bench.apply(Event::Submitted {
            context: ENGINE,
            entries,
        }));
        bench.apply(done());

        bench.arrivals += 1;
        let (arrival, task) = (Arrival(bench.arrivals), bench.arrivals as i32);
        let id: std::sync::Arc<str> = format!("again-{sequence}").into();
        let post = if nth < SEQUENCES as usize {
            &mut posted
        } else {
            &mut superseded
        };
        post.add(bench.apply(Event::Posted {
            arrival,
            task,
            id: id.clone(),
        }));
        launched.add(bench.apply(Event::Launched { sequence, task }));
        answered.add(bench.apply(Event::Answered { arrival, id }));
        bench.apply(Event::Submitted {
            context: ENGINE,
            entries: one(held + 1),
        });
        marked.add(bench.apply(done()));

        let buffer = BufferId(nth);
        saved.add(bench.apply(Event::Saved {
            context: ENGINE,
            sequence,
            buffer,
        }));
        emptied.add(bench.remove(sequence, -1));
        restored.add(bench.apply(Event::Restored {
            context: ENGINE,
            sequence,
            buffer,
        }));
        freed.add(bench.apply(Event::Freed { buffer }));
        quiet.add(bench.apply(Event::Quiet {
            elapsed: Duration::from_millis(5),
        }));
    }
    println!("single events, {SAMPLES} of each:");
    let mut all = Vec::new();
    for times in [
        submitted, evaluated, rejected, again, posted, superseded, launched, answered, marked,
        saved, emptied, restored, freed, quiet,
    ] {
        all.extend_from_slice(&times.nanoseconds);
        print_percentiles(times.name, times.nanoseconds);
    }
    print_percentiles("all of them", all);
}

/// A slot of a full context is overwritten at its beginning: what it costs should
/// depend on how many ids are lost.
fn evictions() {
    println!("evictions, a slot of {CONTEXT} tokens overwritten from its beginning:");
    for ids in [1, 10, 100, 1_000, 10_000] {
        let mut bench = Bench::new();
        let turn = CONTEXT / ids;
        for nth in 0..ids {
            bench.launch(0);
            bench.evaluate(run(0, nth * turn, turn, true));
        }
        bench.remove(0, 0);
        let time = bench.apply(Event::Submitted {
            context: ENGINE,
            entries: run(1, SYSTEM_PROMPT, 1, true)
                .into_iter()
                .map(|entry| Entry {
                    sequence: 0,
                    position: 0,
                    token: -1,
                    ..entry
                })
                .collect(),
        });
        assert_eq!(bench.effects.len(), ids as usize, "all ids are lost");
        println!(
            "  {ids:>6} ids: {:>8.1} µs, {:>7.1} ns an id",
            time.as_secs_f64() * 1e6,
            time.as_secs_f64() * 1e9 / f64::from(ids)
        );
    }
}
