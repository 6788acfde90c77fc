//! Marks: where the messages of users begin.
//!
//! The server ends a batch before each such message, to make a checkpoint there (`message_spans`). A
//! recording has the ends of batches. Those that have no other cause are taken for marks. They are known
//! only for messages that were evaluated while recording, but a prompt that repeats these has them, too.

use std::collections::BTreeSet;

use contextpilot_traffic::{Traffic, TrafficRequest};

use crate::setting::Setting;

/// The identities and the positions of marks.
#[derive(Debug, Default)]
pub(crate) struct Marks(BTreeSet<(u64, u32)>);

impl Marks {
    /// The marks in a recording. `recorded`: its setting.
    pub(crate) fn new(traffic: &Traffic, recorded: &Setting) -> Self {
        let mut marks = BTreeSet::new();
        for request in &traffic.requests {
            for at in breaks_without_cause(request, recorded) {
                if let Some(identity) = request.tokens.at(at) {
                    marks.insert((identity, at));
                }
            }
        }
        Self(marks)
    }

    /// The marks of a prompt, in ascending order.
    pub(crate) fn of_prompt(&self, request: &TrafficRequest) -> Vec<u32> {
        let mut begin = 0;
        let mut found = Vec::new();
        for run in request.tokens.runs() {
            let end = run.first + u64::from(run.length);
            let within = self.0.range((run.first, 0)..(end, 0));
            let places = within.filter(|&&(identity, at)| {
                u64::from(begin) + (identity - run.first) == u64::from(at)
                    && at < request.record.prompt
            });
            found.extend(places.map(|&(_, at)| at));
            begin += run.length;
        }
        found
    }
}

/// The ends of batches that were not full, not at or shortly before the end of the prompt, and not at
/// media.
fn breaks_without_cause<'a>(
    request: &'a TrafficRequest,
    setting: &'a Setting,
) -> impl Iterator<Item = u32> + 'a {
    let record = &request.record;
    let begins = std::iter::once(record.reused).chain(record.breaks.iter().copied());
    let pairs = begins.zip(record.breaks.iter().copied());
    let stops = [0, 4, 4 + setting.server.ubatch_size].map(|offset| {
        let offset = offset.min(setting.server.batch_size);
        record.prompt.checked_sub(offset)
    });
    let of_media = |at| {
        record
            .media
            .iter()
            .any(|&(begin, end)| begin <= at && at <= end)
    };
    let whole = move |begin: u32, end| end >= begin.saturating_add(setting.server.batch_size);
    let alone = pairs.filter(move |&(begin, end)| {
        !record.child && !whole(begin, end) && !stops.contains(&Some(end)) && !of_media(end)
    });
    alone.map(|(_, end)| end)
}
