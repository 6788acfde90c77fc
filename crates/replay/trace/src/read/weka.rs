//! Sessions of agents, as WEKA publishes them.

use super::{Damaged, Entry, Fields, Reader, micros, tokens};
use crate::trace::NewRequest;

/// Ids below it are told apart by session as they are, so that those that follow each other still do.
const PER_SESSION: u64 = 1 << 40;

/// Deeper ones are left out: no agent is.
const DEEPEST: usize = 16;

impl Reader {
    pub(super) fn session(&mut self, fields: Fields) -> Result<Vec<NewRequest>, Damaged> {
        let entries = fields.requests.unwrap_or_default();
        let mut flat = Vec::new();
        let relative = is_relative(&entries);
        let mut empty = 0;
        flatten(entries, 0, relative, 0, &mut flat, &mut empty)?;
        flat.sort_by_key(|request: &Flat| request.begin);
        let is_local = fields.hash_id_scope.as_deref() != Some("global");
        // One per session, however many lines it has.
        let session = match fields.id {
            Some(name) => self.named(name.0)?,
            None => self.next_session()?,
        };
        self.left_out.without_prompt += empty;
        let scope = if is_local { u64::from(session) + 1 } else { 0 };
        let scoped = |id: u64| match (scope, id < PER_SESSION) {
            (0, _) => id,
            (_, true) => id + scope.wrapping_mul(PER_SESSION),
            (_, false) => crate::trace::mixed(id ^ crate::trace::mixed(scope)),
        };
        let mut requests: Vec<NewRequest> = Vec::with_capacity(flat.len());
        // The ends of the requests before, in order. A request waited for the last one that had ended when it began.
        let mut ends: Vec<(u64, usize)> = Vec::new();
        for (nth, request) in flat.into_iter().enumerate() {
            let over = ends.partition_point(|(end, _)| *end <= request.begin);
            let waited = over.checked_sub(1).map(|last| {
                let (end, other) = ends[last];
                let pause = (request.begin - end) / 1000;
                let back = u32::try_from(nth - other).unwrap_or(u32::MAX);
                (back, u32::try_from(pause).unwrap_or(u32::MAX))
            });
            let end = request.begin.saturating_add(request.took.unwrap_or(0));
            let place = ends.partition_point(|(other, _)| *other <= end);
            ends.insert(place, (end, nth));
            requests.push(NewRequest {
                at: request.begin,
                session: Some(session),
                input: request.input,
                output: request.output,
                ids: request.ids.into_iter().map(scoped).collect(),
                took: request.took,
                after: waited,
            });
        }
        Ok(requests)
    }
}

struct Flat {
    begin: u64,
    took: Option<u64>,
    input: u32,
    output: u32,
    ids: Vec<u64>,
}

/// The times of sub-agents' requests are told in two ways: since the sub-agent began, or since the session did. In the second
/// none is before its sub-agent.
fn is_relative(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| {
        let begin = entry.t.unwrap_or(0.0);
        let nested = entry.requests.as_deref().unwrap_or_default();
        let before = |inner: &Entry| inner.t.unwrap_or(0.0) < begin;
        nested.iter().any(before) || is_relative(nested)
    })
}

fn flatten(
    entries: Vec<Entry>,
    offset: u64,
    relative: bool,
    depth: usize,
    into: &mut Vec<Flat>,
    empty: &mut u64,
) -> Result<(), Damaged> {
    for entry in entries {
        let begin = offset.saturating_add(micros("t", entry.t.unwrap_or(0.0), 1e6)?);
        if let Some(nested) = entry.requests {
            if depth >= DEEPEST {
                return Err(Damaged::new("sub-agents are nested too deep"));
            }
            let offset = if relative { begin } else { offset };
            flatten(nested, offset, relative, depth + 1, into, empty)?;
            continue;
        }
        let input = tokens("in", entry.r#in.unwrap_or(0))?;
        if input == 0 {
            *empty += 1;
            continue;
        }
        let took = entry.api_time.map(|time| micros("api_time", time, 1e6));
        into.push(Flat {
            begin,
            took: took.transpose()?,
            input,
            output: tokens("out", entry.out.unwrap_or(0))?,
            ids: entry.hash_ids.unwrap_or_default().0,
        });
    }
    Ok(())
}
