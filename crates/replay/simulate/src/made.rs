//! Traffic that tests make up.

use std::sync::Arc;

use contextpilot_traffic::{RequestRecord, Run, Setup, Tokens, Traffic, TrafficRequest};

use crate::Setting;

/// Of these runs, each of a token and how many follow.
pub(crate) fn row(runs: &[(u64, u32)]) -> Tokens {
    let mut row = Tokens::new();
    for &(first, length) in runs {
        row.push(Run { first, length });
    }
    row
}

/// A prompt and no answer. They come a second apart.
pub(crate) fn request(order: u64, tokens: Tokens) -> TrafficRequest {
    let arrived = 1_000_000 * order;
    TrafficRequest {
        record: RequestRecord {
            order,
            arrived,
            launched: arrived,
            prompted: arrived + 500,
            ended: arrived + 500,
            prompt: tokens.len(),
            evaluated: tokens.len(),
            ..RequestRecord::default()
        },
        tokens: Arc::new(tokens),
        junction: Tokens::new(),
    }
}

pub(crate) fn traffic(setup: Setup, requests: Vec<TrafficRequest>) -> Traffic {
    Traffic {
        requests,
        setup: Some(setup),
        ..Traffic::default()
    }
}

/// The setting of a recording, which has one.
pub(crate) fn recorded(traffic: &Traffic) -> Setting {
    Setting::recorded(traffic).expect("it has a setup")
}
