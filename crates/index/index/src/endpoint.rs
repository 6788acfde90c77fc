//! The routes of the index.

use crate::IndexAnswer;

/// The routes, by method and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `GET /`.
    Root,
    /// `GET /health`.
    Health,
    /// `GET /ready`.
    Ready,
    /// `GET /stats`.
    Stats,
    /// `GET /requests`.
    Requests,
    /// `GET /metrics`, whose answer is text.
    Metrics,
    /// `POST /reorder`, and `/build`, its old name.
    Reorder,
    /// `POST /schedule`: the same, without a state.
    Schedule,
    /// `POST /deduplicate`.
    Deduplicate,
    /// `POST /evict`.
    Evict,
    /// `POST /reset`.
    Reset,
    /// `POST /search`.
    Search,
    /// `POST /insert`.
    Insert,
}

impl Endpoint {
    /// The endpoint at a path; `None`: not the index's. An error is a path of the index's with
    /// another method.
    ///
    /// # Errors
    /// 405.
    pub fn find(method: &str, path: &str) -> Result<Option<Self>, IndexAnswer> {
        let (expected, endpoint) = match path {
            "/" => ("GET", Self::Root),
            "/health" => ("GET", Self::Health),
            "/ready" => ("GET", Self::Ready),
            "/stats" => ("GET", Self::Stats),
            "/requests" => ("GET", Self::Requests),
            "/metrics" => ("GET", Self::Metrics),
            "/reorder" | "/build" => ("POST", Self::Reorder),
            "/schedule" => ("POST", Self::Schedule),
            "/deduplicate" => ("POST", Self::Deduplicate),
            "/evict" => ("POST", Self::Evict),
            "/reset" => ("POST", Self::Reset),
            "/search" => ("POST", Self::Search),
            "/insert" => ("POST", Self::Insert),
            _ => return Ok(None),
        };
        if method == expected || (expected == "GET" && method == "HEAD") {
            Ok(Some(endpoint))
        } else {
            Err(IndexAnswer::error(405, "Method Not Allowed"))
        }
    }
}
