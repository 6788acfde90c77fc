//! Memory that requests take, bounded for each kind of them: none can take that of another.

use contextpilot_index::Endpoint;
use contextpilot_proxy::Room;
use serde_json::{Value, json};

/// One for each kind of request.
pub(super) struct Rooms {
    evictions: Room,
    others: Room,
    /// Completions, which are read for their id.
    pub(super) passing: Room,
}

impl Rooms {
    /// `most`: bytes for requests to the index itself.
    pub(super) fn new(most: usize) -> Self {
        Self {
            evictions: Room::new(most / 4),
            others: Room::new(most),
            passing: Room::new(most / 4),
        }
    }

    pub(super) fn of(&self, endpoint: Endpoint) -> &Room {
        match endpoint {
            Endpoint::Evict => &self.evictions,
            _ => &self.others,
        }
    }

    pub(super) fn all(&self) -> [&Room; 3] {
        [&self.evictions, &self.others, &self.passing]
    }

    /// For `/stats`.
    pub(super) fn tell(&self, stats: &mut Value) {
        let all = self.all();
        let held: usize = all.iter().map(|room| room.held()).sum();
        let refused: u64 = all.iter().map(|room| room.refused()).sum();
        stats["bodies"] = json!({"held_bytes": held, "refused": refused});
    }
}
