//! The full ledger: long prompts, conversations, and generation in all slots.

use contextpilot_residency::Position;
use std::time::Duration;

use crate::Plan;
use crate::bench::{BATCH, Bench, CONTEXT, SEQUENCES, run};

/// Requests in all conversations.
const IDS: Position = 100_000;

/// Tokens of each sequence.
fn context(plan: &Plan) -> Position {
    if plan.quick { 2 * BATCH } else { CONTEXT }
}

/// Prints and returns a rate, in million tokens a second.
fn rate(name: &str, tokens: usize, time: Duration) -> f64 {
    let rate = tokens as f64 / time.as_secs_f64() / 1e6;
    println!(
        "{name}: {rate:.1} million tokens a second ({tokens} in {:.2} s)",
        time.as_secs_f64()
    );
    rate
}

/// One long prompt in each slot, 512 tokens at a time, slot after slot.
pub(crate) fn prompts(plan: &mut Plan) {
    let context = context(plan);
    let mut bench = Bench::new();
    let mut time = Duration::ZERO;
    for from in (0..context).step_by(BATCH as usize) {
        for sequence in 0..SEQUENCES {
            let entries = run(sequence, from, BATCH, from + BATCH == context);
            time += bench.evaluate(entries);
        }
    }
    let rate = rate("prompts", (SEQUENCES * context) as usize, time);
    let bytes = bench.report_memory();
    plan.figure("prompts, million tokens a second", format!("{rate:.1}"));
    plan.figure("bytes a distinct token", format!("{bytes:.2}"));
}

/// The same tokens as conversations: each turn is a request with an id.
pub(crate) fn conversations(plan: &mut Plan) -> Bench {
    let ids = plan.size(IDS);
    let mut bench = Bench::new();
    let turns = (ids + SEQUENCES - 1) / SEQUENCES;
    let turn = context(plan) / turns;
    let mut time = Duration::ZERO;
    let mut launches = Duration::ZERO;
    for nth in 0..turns {
        for sequence in 0..SEQUENCES {
            launches += bench.launch(sequence);
            time += bench.evaluate(run(sequence, nth * turn, turn, true));
        }
    }
    let rate = rate("conversations", (SEQUENCES * turns * turn) as usize, time);
    let launch = launches.as_secs_f64() * 1e6 / f64::from(SEQUENCES * turns);
    println!(
        "  {turns} turns of {turn} tokens in each; request, launch and answer: {launch:.2} µs a turn",
    );
    assert!(bench.ledger.live() >= ids as usize, "ids were lost");
    let bytes = bench.report_memory();
    plan.figure(
        "conversations, million tokens a second",
        format!("{rate:.1}"),
    );
    plan.figure(
        "a request with its launch and its answer, µs",
        format!("{launch:.2}"),
    );
    plan.figure(
        "bytes a distinct token, with an id for each turn",
        format!("{bytes:.2}"),
    );
    bench
}

/// All slots generate: batches of one token from each.
pub(crate) fn generation(bench: &mut Bench, plan: &mut Plan) {
    let steps = plan.size(2_000);
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
    let name = "generation, 256 slots at once";
    let rate = rate(name, (SEQUENCES * steps) as usize, time);
    plan.figure(
        &format!("{name}, million tokens a second"),
        format!("{rate:.1}"),
    );
}
