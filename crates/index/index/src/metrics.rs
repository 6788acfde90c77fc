//! `GET /metrics`.

use std::fmt::Write;

use crate::{Index, Truth};

const PREFIX: &str = "contextpilot_index_";

impl Index {
    /// For Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        text(self)
    }
}

/// In the text format of Prometheus.
fn text(index: &Index) -> String {
    let mut text = String::new();
    let mut figure = |name: &str, kind: &str, help: &str, value: u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n{PREFIX}{name} {value}"
        );
    };
    let counters = &index.counters;
    let number = |value: usize| value as u64;
    figure(
        "live_requests",
        "gauge",
        "Requests that the index tracks",
        number(index.requests.len()),
    );
    figure(
        "cached_requests",
        "gauge",
        "Tracked requests whose prompt is cached",
        number(index.requests.cached()),
    );
    if let Some(stored) = index.stored() {
        figure(
            "stored_requests",
            "gauge",
            "Requests whose prompt has left the engine, and that the prefix store may have",
            number(stored.len()),
        );
        figure(
            "kept_requests",
            "gauge",
            "Of these, requests whose prompt the prefix store keeps because a client has asked for it",
            number(stored.kept()),
        );
    }
    figure(
        "cached_blocks",
        "gauge",
        "Blocks (documents) in the prefixes of cached requests; a shared prefix counts once",
        number(index.cached.nodes()),
    );
    figure(
        "known_blocks",
        "gauge",
        "Distinct blocks (documents) that the index knows",
        number(index.blocks.len()),
    );
    figure(
        "kept_bytes",
        "gauge",
        "Bytes of all that is kept, about (at most --max-kept)",
        number(index.kept()),
    );
    figure(
        "engine_tells",
        "gauge",
        "1 if the hook reports what is cached, 0 if the index guesses it",
        u64::from(index.truth == Truth::Engine),
    );
    figure(
        "contexts_total",
        "counter",
        "Contexts (lists of documents) that were ordered",
        counters.contexts,
    );
    figure(
        "matches_total",
        "counter",
        "Contexts, of those in contexts_total, that begin with blocks that were cached before the call",
        counters.matches,
    );
    figure(
        "evictions_total",
        "counter",
        "Requests that the index no longer tracks: evicted, or dropped to make room",
        counters.evictions,
    );
    figure(
        "refused_total",
        "counter",
        "API calls that were refused because the index is full (--max-requests, --max-blocks, --max-kept)",
        counters.refused,
    );
    let errors = index.errors();
    let (expected, reused) = errors.tokens();
    figure(
        "predictions_total",
        "counter",
        "Answered requests for which reused tokens were compared with the forecast",
        errors.count(),
    );
    figure(
        "expected_tokens_total",
        "counter",
        "Tokens that the forecast expected to be reused or loaded, summed over predictions_total",
        expected,
    );
    figure(
        "reused_tokens_total",
        "counter",
        "Tokens that the engine reused (cache_n), or the prefix store loaded, summed over predictions_total",
        reused,
    );
    for (name, share) in [("median", 0.5), ("p99", 0.99)] {
        if let Some(error) = errors.quantile(share) {
            let help = format!(
                "Difference between forecast and reused tokens: {name} of the last 1000 requests"
            );
            figure(
                &format!("prediction_error_tokens_{name}"),
                "gauge",
                &help,
                error,
            );
        }
    }
    text
}
