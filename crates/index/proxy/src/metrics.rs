//! What clients take up and what was refused, for Prometheus.

use std::fmt::Write;

use crate::{Body, Counts, Response, Room};

/// In the text format, with names that begin with `prefix`. `rooms`: for bodies.
#[must_use]
pub fn metrics(prefix: &str, counts: Counts, rooms: &[&Room]) -> String {
    let held = rooms.iter().map(|room| room.held() as u64).sum();
    let refused = rooms.iter().map(|room| room.refused()).sum();
    let mut text = String::new();
    for (name, kind, help, value) in [
        (
            "connections",
            "gauge",
            "Connections of clients now (--max-connections)",
            counts.open,
        ),
        (
            "connections_displaced_total",
            "counter",
            "Connections that waited for their client and were closed because others needed their places",
            counts.displaced,
        ),
        (
            "connections_late_total",
            "counter",
            "Connections and requests that took longer than they may (--head-time, --body-time, --idle-time, --read-time)",
            counts.late,
        ),
        (
            "connections_refused_total",
            "counter",
            "Requests that got 503 because all connections waited for answers, or 431 because their head was too long",
            counts.refused,
        ),
        (
            "requests_forbidden_total",
            "counter",
            "Requests of web pages of other machines, or with a Host that is not allowed (--allow-host)",
            counts.forbidden,
        ),
        (
            "requests_busy_total",
            "counter",
            "Requests that got 429 because too many waited to be worked on",
            counts.busy,
        ),
        (
            "bodies_bytes",
            "gauge",
            "Memory of requests that are received, worked on or answered (--max-bodies)",
            held,
        ),
        (
            "bodies_refused_total",
            "counter",
            "Requests that were refused because they were too large, or there was no memory for them",
            refused,
        ),
    ] {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}\n{prefix}_{name} {value}"
        );
    }
    text
}

/// An answer with such a text.
#[must_use]
pub fn metrics_response(text: String) -> Response {
    let mut response = Response::new(Body::full(text));
    let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let headers = response.headers_mut();
    headers.insert(hyper::header::CONTENT_TYPE, kind);
    response
}
