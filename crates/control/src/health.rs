//! `GET /health`, `GET /ready`, `POST /reset`, and what is answered to everything that is none of
//! ours.

use serde::{Deserialize, Serialize};

/// The answer to two questions.
///
/// - `GET /health`, for life: [`HealthStatus::Ok`] with 200, from every process that serves. A
///   process that does not answer this should be ended and started again. Nothing that a restart
///   does not mend is in it: not the index, not a model that is being loaded.
/// - `GET /ready`: whether the hook does what it is there for. 200 if that is
///   [`HealthStatus::Ok`], else 503.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// In a word.
    pub status: HealthStatus,
    /// Why, for people: one line. Who asks without the token, where there is one, is not told.
    pub reason: String,
}

/// How the hook is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// It watches, and the index (if there is one) is being told.
    Ok,
    /// No model is loaded: not yet, or the server sleeps.
    Loading,
    /// Some of the server's functions could not be hooked.
    NotAttached,
    /// It stopped after an internal error; the server is not affected.
    Stopped,
    /// Evictions cannot be told to the index at present. They wait.
    IndexFailing,
    /// The worker did not answer in time.
    Busy,
    /// A newer server's word.
    #[serde(other)]
    Other,
}

/// What `POST /reset` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// Requests that were tracked, are reported as evicted and forgotten.
    pub evicted: u64,
}

/// An answer that cannot be had, with a status of 400 or more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why and what to do, one line.
    pub error: String,
}
