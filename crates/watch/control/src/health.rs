//! `GET /health`, `GET /ready`, `POST /reset`, and the answer to everything else.

use serde::{Deserialize, Serialize};

/// The answer to two kinds of probe.
///
/// - `GET /health`, for liveness: [`HealthStatus::Ok`] with 200, from every process that serves. A
///   process that does not answer this should be restarted. It says nothing of faults that a restart
///   does not fix, such as the index, or a model that is being loaded.
/// - `GET /ready`: whether the hook works. 200 for [`HealthStatus::Ok`], else 503.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The status.
    pub status: HealthStatus,
    /// The reason, in one line for people. If there is a token, only requests that carry it get the reason.
    pub reason: String,
}

/// The state of the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// The hook works. If there is an index, the last POST to it did not fail.
    Ok,
    /// The server is still loading its model. A sleeping server has the status `Ok`.
    Loading,
    /// A part of the server is not observed: its functions could not be hooked, or they are not called as
    /// expected.
    NotAttached,
    /// The hook stopped after an internal error. The server is not affected.
    Stopped,
    /// The last POST to the index failed. Evictions wait.
    IndexFailing,
    /// A newer server's word.
    #[serde(other)]
    Other,
}

/// What `POST /reset` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The number of live ids that were reported as evicted and forgotten.
    pub evicted: u64,
}

/// An error, with a status of 400 or more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The reason and what to do, in one line.
    pub error: String,
}
