//! The names of requests, reasons and places in output.

use std::collections::HashSet;

use contextpilot_control::{
    ChosenBy, Place as PlaceOut, Reason as ReasonOut, Through as ThroughOut,
};
use contextpilot_residency::{Choice, Ledger, Place, Reason, RequestId, SequenceId, Through};

/// The most request ids that are named for a slot, or in a log line.
pub const MOST_NAMED: usize = 1000;
/// The most request ids that are named in an event. Servers move slots with most requests that they get, so
/// this is a part of what a request costs. A prompt that is asked again and again is cached for all who asked.
pub const MOST_MOVED: usize = 128;

/// The requests whose prompts a slot holds, each once: of many, those whose prompts end last.
pub(crate) fn names(ledger: &Ledger, sequence: SequenceId) -> Vec<String> {
    each_once(ledger.requests_in(sequence, MOST_MOVED)).0
}

/// The last [`MOST_NAMED`] of some ids, and how many different ones there are.
pub(crate) fn each_once(mut ids: Vec<&RequestId>) -> (Vec<String>, u64) {
    let mut seen = HashSet::with_capacity(ids.len());
    ids.retain(|&id| seen.insert(id));
    let last = ids.len().saturating_sub(MOST_NAMED);
    let names = ids[last..].iter().map(ToString::to_string);
    (names.collect(), ids.len() as u64)
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

pub(crate) fn through_out(through: Through) -> ThroughOut {
    match through {
        Through::Erase => ThroughOut::Erase,
        Through::Restore => ThroughOut::Restore,
        Through::NoRoom => ThroughOut::NoRoom,
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
