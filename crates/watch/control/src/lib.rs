//! The types of the control endpoint inside a hooked llama-server (`CONTEXTPILOT_LISTEN`), for server
//! and clients.
//!
//! | request | answer |
//! |---|---|
//! | `GET /stats` | [`Stats`] |
//! | `GET /requests/{id}`, percent-encoded | [`RequestState`]; 404 with the same for an unknown one |
//! | `POST /requests` with a [`RequestsQuery`] | [`RequestStates`] |
//! | `GET /requests/last?n=…` | [`Latest`]: the last requests whose prompts were evaluated |
//! | `GET /tree?most=…` | [`Tree`]: what is held, as the tree of prefixes that it is |
//! | `POST /match` with a [`MatchRequest`] | [`Match`] |
//! | `POST /reset` | [`Reset`] |
//! | `GET /events` | server-sent events, each with a [`ResidencyEvent`] |
//! | `GET /health` | [`Health`], 200 while the process serves |
//! | `GET /ready` | [`Health`], 200 or 503 |
//! | `GET /metrics` | Prometheus' text format |
//! | anything else, or an error | [`Refusal`] |
//!
//! and each line of `CONTEXTPILOT_LOG_FILE` is a [`LogLine`].
//!
//! Tokens are counted as the engine counts them, one for each position of the KV cache. Times
//! are [`Timestamp`]s (UTC), durations are in seconds. `null` and [`None`] mean *not known*, never zero.
//! A reader skips fields that it does not know: they are of a newer server. Fields that
//! an older server does not send are read as unknown or empty.
//!
//! Nothing here holds a prompt, a token or an answer: only request ids and numbers; but with
//! `CONTEXTPILOT_EXPLAIN_TEXT=1` an [`Evaluation`] has a few words around a difference.

#![forbid(unsafe_code)]

mod evaluation;
mod event;
mod flags;
mod health;
mod listening;
mod log_line;
mod matching;
mod reason;
mod request;
mod stats;
mod time;
mod tree;

pub use contextpilot_residency::{Causes, Elsewhere, Sources};
pub use contextpilot_settings::{ListenAddress, ListenAddressError};
pub use evaluation::{
    AppliedAdapter, Diverged, DivergedText, Evaluated, Evaluation, Latest, Lost, RequestName,
    Sections, Through, Title,
};
pub use event::{Change, EventId, Missed, ResidencyEvent, name};
pub use flags::{Flags, Memory};
pub use health::{Health, HealthStatus, Refusal, Reset};
pub use listening::nearest;
pub use log_line::{Evicted, LogLine, Outcome};
pub use matching::{ChosenBy, HostMatch, KeptBeginning, Like, Match, MatchRequest, SlotMatch};
pub use reason::{Place, Reason};
pub use request::{RequestState, RequestStates, RequestsQuery};
pub use stats::{
    ControlEndpoint, CountedAnswers, Delivery, Engine, FilesRead, HookedFunction, HostCache,
    KEEPS_NO_MORE, KeptPrompts, KeptTokens, KvBytes, KvEvents, Losses, Mode, Model, ModelState,
    PrefixStore, ProgramContext, Recording, Requests, Reuse, ReuseOver, Seen, Slot, Stats,
    StoreRemote, Tokens, UnfinishedPrompt,
};
pub use time::{NotATime, Timestamp};
pub use tree::{Branch, Merged, Tree};
