//! `GET /metrics`.

use std::fmt::Write;

use crate::{Index, Truth};

const PREFIX: &str = "contextpilot_index_";

/// In the text format of Prometheus.
pub(crate) fn text(index: &Index) -> String {
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n{PREFIX}{name} {value}"
        );
    };
    let counters = &index.counters;
    let number = |value: usize| value as u64;
    one(
        "live_requests",
        "gauge",
        "Requests that are tracked",
        number(index.requests.len()),
    );
    one(
        "cached_requests",
        "gauge",
        "Of these, those that are cached",
        number(index.requests.cached()),
    );
    one(
        "cached_blocks",
        "gauge",
        "Blocks of cached beginnings, each beginning once",
        number(index.cached.nodes()),
    );
    one(
        "known_blocks",
        "gauge",
        "Distinct blocks that are known",
        number(index.blocks.len()),
    );
    one(
        "engine_tells",
        "gauge",
        "1 while the engine says what is cached; 0: the index guesses",
        u64::from(index.truth == Truth::Engine),
    );
    one(
        "contexts_total",
        "counter",
        "Contexts that were ordered",
        counters.contexts,
    );
    one(
        "matches_total",
        "counter",
        "Of these, those that begin with what is cached",
        counters.matches,
    );
    one(
        "evictions_total",
        "counter",
        "Requests that were evicted or forgotten",
        counters.evictions,
    );
    one(
        "refused_total",
        "counter",
        "Calls beyond a limit",
        counters.refused,
    );
    let errors = index.errors();
    let (expected, reused) = errors.tokens();
    one(
        "predictions_total",
        "counter",
        "Requests whose reuse was compared with what was expected",
        errors.count(),
    );
    one(
        "expected_tokens_total",
        "counter",
        "Tokens that were expected to be reused, in these",
        expected,
    );
    one(
        "reused_tokens_total",
        "counter",
        "Tokens that the engine reused (cache_n), in these",
        reused,
    );
    for (name, share) in [("median", 0.5), ("p99", 0.99)] {
        if let Some(error) = errors.quantile(share) {
            let help = format!("Difference of expected and reused tokens, {name} of the last 1000");
            one(
                &format!("prediction_error_tokens_{name}"),
                "gauge",
                &help,
                error,
            );
        }
    }
    text
}
