//! A ledger whose time and memory are measured.

use contextpilot_residency::{
    Arrival, ContextId, Entry, Event, Fact, Ledger, Position, SequenceId, Token,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const SEQUENCES: SequenceId = 256;
pub(crate) const CONTEXT: Position = 131_072;
/// Tokens of an evaluated piece of prompt, as with `llama-server -b 512`.
pub(crate) const BATCH: Position = 512;
/// Tokens that all sequences begin with.
pub(crate) const SYSTEM_PROMPT: Position = 1_000;

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

/// A ledger whose calls are timed.
pub(crate) struct Bench {
    pub(crate) ledger: Ledger,
    pub(crate) facts: Vec<Fact>,
    /// The number of the last request.
    pub(crate) arrivals: u64,
    /// Bytes that were allocated before the ledger was made.
    started_with: usize,
}

pub(crate) const ENGINE: ContextId = ContextId(1);

impl Bench {
    pub(crate) fn new() -> Self {
        let started_with = ALLOCATED.load(Ordering::Relaxed);
        let mut bench = Self {
            ledger: Ledger::new(),
            facts: Vec::new(),
            arrivals: 0,
            started_with,
        };
        bench.apply(Event::ContextCreated { context: ENGINE });
        bench
    }

    pub(crate) fn apply(&mut self, event: Event) -> Duration {
        self.facts.clear();
        let start = Instant::now();
        self.ledger.apply(event, &mut self.facts);
        start.elapsed()
    }

    pub(crate) fn evaluate(&mut self, entries: Vec<Entry>) -> Duration {
        let submitted = Event::Submitted {
            context: ENGINE,
            entries: entries.into(),
        };
        let evaluated = Event::Evaluated {
            context: ENGINE,
            failed: Vec::new(),
            no_room: false,
        };
        self.apply(submitted) + self.apply(evaluated)
    }

    /// A new request with a new id is launched on a slot, and answered.
    pub(crate) fn launch(&mut self, sequence: SequenceId) -> Duration {
        self.arrivals += 1;
        let (arrival, task) = (Arrival(self.arrivals), self.arrivals as i32);
        let id: std::sync::Arc<str> = format!("req-{task:012x}").into();
        self.apply(Event::Posted {
            arrival,
            task,
            id: Some(id.clone()),
        }) + self.apply(Event::Launched { sequence, task })
            + self.apply(Event::Answered {
                arrival,
                id: Some(id),
            })
    }

    pub(crate) fn remove(&mut self, sequence: SequenceId, from: Position) -> Duration {
        self.apply(Event::Removed {
            context: ENGINE,
            sequence,
            from,
            to: -1,
        })
    }

    /// Bytes that the ledger has allocated.
    pub(crate) fn bytes(&self) -> usize {
        ALLOCATED.load(Ordering::Relaxed) - self.started_with
    }

    /// Prints the memory that the ledger takes. Returns the bytes per distinct token.
    pub(crate) fn report_memory(&self) -> f64 {
        let bytes = self.bytes() as f64;
        let (tokens, ids) = (self.ledger.tokens(), self.ledger.live());
        let each = bytes / tokens as f64;
        println!(
            "  memory: {each:.2} bytes a distinct token ({tokens} tokens and {ids} ids in {:.1} MiB)",
            bytes / f64::from(1 << 20),
        );
        each
    }
}

/// The token of a sequence at a position. All sequences begin with the same tokens and go on with
/// different ones.
pub(crate) fn token(sequence: SequenceId, position: Position) -> Token {
    let own = if position < SYSTEM_PROMPT {
        0
    } else {
        sequence + 1
    };
    let both = (own as u64) << 32 | position as u64;
    let mixed = (both ^ both >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 47) as Token
}

/// `count` successive tokens; the output of the last one is asked for if the prompt ends there.
pub(crate) fn run(sequence: SequenceId, from: Position, count: Position, ends: bool) -> Vec<Entry> {
    (from..from + count)
        .map(|position| Entry {
            sequence,
            position,
            token: token(sequence, position),
            output: ends && position + 1 == from + count,
        })
        .collect()
}
