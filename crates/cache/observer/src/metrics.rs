//! Prometheus' text format, version 0.0.4.

use std::fmt::{self, Write};

use contextpilot_control::{Reason, Stats};

use crate::histogram::{BOUNDS, CLASSES};
use crate::observer::Observer;

mod contexts;
mod store;

/// The beginning of every metric's name.
const PREFIX: &str = "contextpilot_llama_";

impl Observer {
    /// The figures of `stats`, and times to first token, for Prometheus. Units are seconds, bytes and
    /// tokens. Each series has the labels `engine`, `engine_version` and `model`.
    #[must_use]
    pub fn metrics(&self, stats: &Stats) -> String {
        let mut page = Page::new(stats);
        page.process(stats);
        page.slots(stats);
        page.contexts(stats);
        page.cache(stats);
        page.requests(stats);
        page.delivery(stats);
        page.control(stats);
        page.kv_events(stats);
        page.prefix_store(stats);
        page.kept(stats);
        self.first_token(&mut page);
        page.text
    }

    fn first_token(&self, page: &mut Page) {
        const NAME: &str = "time_to_first_token_seconds";
        page.family(
            NAME,
            "histogram",
            "Seconds from the receipt of a complete request to the end of the evaluation that \
             completes its prompt, without sampling and without sending the answer. \
             reuse=none: less than a tenth of the prompt came from the cache; \
             reuse=full: nine tenths or more",
        );
        for (histogram, class) in self.counts.first_token.iter().zip(CLASSES) {
            let mut count = 0;
            for (nth, in_bucket) in histogram.counts.iter().enumerate() {
                count += in_bucket;
                let bound = BOUNDS.get(nth).map_or("+Inf".to_owned(), f64::to_string);
                let labels = [("reuse", class), ("le", &bound)];
                page.sample(&format!("{NAME}_bucket"), &labels, count as f64);
            }
            let labels = [("reuse", class)];
            page.sample(&format!("{NAME}_sum"), &labels, histogram.sum);
            page.sample(&format!("{NAME}_count"), &labels, histogram.count() as f64);
        }
    }
}

struct Page {
    text: String,
    /// The labels of every series.
    common: String,
}

impl Page {
    fn new(stats: &Stats) -> Self {
        let unknown = || "unknown".to_owned();
        let version = stats.engine.version.clone();
        let model = stats.model.as_ref().map(|model| model.name.clone());
        let common = format!(
            "engine=\"{}\",engine_version=\"{}\",model=\"{}\"",
            Escaped(&stats.engine.name),
            Escaped(&version.unwrap_or_else(unknown)),
            Escaped(&model.unwrap_or_else(unknown)),
        );
        Self {
            text: String::new(),
            common,
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {PREFIX}{name} {help}");
        let _ = writeln!(self.text, "# TYPE {PREFIX}{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{PREFIX}{name}{{{}", self.common);
        for (label, text) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", Escaped(text));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.family(name, "gauge", help);
            self.sample(name, &[], value);
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value as f64);
    }

    fn counters(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.family(name, "counter", help);
        for &(text, value) in values {
            self.sample(name, &[(label, text)], value as f64);
        }
    }

    fn kept(&mut self, stats: &Stats) {
        if let Some(kept) = stats.kept {
            self.counter(
                "kept_prompts_total",
                "Prompts that got tokens of an earlier answer",
                kept.prompts,
            );
            self.counter(
                "kept_tokens_total",
                "Tokens of prompts that are an earlier answer's own, where the tokenizer has others",
                kept.tokens,
            );
        }
    }

    fn process(&mut self, stats: &Stats) {
        self.family(
            "info",
            "gauge",
            "Always 1; the label hook_version is the version of the hook in this server",
        );
        self.sample("info", &[("hook_version", &stats.hook_version)], 1.0);
        self.functions(stats);
        self.gauge(
            "uptime_seconds",
            "Seconds since the hook started, which is when the server began to load its first model",
            Some(stats.uptime_seconds),
        );
    }

    fn functions(&mut self, stats: &Stats) {
        self.family(
            "hooked_function",
            "gauge",
            "A function that the hook intercepts. known=found: number of places that lead to \
             it; known=patched: number of these that now lead to the hook; known=called: 1 \
             if a call was seen, else 0",
        );
        for function in &stats.engine.functions {
            for (known, value) in [
                ("found", function.found),
                ("patched", function.patched),
                ("called", function.called.into()),
            ] {
                let labels = [
                    ("function", function.name.as_str()),
                    ("way", &function.way),
                    ("known", known),
                ];
                self.sample("hooked_function", &labels, value.into());
            }
        }
    }

