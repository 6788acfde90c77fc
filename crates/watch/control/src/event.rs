//! `GET /events`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Place, Reason, Timestamp};

/// The values of the stream's `event:` field.
pub mod name {
    /// The data is a [`ResidencyEvent`](crate::ResidencyEvent).
    pub const RESIDENCY: &str = "residency";
    /// The data is a [`Missed`](crate::Missed).
    pub const MISSED: &str = "missed";
}

/// Something became cached, moved, or fell out of the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidencyEvent {
    /// A random value, drawn when the server process started. If it changes, a new process has begun with an
    /// empty cache, and counts from 1 again.
    pub epoch: String,
    /// Its number: 1, 2, 3… without a gap. As `<epoch>-<sequence>` it is the stream's `id:`.
    pub sequence: u64,
    /// When the ledger learned of it.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub change: Change,
}

impl ResidencyEvent {
    /// What a reader sends as `Last-Event-ID` when it reconnects.
    #[must_use]
    pub fn id(&self) -> EventId {
        EventId {
            epoch: self.epoch.clone(),
            sequence: self.sequence,
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// The KV of a request's whole prompt now exists.
    Cached {
        /// The request's id.
        id: String,
        /// The slot that holds the prompt.
        slot: i32,
        /// Prompt length.
        tokens: u32,
    },
    /// The content of a slot was copied to the host prompt cache. llama-server does that before it
    /// empties the slot, or gives it to another prompt.
    MovedToHost {
        /// The requests whose prompts are in it: of many, the 128 whose prompts end last. Empty if no live
        /// request with an id has its prompt there.
        ids: Vec<String>,
        /// The slot that was copied.
        slot: i32,
        /// Tokens that were copied.
        tokens: u32,
        /// Size of the copy.
        bytes: Option<u64>,
    },
    /// An entry of the host prompt cache was loaded into a slot, and removed from the host prompt cache.
    Restored {
        /// The requests whose prompts are in it: of many, the 128 whose prompts end last.
        ids: Vec<String>,
        /// The slot that the entry was loaded into.
        slot: i32,
        /// Tokens that were loaded.
        tokens: u32,
    },
    /// The last copy of a request's prompt is gone.
    Evicted {
        /// The request's id.
        id: String,
        /// Why it was evicted.
        reason: Reason,
        /// Where its last copy was.
        from: Place,
        /// The id of the request whose prompt took its place, if that is known and has an id.
        by: Option<String>,
    },
    /// A kind of change that only a newer server knows.
    #[serde(other)]
    Other,
}

/// A reader was too slow, or reconnected too late: some events are no longer kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// The epoch of the current process.
    pub epoch: String,
    /// How many events were missed. `None` if the reader's last event was of another process, so that
    /// everything it knows of the cache is void.
    pub missed: Option<u64>,
}

/// Names an event: `<epoch>-<sequence>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventId {
    /// The epoch of the process.
    pub epoch: String,
    /// The number of the event.
    pub sequence: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.sequence)
    }
}

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (epoch, sequence) = text.rsplit_once('-').ok_or(())?;
        if epoch.is_empty() || !sequence.bytes().all(|b| b.is_ascii_digit()) {
            return Err(());
        }
        Ok(Self {
            epoch: epoch.to_owned(),
            sequence: sequence.parse().map_err(|_| ())?,
        })
    }
}
