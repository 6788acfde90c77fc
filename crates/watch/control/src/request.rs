//! `GET /requests/{id}`, and `POST /requests` for many.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Evaluation, KeptBeginning, Place, Reason, Timestamp};

/// Where a request's prompt is, or what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RequestState {
    /// On its way: received, and its prompt not evaluated to the end.
    Awaited {
        /// The id.
        id: String,
        /// Since when it has been on its way.
        since: Timestamp,
    },
    /// The KV of its whole prompt exists.
    Cached {
        /// The id.
        id: String,
        /// Everywhere it exists, slots first. A request with several prompts (`n`, a list)
        /// is cached while all of them are; this is where the first one is.
        places: Vec<Place>,
        /// Tokens of its (longest) prompt.
        tokens: u32,
        /// Since when it has been cached.
        since: Timestamp,
        /// What the prefix store keeps of its prompt because a client has asked for it; `None`: nothing, or that is not
        /// known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<KeptBeginning>,
        /// Why its prompt was evaluated; `None`: that is not remembered. It is remembered for the
        /// last 10,000 requests.
        #[serde(default)]
        evaluation: Option<Box<Evaluation>>,
    },
    /// It fell out of the cache.
    Evicted {
        /// The id.
        id: String,
        /// When it was evicted.
        at: Timestamp,
        /// Why it was evicted.
        reason: Reason,
        /// Where it stood last.
        from: Place,
        /// The id of the request whose prompt took its place, where it is known and has one.
        by: Option<String>,
        /// Tokens of its (longest) prompt; `None` if it never was cached.
        tokens: Option<u32>,
        /// How many tokens of (the last of) its prompts would be reused if it came again now and named no slot, or
        /// loaded from the prefix store; `None`: its prompt is not remembered.
        #[serde(default)]
        cached_tokens: Option<u32>,
        /// What the prefix store keeps of its prompt because a client has asked for it; `None`: nothing, or that is not
        /// known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<KeptBeginning>,
        /// Why its prompt was evaluated; `None`: it was not, or that is not remembered.
        #[serde(default)]
        evaluation: Option<Box<Evaluation>>,
    },
    /// It has no id, so the ledger does not follow it. It was asked for by its number, as `#17`.
    Numbered {
        /// What was asked for.
        id: String,
        /// When (the last of) its prompts was evaluated.
        at: Timestamp,
        /// The slot of (the last of) its prompts.
        slot: i32,
        /// How many prompts of it were evaluated. 0: not known, because the hook is older.
        #[serde(default)]
        prompts: u32,
        /// Tokens of (the last of) its prompts; `None`: it is not remembered, or the hook is older.
        #[serde(default)]
        tokens: Option<u64>,
        /// How many tokens of (the last of) its prompts would be reused if it came again now and named no slot, or
        /// loaded from the prefix store; `None`: its prompt is not remembered.
        cached_tokens: Option<u32>,
        /// Why its prompt was evaluated.
        evaluation: Box<Evaluation>,
    },
    /// Never seen, or gone so long ago that it is forgotten: the last 10,000 evictions are
    /// remembered. Answered with 404.
    Unknown {
        /// The id.
        id: String,
        /// What that may mean, for people.
        hint: String,
    },
}

impl RequestState {
    /// Why its prompt was evaluated, if that is known.
    #[must_use]
    pub fn evaluation(&self) -> Option<&Evaluation> {
        match self {
            Self::Cached { evaluation, .. } | Self::Evicted { evaluation, .. } => {
                evaluation.as_deref()
            }
            Self::Numbered { evaluation, .. } => Some(evaluation),
            Self::Awaited { .. } | Self::Unknown { .. } => None,
        }
    }

    /// The same, to be changed.
    #[must_use]
    pub fn evaluation_mut(&mut self) -> Option<&mut Evaluation> {
        match self {
            Self::Cached { evaluation, .. } | Self::Evicted { evaluation, .. } => {
                evaluation.as_deref_mut()
            }
            Self::Numbered { evaluation, .. } => Some(evaluation),
            Self::Awaited { .. } | Self::Unknown { .. } => None,
        }
    }

    /// What the prefix store keeps of its prompt on request.
    #[must_use]
    pub fn kept(&self) -> Option<KeptBeginning> {
        match self {
            Self::Cached { kept, .. } | Self::Evicted { kept, .. } => *kept,
            Self::Awaited { .. } | Self::Numbered { .. } | Self::Unknown { .. } => None,
        }
    }

    /// The same, to be changed. `None`: it has no place for that.
    #[must_use]
    pub fn kept_mut(&mut self) -> Option<&mut Option<KeptBeginning>> {
        match self {
            Self::Cached { kept, .. } | Self::Evicted { kept, .. } => Some(kept),
            Self::Awaited { .. } | Self::Numbered { .. } | Self::Unknown { .. } => None,
        }
    }

    /// The id that was asked for.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Awaited { id, .. }
            | Self::Cached { id, .. }
            | Self::Evicted { id, .. }
            | Self::Numbered { id, .. }
            | Self::Unknown { id, .. } => id,
        }
    }
}

/// `POST /requests`: where many requests are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestsQuery {
    /// At most [`RequestsQuery::MOST`].
    #[serde(deserialize_with = "few")]
    pub ids: Vec<String>,
}

impl RequestsQuery {
    /// Ids in a query.
    pub const MOST: usize = 1000;
}

/// The answer to a [`RequestsQuery`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestStates {
    /// One for each id, in their order; without evaluations, and without `cached_tokens`.
    pub requests: Vec<RequestState>,
}

/// No more than a query may have, so that a body of many short ids takes no more memory than its own.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {} ids", RequestsQuery::MOST)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<Self::Value, A::Error> {
            let mut few = Vec::new();
            while let Some(id) = ids.next_element()? {
                if few.len() == RequestsQuery::MOST {
                    return Err(serde::de::Error::invalid_length(few.len() + 1, &self));
                }
                few.push(id);
            }
            Ok(few)
        }
    }
    deserializer.deserialize_seq(Few)
}