    fn slots(&mut self, stats: &Stats) {
        type Value = fn(&contextpilot_control::Slot) -> Option<f64>;
        let families: [(&str, &str, Value); 5] = [
            ("slot_tokens", "Tokens cached in the slot", |slot| {
                Some(f64::from(slot.tokens))
            }),
            (
                "slot_capacity_tokens",
                "Most tokens that the slot can hold; with --kv-unified, that all slots together can",
                |slot| slot.capacity.map(f64::from),
            ),
            (
                "slot_bytes",
                "Estimated bytes of the tokens in the slot: slot_tokens times kv_bytes_per_token",
                |slot| slot.bytes.map(|bytes| bytes as f64),
            ),
            (
                "slot_requests",
                "Requests whose whole prompt is cached in the slot, of those in live_requests",
                |slot| Some(slot.requests_total as f64),
            ),
            (
                "slot_busy",
                "1 while the slot works on a task, else 0",
                |slot| Some(f64::from(u8::from(slot.busy))),
            ),
        ];
        for (name, help, value) in families {
            self.family(name, "gauge", help);
            for slot in &stats.slots {
                if let Some(value) = value(slot) {
                    self.sample(name, &[("slot", &slot.slot.to_string())], value);
                }
            }
        }
    }

    fn cache(&mut self, stats: &Stats) {
        let host = &stats.host;
        let gauges = [
            (
                "host_cache_entries",
                "Entries of the host prompt cache (--cache-ram): saved sequences",
                Some(host.entries),
            ),
            (
                "host_cache_tokens",
                "Tokens in the entries of the host prompt cache; a token in two entries counts twice",
                Some(host.tokens),
            ),
            (
                "host_cache_bytes",
                "Bytes of the entries of the host prompt cache, without context checkpoints",
                Some(host.bytes),
            ),
            (
                "host_cache_limit_bytes",
                "Limit of host_cache_bytes; missing if there is none or it is not known",
                host.limit_bytes,
            ),
            (
                "checkpoint_bytes",
                "Bytes of the context checkpoints of sliding-window and recurrent models",
                Some(host.checkpoint_bytes),
            ),
            (
                "resident_tokens",
                "Distinct tokens in slots and in the host prompt cache: a shared prefix counts once",
                Some(stats.tokens.resident),
            ),
            (
                "shared_tokens",
                "Tokens that are duplicates: all tokens of slots and host entries, less resident_tokens",
                Some(stats.tokens.shared),
            ),
            (
                "live_requests",
                "Requests with an id that are in progress, or whose prompt is cached",
                Some(stats.tokens.live_requests),
            ),
        ];
        for (name, help, value) in gauges {
            self.gauge(name, help, value.map(|value| value as f64));
        }
        self.gauge(
            "kv_bytes_per_token",
            "Bytes of KV cache per token, from the sizes that the engine states for a sequence",
            stats.kv.bytes_per_token,
        );
        let reasons = Reason::ALL.map(|reason| {
            let count = stats.evictions.get(&reason).copied();
            (reason.as_str(), count.unwrap_or(0))
        });
        self.counters(
            "evictions_total",
            "Requests with an id whose prompt left the cache, or never got there (never_cached)",
            "reason",
            &reasons,
        );
    }

    fn requests(&mut self, stats: &Stats) {
        let requests = &stats.requests;
        self.counters(
            "requests_total",
            "Inference requests received, by id: with, without, refused (too long, not a string)",
            "id",
            &[
                ("with", requests.with_id),
                ("without", requests.without_id),
                ("refused", requests.refused_id),
            ],
        );
        self.counter(
            "requests_finished_total",
            "Inference requests that were answered, or whose client disconnected",
            requests.finished,
        );
        let total = &stats.reuse.total;
        self.counter(
            "prompts_total",
            "Prompts whose evaluation was completed",
            total.prompts,
        );
        self.counters(
            "prompt_tokens_total",
            "Prompt tokens: reused (the engine's cache_n, and what the prefix store loaded), or evaluated (all others)",
            "source",
            &[("reused", total.reused), ("evaluated", total.evaluated)],
        );
        self.counters(
            "evaluated_tokens_total",
            "Prompt tokens that were evaluated, by why they were not reused; see evaluation in \
             /requests/{id}",
            "cause",
            &stats.reuse.causes.all(),
        );
        self.family(
            "evaluation_seconds_total",
            "counter",
            "Seconds that evaluating prompts took, each from the launch of its task to the first token \
             of its answer",
        );
        self.sample("evaluation_seconds_total", &[], stats.reuse.seconds);
        let losses = &stats.losses;
        self.counters(
            "losses_total",
            "What the hook missed or had to give up, by kind; all zero in a healthy process",
            "kind",
            &[
                ("events", losses.events),
                ("gaps", losses.gaps),
                ("ids", losses.ids),
                ("untracked_batches", losses.untracked_batches),
                ("untracked_buffers", losses.untracked_buffers),
                ("unreadable_connections", losses.unreadable_connections),
                ("log_lines", losses.log_lines),
                ("claims", losses.claims),
            ],
        );
    }

