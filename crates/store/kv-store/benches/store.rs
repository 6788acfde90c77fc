//! What the store costs on the server's thread, and what it takes in memory.
//!
//!     cargo bench -p contextpilot-kv-store [-- --quick]
//!
//! The state is that of SmolLM2-135M: 30 layers, rows of 384 bytes for K and V. All figures are
//! medians; the sides of a comparison take turns.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use contextpilot_kv_store::{Composer, Fingerprint, GRID, SequenceState, Store};
use engine::Engine;

#[path = "../tests/engine/mod.rs"]
mod engine;

const MODEL: Fingerprint = Fingerprint([1; 16]);

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
    let quick = std::env::args().any(|word| word == "--quick" || word == "--test");
    let (tokens, rounds) = if quick { (300, 3) } else { (3000, 41) };
    println!("states of {tokens} tokens: ms, and as a multiple of memcpy");
    for transposed in [false, true] {
        let engine = Engine {
            transposed,
            ..Engine::dense(30, 384)
        };
        let name = if transposed { "V transposed" } else { "rows" };
        states(name, &engine, &(0..tokens).collect::<Vec<_>>(), rounds);
    }
    // As in a cache that four slots share, in batches of 512 tokens and then one by one.
    let engine = Engine::dense(30, 384);
    let (ahead, behind) = (tokens / 3, tokens - tokens / 3);
    let mut order: Vec<usize> = (behind..tokens).rev().collect();
    order.extend(ahead..behind);
    order.extend(0..ahead);
    states("scattered cells", &engine, &order, rounds);
    tree(quick);
}

fn states(name: &str, engine: &Engine, order: &[usize], rounds: usize) {
    let tokens = order.len();
    let bytes = engine.state(0, order);
    let mut copy = vec![0; bytes.len()];
    let (mut buffer, mut fresh) = (Vec::new(), Vec::new());
    let mut out: Vec<Vec<u8>> = vec![Vec::new(); tokens.div_ceil(GRID)];
    let mut times: [Vec<Duration>; 5] = Default::default();
    for _ in 0..rounds {
        let start = Instant::now();
        copy.copy_from_slice(black_box(&bytes));
        times[0].push(start.elapsed());

        let start = Instant::now();
        let state = SequenceState::read(black_box(&bytes)).expect("it is understood");
        times[1].push(start.elapsed());

        let start = Instant::now();
        for (at, rows) in out.iter_mut().enumerate() {
            rows.clear();
            assert!(state.extract(at * GRID..tokens.min((at + 1) * GRID), rows));
        }
        times[2].push(start.elapsed());

        for (time, buffer) in [(3, &mut buffer), (4, &mut fresh)] {
            if time == 4 {
                *buffer = Vec::new();
            }
            let start = Instant::now();
            let mut composer =
                Composer::new(state.layout(), 0, 0..tokens, buffer).expect("it can be");
            for (at, rows) in out.iter().enumerate() {
                let count = tokens.min((at + 1) * GRID) - at * GRID;
                composer
                    .put(at * GRID, rows, count, 0, count)
                    .expect("it fits");
            }
            black_box(composer.finish().expect("it is complete"));
            times[time].push(start.elapsed());
        }
    }
    let names = [
        "memcpy",
        "read",
        "extract",
        "compose, used buffer",
        "compose, fresh buffer",
    ];
    let memcpy = median(&mut times[0]);
    for (what, times) in names.iter().zip(&mut times) {
        let time = median(times);
        println!(
            "{name:16} {what:22} {:>8.3} {:>6.2}",
            time.as_secs_f64() * 1e3,
            time.as_secs_f64() / memcpy.as_secs_f64()
        );
    }
}

fn tree(quick: bool) {
    let (prompts, length, rounds) = if quick {
        (10, 1000, 3)
    } else {
        (400, 100_000, 2001)
    };
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut store = Store::with_memory(u64::MAX, usize::MAX);
    let mut worst = Duration::ZERO;
    let mut inserting = Duration::ZERO;
    let mut naming = Duration::ZERO;
    for prompt in 0..prompts {
        let tokens = tokens(prompt, length);
        let start = Instant::now();
        let missing = store.missing(&MODEL, &tokens, 1000);
        naming += start.elapsed();
        for chunk in missing {
            let start = Instant::now();
            store.insert(chunk).expect("there is room");
            worst = worst.max(start.elapsed());
            inserting += start.elapsed();
        }
    }
    let memory = ALLOCATED.load(Ordering::Relaxed) - before;
    let (chunks, all) = (store.chunks(), store.tokens());
    println!("\n{all} tokens in {chunks} chunks");
    println!(
        "memory: {:.0} bytes a chunk besides 4 a token",
        (memory as f64 - 4.0 * all as f64) / chunks as f64
    );
    println!(
        "naming: {:.1} ns a token",
        naming.as_nanos() as f64 / all as f64
    );
    println!(
        "inserting: {:.0} ns a chunk, at most {worst:?}",
        inserting.as_nanos() as f64 / chunks as f64
    );

    let known = tokens(prompts / 2, length);
    let mut nothing = tokens(prompts, 2048);
    // It agrees with the others for 20 tokens, as the beginning of a template does.
    nothing[..20].copy_from_slice(&known[..20]);
    let mut foreign = nothing.clone();
    foreign[0] = -1;
    let mut measured = |name: &str, operation: &mut dyn FnMut(&mut Store)| {
        let mut times: Vec<Duration> = (0..rounds)
            .map(|_| {
                let start = Instant::now();
                operation(&mut store);
                start.elapsed()
            })
            .collect();
        let median = median(&mut times);
        println!("{name}: {median:?}, at most {:?}", times[times.len() - 1]);
    };
    measured(
        "a lookup of 2,048 tokens that finds nothing",
        &mut |store| {
            assert_eq!(black_box(store.find(&MODEL, &foreign)).tokens(), 0);
        },
    );
    measured("one that finds 20 tokens", &mut |store| {
        assert_eq!(black_box(store.find(&MODEL, &nothing)).tokens(), 20);
    });
    measured(
        &format!("one that finds all of {length} tokens"),
        &mut |store| {
            assert_eq!(
                black_box(store.find(&MODEL, &known)).tokens(),
                length as usize
            );
        },
    );
    let mut pieces = Vec::new();
    measured("finding it, and saying that it is used", &mut |store| {
        pieces.clear();
        pieces.extend_from_slice(store.find(&MODEL, &known).pieces());
        store.used(&pieces);
    });
}

/// A prompt that shares its first 20 tokens with all others.
fn tokens(prompt: i32, length: i32) -> Vec<i32> {
    (0..length)
        .map(|token| {
            if token < 20 {
                token
            } else {
                token ^ prompt << 20
            }
        })
        .collect()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
