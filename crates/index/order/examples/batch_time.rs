//! How long a batch takes, in either order: `cargo run --release -p contextpilot-order --example batch_time -- 2000 15 [clustered]`
//!
//! Contexts of distinct blocks out of 500, drawn by a Zipf law, the same on every run.

use std::time::Instant;

use contextpilot_order::{Batch, BatchOptions, Block, Cached, batch, batch_sharing};

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().ok());
    let mut number = |default| numbers.next().flatten().unwrap_or(default);
    let (contexts, blocks): (usize, usize) = (number(2000), number(15));
    let contexts = draw(contexts, blocks.min(400));
    if std::env::args().nth(3).as_deref() == Some("clustered") {
        time("clustered", &contexts, |contexts| {
            batch(contexts, &BatchOptions::default())
        });
    } else {
        time("sharing", &contexts, |contexts| {
            batch_sharing(contexts, 0, &Cached::new(), |_| 1)
        });
        let (before, after) = contexts.split_at(contexts.len() / 2);
        let mut cached = Cached::new();
        for (number, prompt) in before.iter().enumerate() {
            cached.insert(number as u64, prompt);
        }
        time("half of them after the other half", after, |contexts| {
            batch_sharing(contexts, 0, &cached, |_| 1)
        });
    }
}

fn time(name: &str, contexts: &[Vec<Block>], order: impl Fn(&[Vec<Block>]) -> Batch) {
    let start = Instant::now();
    let ordered = order(contexts);
    println!(
        "{name}: {} contexts: {:.3} s, {} groups, {} nodes",
        contexts.len(),
        start.elapsed().as_secs_f64(),
        ordered.groups.len(),
        ordered.nodes,
    );
}

fn draw(contexts: usize, blocks: usize) -> Vec<Vec<Block>> {
    let mut state = 20_261_122_u64;
    let mut uniform = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let weights: Vec<f64> = (1..=500).map(|rank| 1.0 / f64::from(rank)).collect();
    let total: f64 = weights.iter().sum();
    let mut drawn = || {
        let mut left = uniform() * total;
        let found = weights.iter().position(|weight| {
            left -= weight;
            left <= 0.0
        });
        found.unwrap_or(0) as Block
    };
    let mut context = || {
        let mut context: Vec<Block> = Vec::with_capacity(blocks);
        while context.len() < blocks {
            let block = drawn();
            if !context.contains(&block) {
                context.push(block);
            }
        }
        context
    };
    (0..contexts).map(|_| context()).collect()
}