    fn delivery(&mut self, stats: &Stats) {
        let Some(delivery) = &stats.delivery else {
            return;
        };
        self.gauge(
            "delivery_waiting_ids",
            "Evicted ids that the index has not confirmed yet: waiting, or being sent",
            Some((delivery.waiting + delivery.in_flight) as f64),
        );
        self.gauge(
            "delivery_set_aside_ids",
            "Ids in delivery_waiting_ids that the index refused; each is sent again, alone",
            Some(delivery.set_aside as f64),
        );
        self.counters(
            "delivery_ids_total",
            "Evicted ids: sent (the index confirmed them), not_needed (the index was not \
             initialized), rejected (the index named them and does not take them), dropped (too many \
             waited)",
            "result",
            &[
                ("sent", delivery.sent),
                ("not_needed", delivery.not_needed),
                ("rejected", delivery.rejected),
                ("dropped", delivery.dropped),
            ],
        );
        self.counter(
            "delivery_failed_posts_total",
            "POSTs to the index that failed; their ids wait and are sent again",
            delivery.failed_posts,
        );
        self.gauge(
            "delivery_failing",
            "1 if the last POST to the index failed, else 0; /ready says why",
            Some(f64::from(u8::from(delivery.failures_in_a_row > 0))),
        );
        self.gauge(
            "delivery_last_success_timestamp_seconds",
            "Unix time of the last POST that the index confirmed, in seconds",
            delivery
                .last_success_at
                .map(|at| at.unix_ms() as f64 / 1000.0),
        );
    }
}

impl Page {
    fn control(&mut self, stats: &Stats) {
        let Some(control) = &stats.control else {
            return;
        };
        self.counter(
            "control_refused_total",
            "Connections and requests that the control endpoint refused: too many, too large, too late, \
             malformed, or not allowed",
            control.refused,
        );
        self.family(
            "control_work_seconds_total",
            "counter",
            "Processor time for what clients of the control endpoint asked; bounded, see docs/security.md",
        );
        let seconds = control.work_us as f64 / 1e6;
        self.sample("control_work_seconds_total", &[], seconds);
    }

    fn kv_events(&mut self, stats: &Stats) {
        let Some(events) = &stats.kv_events else {
            return;
        };
        self.family(
            "kv_events_blocks",
            "gauge",
            "Blocks announced to routers and not withdrawn: in slots (GPU), in the host prompt cache (CPU), or in the prefix store (DISK)",
        );
        for (medium, blocks) in [
            ("GPU", events.gpu_blocks),
            ("CPU", events.cpu_blocks),
            ("DISK", events.disk_blocks),
        ] {
            self.sample("kv_events_blocks", &[("medium", medium)], blocks as f64);
        }
        self.gauge(
            "kv_events_subscribers",
            "Subscribers of KV cache events (routers) that are connected now",
            Some(events.subscribers as f64),
        );
        self.gauge(
            "kv_events_failing",
            "1 if KV cache events are not or only partly published, else 0; /stats says why \
             (kv_events.problem)",
            Some(f64::from(u8::from(events.problem.is_some()))),
        );
        self.counters(
            "kv_events_blocks_total",
            "Blocks announced to routers: as stored, or as removed",
            "change",
            &[("stored", events.stored), ("removed", events.removed)],
        );
        for (name, help, value) in [
            (
                "kv_events_batches_total",
                "Batches of KV cache events published, without heartbeats (empty batches)",
                events.batches,
            ),
            (
                "kv_events_dropped_total",
                "Batches dropped for a slow subscriber, counted once for each such subscriber",
                events.dropped,
            ),
            (
                "kv_events_replays_total",
                "Requests of routers to send missed batches again",
                events.replays,
            ),
            (
                "kv_events_started_over_total",
                "Times that all blocks were announced anew, because too many events were waiting",
                events.started_over,
            ),
            (
                "kv_events_refused_connections_total",
                "Connections closed: too many at a time, the peer broke the protocol, did not read, or \
                 caused too much work",
                events.refused,
            ),
            (
                "kv_events_displaced_connections_total",
                "Connections that took nothing, closed to make room for new ones",
                events.displaced,
            ),
        ] {
            self.counter(name, help, value);
        }
        self.family(
            "kv_events_work_seconds_total",
            "counter",
            "Processor time for what routers sent; bounded, see docs/security.md",
        );
        self.sample(
            "kv_events_work_seconds_total",
            &[],
            events.work_us as f64 / 1e6,
        );
    }
}

/// A label's value, escaped as the format requires.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(
            Escaped("a\\b\"c\nd\u{e9}").to_string(),
            "a\\\\b\\\"c\\nd\u{e9}"
        );
    }
}
