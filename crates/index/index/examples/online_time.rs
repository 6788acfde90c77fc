//! How long the index takes to order one context among many live requests, and what it keeps:
//! `cargo run --release -p contextpilot-index --example online_time -- 10000 600 1000000`
//!
//! Live requests, distinct documents of the workload (a Zipf law), and further documents that
//! were seen once.

use std::time::Instant;

use contextpilot_index::{Endpoint, Index, Limits, Mode, Next, Outcome, Query, Truth};
use serde_json::json;

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|text| text.parse::<usize>().ok());
    let mut number = |default| numbers.next().flatten().unwrap_or(default);
    let (live, documents, seen) = (number(10_000), number(600), number(0));
    let mut index = Index::new(Mode::Live, Limits::default());
    index.set_truth(Truth::Engine);
    let mut state = 20_261_122_u64;
    let mut draw = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut context = || {
        let mut context: Vec<u64> = Vec::new();
        while context.len() < 8 {
            // Zipf, near enough: the rank is the exponential of a uniform number.
            let document = ((documents as f64).powf(draw()) - 1.0) as u64;
            if !context.contains(&document) {
                context.push(document);
            }
        }
        context
    };
    let mut ids = 0_u64;
    let mut ask = |index: &mut Index, contexts: serde_json::Value| {
        let body = json!({"contexts": contexts}).to_string();
        let start = Instant::now();
        let query =
            Query::parse(Endpoint::Reorder, body.as_bytes(), index.limits()).expect("a query");
        let mut new_id = || {
            ids += 1;
            format!("req-{ids:012x}")
        };
        let answer = match index.answer(query, 0.0, &mut new_id) {
            Outcome::Answer(answer) | Outcome::Emptied(answer, _) => answer,
            Outcome::Work(mut work) => loop {
                match work.next() {
                    Next::State => index.proceed(&mut work, &mut new_id),
                    Next::Alone => work.compute(),
                    Next::Answer => break work.answer(),
                }
            },
        };
        let text = answer.body.to_string();
        let took = start.elapsed();
        assert_eq!(answer.status, 200, "{text}");
        let id = answer.body["request_ids"][0]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        (id, took)
    };
    for first in (0..seen).step_by(1000) {
        let blocks: Vec<usize> = (first..(first + 1000).min(seen))
            .map(|n| 1_000_000 + n)
            .collect();
        let (id, _) = ask(&mut index, json!([blocks]));
        index.evicted(&id);
    }
    for _ in 0..live {
        let (id, _) = ask(&mut index, json!([context()]));
        index.cached(&id, 800);
    }
    let mut times: Vec<_> = (0..2000)
        .map(|_| ask(&mut index, json!([context()])).1)
        .collect();
    times.sort_unstable();
    let at = |share: f64| times[(share * times.len() as f64) as usize].as_secs_f64() * 1000.0;
    println!(
        "{live} live requests, {documents} documents, {seen} more seen: a context in {:.3} ms \
         (median), {:.3} ms (p99), {:.3} ms (longest)",
        at(0.5),
        at(0.99),
        at(0.9999),
    );
}
