//! Recorded traffic, with what is the same for all settings.

use contextpilot_traffic::{Memory, Traffic, TrafficRequest};

use crate::alike::Alike;
use crate::marks::Marks;
use crate::rates::Rates;
use crate::setting::Setting;
use crate::sizes::Sizes;
use crate::timeline::Timeline;
use crate::times::Times;

/// Recorded traffic, with what each simulation of it needs.
#[derive(Debug)]
pub struct Replay<'a> {
    pub(crate) traffic: &'a Traffic,
    pub(crate) sizes: Sizes,
    pub(crate) rates: Rates,
    pub(crate) timeline: Timeline,
    pub(crate) times: Times,
    pub(crate) marks: Marks,
    pub(crate) alike: Alike,
    /// Then no chunks are moved.
    pub(crate) has_projector: bool,
    /// All prompts begin with the same token, which a shift keeps.
    pub(crate) begins_alike: bool,
}

impl<'a> Replay<'a> {
    /// Of a recording.
    #[must_use]
    pub fn new(traffic: &'a Traffic) -> Self {
        let setting = Setting::recorded(traffic);
        let recorded = setting.as_ref();
        let with_checkpoints = recorded.filter(|recorded| recorded.server.memory != Memory::Full);
        Self {
            traffic,
            sizes: Sizes::new(&traffic.sizes),
            rates: Rates::new(traffic),
            timeline: Timeline::new(traffic),
            times: Times::new(
                traffic,
                recorded.map_or(BATCH, |recorded| recorded.server.batch_size),
            ),
            marks: with_checkpoints
                .map_or_else(Marks::default, |recorded| Marks::new(traffic, recorded)),
            alike: Alike::new(traffic),
            has_projector: traffic.has_projector(),
            begins_alike: begins_alike(&traffic.requests),
        }
    }

    /// Whether several clients asked without a pause: then their order decides.
    #[must_use]
    pub fn is_of_many(&self) -> bool {
        self.timeline.haste.is_known()
    }
}

/// The most tokens of a batch, if the recording does not say: the server's default.
const BATCH: u32 = 2048;

fn begins_alike(requests: &[TrafficRequest]) -> bool {
    let firsts = requests.iter().filter_map(|r| r.tokens.runs().first());
    let mut firsts = firsts.map(|run| run.first);
    let Some(first) = firsts.next() else {
        return false;
    };
    requests.len() > 1 && firsts.all(|other| other == first)
}
