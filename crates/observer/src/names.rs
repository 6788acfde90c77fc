//! The names of requests, reasons and places in output.

use std::collections::HashSet;

use contextpilot_control::{ChosenBy, Place as PlaceOut, Reason as ReasonOut};
use contextpilot_residency::{Choice, Ledger, Place, Reason, RequestId, SequenceId};

/// The most request ids that are named in one place: in an event, for a slot, or in a log line.
pub const MOST_NAMED: usize = 1000;

/// The requests whose prompts a slot holds, each once.
pub(crate) fn names(ledger: &Ledger, sequence: SequenceId) -> Vec<String> {
    each_once(ledger.requests_in(sequence)).0
}

/// The first [`MOST_NAMED`] of some ids, and how many different ones there are.
pub(crate) fn each_once(ids: Vec<&RequestId>) -> (Vec<String>, u64) {
    let mut seen = HashSet::with_capacity(ids.len());
    let mut names = Vec::new();
    for id in ids {
        if seen.insert(id) && names.len() < MOST_NAMED {
            names.push(id.to_string());
        }
    }
    (names, seen.len() as u64)
}

pub(crate) fn reason_out(reason: Reason) -> ReasonOut {
    match reason {
        Reason::Overwritten => ReasonOut::Overwritten,
        Reason::Cleared => ReasonOut::Cleared,
        Reason::Shifted => ReasonOut::Shifted,
        Reason::DroppedFromHost => ReasonOut::DroppedFromHost,
        Reason::OutOfReach => ReasonOut::OutOfReach,
        Reason::AdaptersChanged => ReasonOut::AdaptersChanged,
        Reason::ContextFreed => ReasonOut::ContextFreed,
        Reason::NeverCached => ReasonOut::NeverCached,
        Reason::OutOfStep => ReasonOut::OutOfStep,
        Reason::Reset => ReasonOut::Reset,
        Reason::TooMany => ReasonOut::TooMany,
    }
}

pub(crate) fn choice_out(choice: Choice) -> ChosenBy {
    match choice {
        Choice::Pinned => ChosenBy::Id,
        Choice::Similarity => ChosenBy::Similarity,
        Choice::LeastRecentlyUsed => ChosenBy::LeastRecentlyUsed,
    }
}

pub(crate) fn place_out(place: Place) -> PlaceOut {
    match place {
        Place::Slot(slot) => PlaceOut::Slot { slot },
        Place::Host => PlaceOut::Host,
        Place::Nowhere => PlaceOut::Nowhere,
    }
}
