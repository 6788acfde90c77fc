//! Ledgers of a thousand to a hundred million tokens: the cost of a token should not depend on how many
//! there are.

use contextpilot_residency::{Position, SequenceId};
use std::time::Duration;

use crate::Plan;
use crate::bench::{BATCH, Bench, CONTEXT, run};

/// Tokens to append at each size, in as many ledgers as that takes. Fewer at the smallest sizes.
const WORK: usize = 2_000_000;
/// Tokens that are generated, one at a time, at each size.
const GENERATED: usize = 2_000;

/// For ledgers of this many tokens: ns for a token of a prompt, bytes a token, and ns for a generated
/// token (median).
fn measure(tokens: usize) -> [f64; 3] {
    let (mut time, mut done) = (Duration::ZERO, 0);
    loop {
        let mut bench = Bench::new();
        let mut left = tokens as Position;
        let mut sequence: SequenceId = 0;
        while left > 0 {
            let length = left.min(CONTEXT - 2 * BATCH);
            for from in (0..length).step_by(BATCH as usize) {
                let count = BATCH.min(length - from);
                time += bench.evaluate(run(sequence, from, count, from + count == length));
                done += count as usize;
            }
            left -= length;
            sequence += 1;
        }
        if done < WORK.min(tokens * 1000) {
            continue;
        }
        let bytes = bench.bytes() as f64 / bench.ledger.tokens() as f64;
        let mut singles: Vec<Duration> = (0..GENERATED)
            .map(|nth| {
                let sequence = nth as SequenceId % sequence;
                let position = bench.ledger.held(sequence) as Position;
                bench.evaluate(run(sequence, position, 1, true))
            })
            .collect();
        singles.sort_unstable();
        return [
            time.as_secs_f64() * 1e9 / done as f64,
            bytes,
            singles[singles.len() / 2].as_secs_f64() * 1e9,
        ];
    }
}

pub(crate) fn grow(plan: &mut Plan) {
    println!("growth: ns a token of prompts, bytes a token, ns for a generated token (median)");
    // Powers of the square root of ten.
    let most = if plan.quick { 8 } else { 16 };
    for half in 6..=most {
        let tokens = 10_f64.powf(f64::from(half) / 2.0).round() as usize;
        let [time, bytes, single] = measure(tokens);
        println!("  {tokens:>9} tokens: {time:>6.1} ns {bytes:>6.2} bytes {single:>6.0} ns");
        plan.figure(
            "growth",
            format!("{tokens}\t{time:.2}\t{bytes:.3}\t{single:.1}"),
        );
    }
}
