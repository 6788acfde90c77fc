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

    fn sum(&self) -> (usize, u64) {
        let all = [&self.evictions, &self.others, &self.passing];
        all.iter().fold((0, 0), |(held, refused), room| {
            (held + room.held(), refused + room.refused())
        })
    }

    /// For `/stats`.
    pub(super) fn tell(&self, stats: &mut Value) {
        let (held, refused) = self.sum();
        stats["bodies"] = json!({"held_bytes": held, "refused": refused});
    }

    /// For `/metrics`.
    pub(super) fn metrics(&self) -> String {
        let (held, refused) = self.sum();
        let name = "contextpilot_index_bodies";
        format!(
            "# HELP {name}_bytes Memory of requests that are received, worked on or answered (--max-bodies)\n\
             # TYPE {name}_bytes gauge\n{name}_bytes {held}\n\
             # HELP {name}_refused_total Requests that were refused because there was no memory for them\n\
             # TYPE {name}_refused_total counter\n{name}_refused_total {refused}\n"
        )
    }
}
