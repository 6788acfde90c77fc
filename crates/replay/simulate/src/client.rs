//! What clients could do otherwise.

use std::sync::Arc;

use contextpilot_traffic::{
    ChangeKind, RequestRecord, Run, Tokens, Traffic, TrafficChange, TrafficRequest,
};

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
    /// They do not unload models of a router.
    NoUnload,
    /// A client that gave a request up asks again when the server has let it go, and not before.
    LateRetry,
}

impl Client {
    /// Those that change anything of this traffic.
    pub(crate) fn that_apply(traffic: &Traffic) -> impl Iterator<Item = Self> {
        let changes = |kind: ChangeKind| {
            let is_so = move |change: &TrafficChange| change.record.kind == kind;
            traffic.changes.iter().any(is_so)
        };
        let mut records = traffic.requests.iter().map(|request| &request.record);
        let all = [
            (
                Self::NoSlot,
                records.clone().any(|record| record.id_slot.is_some()),
            ),
            (Self::NoErase, changes(ChangeKind::Erased)),
            (Self::NoRestore, changes(ChangeKind::Restored)),
            (Self::NoUnload, changes(UNLOADED)),
            (
                Self::LateRetry,
                (0..traffic.requests.len()).any(|nth| let_go(traffic, nth).is_some()),
            ),
            (Self::Cache, records.clone().any(|record| record.uncached)),
            (
                Self::FlagsChunks,
                records.any(|record| record.wished.cache_reuse.is_some()),
            ),
        ];
        all.into_iter()
            .filter(|(_, does)| *does)
            .map(|(client, _)| client)
    }

    /// The traffic, had clients done this.
    #[must_use]
    pub fn applied(self, traffic: &Traffic) -> Traffic {
        let mut traffic = traffic.clone();
        let records = traffic.requests.iter_mut().map(|asked| &mut asked.record);
        match self {
            Self::NoSlot => records.for_each(|record| record.id_slot = None),
            Self::Cache => records.for_each(|record| record.uncached = false),
            Self::FlagsChunks => records.for_each(|record| record.wished.cache_reuse = None),
            Self::NoErase => without(&mut traffic, ChangeKind::Erased),
            Self::NoRestore => without(&mut traffic, ChangeKind::Restored),
            Self::NoUnload => without(&mut traffic, UNLOADED),
            Self::LateRetry => {
                // A retry may be given up, too, and asked for again.
                for nth in 0..traffic.requests.len() {
                    if let Some(let_go) = let_go(&traffic, nth) {
                        let record = &mut traffic.requests[nth].record;
                        let later = let_go + SOON - record.arrived;
                        for time in [
                            &mut record.arrived,
                            &mut record.launched,
                            &mut record.prompted,
                            &mut record.ended,
                        ] {
                            *time += later;
                        }
                    }
                }
            }
        }
        traffic
    }
}

/// A router stopped the process, though it started no other model.
const UNLOADED: ChangeKind = ChangeKind::Swapped { models: 0 };
/// A client that waits until the server has let a request go asks again so long after that, microseconds.
const SOON: u64 = 1000;

/// The traffic, had the router let all models run that it started, and how many these are. `None`: it did.
#[must_use]
pub fn without_swaps(traffic: &Traffic) -> Option<(u32, Traffic)> {
    let models = |change: &TrafficChange| match change.record.kind {
        ChangeKind::Swapped { models } => models,
        _ => 0,
    };
    let most = traffic.changes.iter().map(models).max();
    let most = most.filter(|&models| models > 0)?;
    let mut traffic = traffic.clone();
    traffic.changes.retain(|change| models(change) == 0);
    Some((most, traffic))
}

/// What was evaluated of a request's prompt for earlier requests that clients gave up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// These requests.
    pub requests: u32,
    /// Tokens that were evaluated for them.
    pub evaluated: u64,
    /// The request came before the server had let the last of them go.
    pub is_early: bool,
}

/// Requests that were given up in the middle of their prompts, which are the beginning of the prompt with this number.
#[must_use]
pub fn given_up(traffic: &Traffic, nth: usize) -> GivenUp {
    let mut all = GivenUp::default();
    let Some(asked) = traffic.requests.get(nth) else {
        return all;
    };
    for earlier in attempts(traffic, nth) {
        all.requests += 1;
        all.is_early |= earlier.ended >= asked.record.arrived;
        all.evaluated += u64::from(earlier.evaluated.saturating_sub(earlier.loaded));
    }
    all
}

fn attempts(traffic: &Traffic, nth: usize) -> impl Iterator<Item = &RequestRecord> {
    let (earlier, rest) = traffic.requests.split_at(nth.min(traffic.requests.len()));
    let asked = rest.first();
    let is_attempt = move |attempt: &&TrafficRequest| {
        let held = attempt.record.prompt;
        let begins = |asked: &TrafficRequest| asked.tokens.common_prefix(&attempt.tokens) >= held;
        attempt.record.abandoned && held > 0 && asked.is_some_and(begins)
    };
    let attempts = earlier.iter().filter(is_attempt);
    attempts.map(|attempt| &attempt.record)
}

