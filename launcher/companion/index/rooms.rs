//! Memory that requests take, bounded for each kind of them: none can take that of another.

use contextpilot_index::Endpoint;
use contextpilot_proxy::Room;

/// One for each kind of request to the index itself.
pub(super) struct Rooms {
    evictions: Room,
    others: Room,
}

impl Rooms {
    /// `most`: bytes for all but evictions.
    pub(super) fn new(most: usize) -> Self {
        Self {
            evictions: Room::new(most / 4),
            others: Room::new(most),
        }
    }

    pub(super) fn for_endpoint(&self, endpoint: Endpoint) -> &Room {
        match endpoint {
            Endpoint::Evict => &self.evictions,
            _ => &self.others,
        }
    }

    pub(super) fn all(&self) -> [&Room; 2] {
        [&self.evictions, &self.others]
    }
}
