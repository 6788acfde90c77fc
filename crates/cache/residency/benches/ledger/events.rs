//! Single events on the full ledger, and evictions.

use contextpilot_residency::{Arrival, BufferId, Entry, Event, Position};
use std::time::Duration;

use crate::Plan;
use crate::bench::{Bench, CONTEXT, ENGINE, SEQUENCES, SYSTEM_PROMPT, run};

/// How often each kind of event is timed.
const SAMPLES: i32 = 20_000;

/// Times of one kind of event.
struct Times {
    name: &'static str,
    nanoseconds: Vec<u64>,
}

impl Times {
    fn new(name: &'static str) -> Self {
        let nanoseconds = Vec::new();
        Self { name, nanoseconds }
    }

    fn add(&mut self, time: Duration) {
        self.nanoseconds.push(time.as_nanos() as u64);
    }
}

/// Prints percentiles. Returns the median and the 99th percentile, µs.
fn print_percentiles(name: &str, mut nanoseconds: Vec<u64>) -> [f64; 2] {
    nanoseconds.sort_unstable();
    let at = |part: f64| nanoseconds[((nanoseconds.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    println!(
        "  {name:<42} p50 {:>6.2}   p99 {:>6.2}   p99.9 {:>6.2}   most {:>8.2} µs",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    [at(0.5), at(0.99)]
}

/// Single events on the full ledger, each kind in turn, over all slots.
pub(crate) fn single(bench: &mut Bench, plan: &mut Plan) {
    let samples = plan.size(SAMPLES);
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
    for nth in 0..samples {
        let sequence = nth % SEQUENCES;
        let held = bench.ledger.held(sequence) as Position;
        let output = |position| run(sequence, position, 1, true);
        submitted.add(bench.apply(Event::Submitted {
            context: ENGINE,
            entries: output(held).into(),
        }));
        let done = || Event::Evaluated {
            context: ENGINE,
            failed: Vec::new(),
            no_room: false,
        };
        evaluated.add(bench.apply(done()));
        rejected.add(bench.remove(sequence, held - 3));
        let entries = run(sequence, held - 3, 4, true);
        again.add(bench.apply(Event::Submitted {
            context: ENGINE,
            entries: entries.into(),
        }));
        bench.apply(done());

        bench.arrivals += 1;
        let (arrival, task) = (Arrival(bench.arrivals), bench.arrivals as i32);
        let id: std::sync::Arc<str> = format!("again-{sequence}").into();
        let post = if nth < SEQUENCES.min(samples / 2) {
            &mut posted
        } else {
            &mut superseded
        };
        post.add(bench.apply(Event::Posted {
            arrival,
            task,
            id: Some(id.clone()),
        }));
        launched.add(bench.apply(Event::Launched { sequence, task }));
        answered.add(bench.apply(Event::Answered {
            arrival,
            id: Some(id),
        }));
        bench.apply(Event::Submitted {
            context: ENGINE,
            entries: output(held + 1).into(),
        });
        marked.add(bench.apply(done()));

        let buffer = BufferId(nth as usize);
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
    println!("single events, {samples} of each:");
    let mut all = Vec::new();
    for times in [
        submitted, evaluated, rejected, again, posted, superseded, launched, answered, marked,
        saved, emptied, restored, freed, quiet,
    ] {
        all.extend_from_slice(&times.nanoseconds);
        print_percentiles(times.name, times.nanoseconds);
    }
    let [median, p99] = print_percentiles("all of them", all);
    plan.figure("an event, median, µs", format!("{median:.2}"));
    plan.figure("an event, p99, µs", format!("{p99:.2}"));
}

/// A slot with a full context is overwritten from its beginning. The time should depend only on how many
/// ids are lost.
pub(crate) fn evictions(plan: &mut Plan) {
    println!("evictions, a slot of {CONTEXT} tokens overwritten from its beginning:");
    let all = [1, 10, 100, 1_000, 10_000];
    for &ids in if plan.quick { &all[..3] } else { &all } {
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
        assert_eq!(bench.facts.len(), ids as usize, "all ids are lost");
        println!(
            "  {ids:>6} ids: {:>8.1} µs, {:>7.1} ns an id",
            time.as_secs_f64() * 1e6,
            time.as_secs_f64() * 1e9 / f64::from(ids)
        );
        if ids == 1_000 {
            plan.figure(
                "an eviction, of 1,000 at once, ns",
                format!("{:.0}", time.as_secs_f64() * 1e9 / f64::from(ids)),
            );
        }
    }
}