/// When the server let the last attempt go for whose prompt this request asks again, if the request came before that.
/// Microseconds.
fn let_go(traffic: &Traffic, nth: usize) -> Option<u64> {
    let arrived = traffic.requests.get(nth)?.record.arrived;
    let ends = attempts(traffic, nth).map(|earlier| earlier.ended);
    ends.max().filter(|&ended| ended >= arrived)
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
    traffic.changes.retain(|change| change.record.kind != kind);
}

/// The traffic up to a request, had its prompt gone on like the earlier one that it shares the most tokens with, for so
/// many tokens more. `None`: it shares none with an earlier one.
#[must_use]
pub fn continued(traffic: &Traffic, nth: usize, more: u32) -> Option<Traffic> {
    let request = traffic.requests.get(nth)?;
    let shared = |other: &Arc<Tokens>| request.tokens.common_prefix(other);
    let earlier = traffic.requests[..nth]
        .iter()
        .map(|earlier| &earlier.tokens);
    let earlier = Arc::clone(earlier.max_by_key(|tokens| shared(tokens))?);
    let upto = shared(&earlier).checked_add(more)?;
    let prompt = request.record.prompt;
    let mut tokens = Tokens::new();
    tokens.extend(&earlier, 0, upto.min(prompt));
    // What is left has no identity yet.
    let rows = traffic.requests.iter().map(|request| &*request.tokens);
    let rows = rows.chain(traffic.changes.iter().map(|change| &*change.tokens));
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
    use crate::made::{self, request, row};

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

    /// Given up at 400 ms, and let go at 500; asked for again at once, and again at 450 ms.
    #[test]
    fn who_asks_again_before_the_server_has_let_go_would_have_waited() {
        let attempt = |order, (arrived, ended), length, abandoned| {
            let mut asked = request(order, row(&[(0, length)]));
            let record = &mut asked.record;
            (record.arrived, record.launched) = (arrived, arrived);
            (record.prompted, record.ended) = (ended, ended);
            (record.abandoned, record.evaluated) = (abandoned, length);
            asked
        };
        let traffic = Traffic {
            requests: vec![
                attempt(0, (0, 500_000), 64, true),
                attempt(1, (400_000, 900_000), 32, true),
                attempt(2, (450_000, 2_000_000), 100, false),
                attempt(3, (3_000_000, 4_000_000), 100, false),
            ],
            ..Traffic::default()
        };
        let all: Vec<GivenUp> = (0..4).map(|nth| given_up(&traffic, nth)).collect();
        let of = |requests, evaluated, is_early| GivenUp {
            requests,
            evaluated,
            is_early,
        };
        // The second had got no further than to half of the first.
        assert_eq!(all[1], of(0, 0, false));
        assert_eq!(all[2], of(2, 96, true));
        assert_eq!(all[3], of(2, 96, false));
        assert!(Client::that_apply(&traffic).any(|client| client == Client::LateRetry));
        let changed = Client::LateRetry.applied(&traffic);
        let times: Vec<_> = changed
            .requests
            .iter()
            .map(|request| (request.record.arrived, request.record.ended))
            .collect();
        assert_eq!(times[..2], [(0, 500_000), (400_000, 900_000)]);
        assert_eq!(times[2], (901_000, 2_451_000));
        assert_eq!(times[3], (3_000_000, 4_000_000));
        assert!(!Client::that_apply(&changed).any(|client| client == Client::LateRetry));
    }

    #[test]
    fn models_that_stay_loaded_lose_nothing() {
        let swapped = |order, models| {
            let record = contextpilot_traffic::SlotChange {
                order,
                at: order * 1_000_000,
                slot: 0,
                media: Vec::new(),
                kind: ChangeKind::Swapped { models },
            };
            let tokens = Arc::new(Tokens::new());
            TrafficChange { record, tokens }
        };
        let mut traffic = made::traffic(
            contextpilot_traffic::Setup::default(),
            (0..4)
                .map(|order| request(order, row(&[(0, 100)])))
                .collect(),
        );
        traffic.changes = vec![swapped(1, 2), swapped(2, 0), swapped(3, 3)];
        let evaluated = |traffic: &Traffic| {
            let recorded = made::recorded(traffic);
            crate::simulate(traffic, &recorded).evaluated_tokens
        };
        assert_eq!(evaluated(&traffic), 400);
        let (models, changed) = without_swaps(&traffic).expect("there are swaps");
        assert_eq!((models, changed.changes.len()), (3, 1));
        assert_eq!(evaluated(&changed), 202);
        let changed = Client::NoUnload.applied(&traffic);
        assert_eq!((changed.changes.len(), evaluated(&changed)), (2, 301));
        assert!(without_swaps(&Client::NoUnload.applied(&changed)).is_some());
    }
}
