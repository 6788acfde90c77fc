//! What the hook says of a request's prompt.

use std::time::{Duration, Instant};

use contextpilot_client::control::{Place, Reason, RequestState};
use contextpilot_client::{Control, Result};
use serde::Serialize;

/// How long the hook may take to know of a request that was answered. It takes
/// a fraction of a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);

/// Where the hook says that a prompt is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub(super) enum Claim {
    Cached { places: Vec<Place> },
    Evicted { reason: Reason },
    Unknown,
}

impl Claim {
    pub(super) fn is_cached(&self) -> Option<bool> {
        match self {
            Self::Cached { .. } => Some(true),
            Self::Evicted { .. } => Some(false),
            Self::Unknown => None,
        }
    }

    /// Whether it is cached, but not in this slot.
    pub(super) fn is_elsewhere(&self, slot: Option<u32>) -> bool {
        let here = |place: &Place| matches!(place, Place::Slot { slot: is } if slot.is_some_and(|slot| i64::from(*is) == i64::from(slot)));
        match self {
            Self::Cached { places } => !places.iter().any(here),
            _ => false,
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Cached { places } if !places.contains(&Place::Host) => "cached".to_owned(),
            Self::Cached { .. } => "cached in the host cache".to_owned(),
            Self::Evicted { reason } => {
                format!("evicted ({})", reason.as_str().replace('_', " "))
            }
            Self::Unknown => "not known".to_owned(),
        }
    }
}

pub(super) struct Hook {
    control: Control,
}

impl Hook {
    pub(super) fn new(control: Control) -> Self {
        Self { control }
    }

    /// Tokens that the prefix store has loaded so far; `None`: the server has no store.
    pub(super) fn loaded(&self) -> Result<Option<u64>> {
        let store = self.control.stats()?.store;
        Ok(store.map(|store| store.loaded_tokens))
    }

    /// What the hook says of `about`, after it knows that `when_known` was completed:
    /// it gets events in the order in which they happen.
    pub(super) fn claim(&self, about: &str, when_known: &str) -> Result<Claim> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.control.request(when_known)?;
            let pending = matches!(
                state,
                RequestState::Awaited { .. } | RequestState::Unknown { .. }
            );
            if !pending || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(LOOK);
        }
        Ok(match self.control.request(about)? {
            RequestState::Cached { places, .. } => Claim::Cached { places },
            RequestState::Evicted { reason, .. } => Claim::Evicted { reason },
            RequestState::Awaited { .. }
            | RequestState::Numbered { .. }
            | RequestState::Unknown { .. } => Claim::Unknown,
        })
    }
}
