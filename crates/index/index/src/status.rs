//! `/health`, `/ready` and `/stats`.

use serde_json::{Value, json};

use crate::piece::{Next, Piece};
use crate::{Index, IndexAnswer, Mode, Truth};

/// A `GET /requests` that is being answered.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    ids: Vec<String>,
    /// The number of the next request.
    from: u64,
    done: bool,
}

impl Listing {
    pub(crate) fn next(&self) -> Next {
        if self.done { Next::Answer } else { Next::State }
    }

    pub(crate) fn answer(self) -> IndexAnswer {
        IndexAnswer::ok(json!({
            "status": "success",
            "num_requests": self.ids.len(),
            "request_ids": self.ids,
        }))
    }
}

impl Index {
    pub(crate) fn root(&self, now: f64) -> IndexAnswer {
        IndexAnswer::ok(json!({
            "service": "ContextPilot Live Index Server",
            "status": "running",
            "mode": self.mode.as_str(),
            "index_initialized": self.initialized,
            "timestamp": now,
        }))
    }

    pub(crate) fn health(&self, now: f64) -> IndexAnswer {
        if self.mode == Mode::Stateless {
            return IndexAnswer::ok(json!({
                "status": "ready",
                "mode": "stateless",
                "eviction_enabled": false,
                "message": "Stateless mode: clustering and scheduling only, no cache tracking",
                "timestamp": now,
            }));
        }
        if !self.initialized {
            return IndexAnswer {
                status: 503,
                body: json!({
                    "status": "not_ready",
                    "message": "Index not initialized. Call POST /reorder first.",
                }),
            };
        }
        IndexAnswer::ok(json!({
            "status": "ready",
            "mode": "live",
            "eviction_enabled": true,
            "max_tokens": Value::Null,
            "current_tokens": self.requests.tokens(),
            "utilization_pct": 0,
            "index_stats": self.index_stats(),
            "timestamp": now,
        }))
    }

    /// Whether the index can order, which is true from the start.
    #[must_use]
    pub fn ready(mode: Mode, truth: Truth) -> IndexAnswer {
        IndexAnswer::ok(json!({
            "status": "ready",
            "mode": mode.as_str(),
            "cache_truth": truth.as_str(),
        }))
    }

    pub(crate) fn stats(&self, now: f64) -> IndexAnswer {
        let (expected, reused) = self.errors.tokens();
        let mut answer = IndexAnswer::ok(json!({
            "status": "success",
            "index_stats": self.index_stats(),
            "cache_truth": self.truth.as_str(),
            "cached_requests": self.requests.cached(),
            "known_blocks": self.blocks.len(),
            "kept_bytes": self.kept(),
            "contexts": self.counters.contexts,
            "evictions": self.counters.evictions,
            "refused": self.counters.refused,
            "prediction": {
                "requests": self.errors.count(),
                "expected_tokens": expected,
                "reused_tokens": reused,
                "error_tokens_median": self.errors.quantile(0.5),
                "error_tokens_p99": self.errors.quantile(0.99),
            },
            "warning": self.warning,
            "timestamp": now,
        }));
        if let Some(stored) = self.stored() {
            answer.body["stored_requests"] = json!(stored.len());
            answer.body["kept_requests"] = json!(stored.kept());
        }
        answer
    }

    pub(crate) fn index_stats(&self) -> Value {
        let nodes = if self.built {
            self.cached.nodes() + 1
        } else {
            0
        };
        json!({
            "num_nodes": nodes,
            "active_nodes": nodes,
            "total_tokens": self.requests.tokens(),
            "num_requests": self.requests.len(),
            "total_searches": self.counters.searches,
            "total_insertions": self.counters.matches,
            "total_removals": self.counters.evictions,
            "avg_search_time_us": 0,
        })
    }

    pub(crate) fn list_some(&self, job: &mut Listing, piece: &mut Piece) {
        let room = piece.left();
        let mut more = self.requests.ids_from(job.from);
        for (number, id) in more.by_ref().take(room) {
            job.ids.push(id.to_owned());
            job.from = number + 1;
        }
        job.done = more.next().is_none();
    }
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Stateless => "stateless",
        }
    }
}
