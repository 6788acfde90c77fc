//! What clients could do otherwise.

use std::sync::Arc;

use contextpilot_traffic::{ChangeKind, Run, Tokens, Traffic, TrafficChange};

/// A change of what clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// They name no slot (`id_slot`).
    NoSlot,
    /// They erase no slots.
    NoErase,
    /// They restore no slots.
    NoRestore,
    /// They, or a flag of the server, do not turn the cache off (`cache_prompt`).
    Cache,
    /// They do not say which chunks are moved (`n_cache_reuse`).
    FlagsChunks,
}

impl Client {
    /// Those that change anything of this traffic.
    pub(crate) fn that_apply(traffic: &Traffic) -> impl Iterator<Item = Self> {
        let changes = |kind: ChangeKind| {
            let is_so = move |one: &TrafficChange| one.record.kind == kind;
            traffic.changes.iter().any(is_so)
        };
        let mut records = traffic.requests.iter().map(|one| &one.record);
        let all = [
            (
                Self::NoSlot,
                records.clone().any(|one| one.id_slot.is_some()),
            ),
            (Self::NoErase, changes(ChangeKind::Erased)),
            (Self::NoRestore, changes(ChangeKind::Restored)),
            (Self::Cache, records.clone().any(|one| one.uncached)),
            (
                Self::FlagsChunks,
                records.any(|one| one.wished.cache_reuse.is_some()),
            ),
        ];
        all.into_iter()
            .filter(|(_, does)| *does)
            .map(|(one, _)| one)
    }

    /// The traffic, had clients done this.
    #[must_use]
    pub fn applied(self, traffic: &Traffic) -> Traffic {
        let mut traffic = traffic.clone();
        let records = traffic.requests.iter_mut().map(|one| &mut one.record);
        match self {
            Self::NoSlot => records.for_each(|one| one.id_slot = None),
            Self::Cache => records.for_each(|one| one.uncached = false),
            Self::FlagsChunks => records.for_each(|one| one.wished.cache_reuse = None),
            Self::NoErase => without(&mut traffic, ChangeKind::Erased),
            Self::NoRestore => without(&mut traffic, ChangeKind::Restored),
        }
        traffic
    }
}

/// The traffic, had the server composed prompts for `/infill` in the other order. `None`: there are none, or it is not known
/// what they would have been.
pub(crate) fn suffix_first(traffic: &Traffic) -> Option<Traffic> {
    if traffic.suffix_first.is_empty() {
        return None;
    }
    let mut traffic = traffic.clone();
    for request in &mut traffic.requests {
        if let Some(tokens) = traffic.suffix_first.get(&request.record.order) {
            request.tokens = Arc::clone(tokens);
        }
    }
    Some(traffic)
}

/// The traffic, had no prompt got the tokens of earlier answers: each has the tokenizer's own, and the same answer follows.
/// `None`: none has got any, as far as the recording says.
#[must_use]
pub fn without_kept_tokens(traffic: &Traffic) -> Option<Traffic> {
    if traffic.canonical.is_empty() {
        return None;
    }
    let mut traffic = traffic.clone();
    for request in &mut traffic.requests {
        if let Some(tokens) = traffic.canonical.get(&request.record.order) {
            request.record.prompt = tokens.len().saturating_sub(request.generated());
            request.tokens = Arc::clone(tokens);
        }
    }
    Some(traffic)
}

fn without(traffic: &mut Traffic, kind: ChangeKind) {
    traffic.changes.retain(|one| one.record.kind != kind);
}

/// The traffic up to a request, had its prompt gone on like the earlier one that it shares the most tokens with, for so
/// many tokens more. `None`: it shares none with an earlier one.
#[must_use]
pub fn continued(traffic: &Traffic, nth: usize, more: u32) -> Option<Traffic> {
    let request = traffic.requests.get(nth)?;
    let shared = |other: &Arc<Tokens>| request.tokens.common_prefix(other);
    let earlier = traffic.requests[..nth].iter().map(|one| &one.tokens);
    let earlier = Arc::clone(earlier.max_by_key(|tokens| shared(tokens))?);
    let upto = shared(&earlier).checked_add(more)?;
    let prompt = request.record.prompt;
    let mut tokens = Tokens::new();
    tokens.extend(&earlier, 0, upto.min(prompt));
    // What is left has no identity yet.
    let rows = traffic.requests.iter().map(|one| &*one.tokens);
    let rows = rows.chain(traffic.changes.iter().map(|one| &*one.tokens));
    let runs = rows.flat_map(|row| row.runs());
    let fresh = runs.map(|run| run.first + u64::from(run.length)).max()?;
    tokens.push(Run {
        first: fresh,
        length: request.tokens.len().checked_sub(tokens.len())?,
    });
    let mut changed = traffic.clone();
    changed.requests.truncate(nth + 1);
    let order = request.record.order;
    changed
        .changes
        .retain(|change| change.record.order <= order);
    changed.requests[nth].tokens = Arc::new(tokens);
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{request, row};

    #[test]
    fn a_prompt_that_had_gone_on_has_more_in_common_with_the_earlier_one() {
        let traffic = Traffic {
            requests: vec![
                request(0, row(&[(0, 30)])),
                request(1, row(&[(0, 10), (100, 20)])),
                request(2, row(&[(0, 30)])),
            ],
            ..Traffic::default()
        };
        assert!(
            continued(&traffic, 0, 5).is_none(),
            "there is no earlier one"
        );
        let changed = continued(&traffic, 1, 5).expect("it shares ten tokens");
        assert_eq!(changed.requests.len(), 2, "up to this request");
        let [earlier, later] = [0, 1].map(|nth| &changed.requests[nth].tokens);
        assert_eq!((earlier.common_prefix(later), later.len()), (15, 30));
    }
}
