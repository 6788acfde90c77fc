//! Where a request is, or what became of it.

use contextpilot_control::{
    Change, Evaluated, Evaluation, Evicted, Match, MatchRequest, Place as PlaceOut, RequestName,
    RequestState, Timestamp,
};
use contextpilot_residency::{Asker, Ledger, Place, Reason, RequestId, SequenceId};

use super::Observer;
use crate::asked::Asked;
use crate::difference::Difference;
use crate::gone::{Gone, MOST_GONE};
use crate::names::{place_out, reason_out};
use crate::note::Now;

impl Observer {
    /// Where a request is, or what became of it.
    #[must_use]
    pub fn request(&self, id: &str, asked: Asked<'_>) -> RequestState {
        let state = self.state(id.to_owned(), self.evaluations.get(id), asked);
        match state {
            RequestState::Unknown { .. } => self.numbered(id, asked).unwrap_or(state),
            _ => state,
        }
    }

    /// The same for a name as `#17`. `None`: it is none, or that request is not remembered.
    fn numbered(&self, name: &str, asked: Asked<'_>) -> Option<RequestState> {
        let number = RequestName::number(name).filter(|number| *number > 0)?;
        let (nth, prompts, evaluated) = self.evaluations.numbered(number)?;
        if let Some(id) = &evaluated.id {
            return Some(self.state(id.clone(), self.evaluations.get(id), asked));
        }
        let found = self.match_now(nth, asked);
        Some(RequestState::Numbered {
            id: name.to_owned(),
            at: evaluated.at,
            slot: evaluated.slot,
            prompts,
            tokens: found.as_ref().map(|found| found.tokens),
            cached_tokens: found.as_ref().map(spared),
            evaluation: Box::new(evaluated.evaluation.clone()),
        })
    }

    /// What the engine would reuse for this prompt, if it came again now. `None`: it is not remembered.
    fn match_now(&self, nth: u64, asked: Asked<'_>) -> Option<Match> {
        let again = MatchRequest {
            tokens: self.accounts.as_ref()?.prompt(nth)?,
            ..MatchRequest::default()
        };
        self.matching(&again, asked.ledger?, asked.store)
    }

    /// The same for many, without their evaluations.
    #[must_use]
    pub fn requests(&self, ids: Vec<String>, ledger: Option<&Ledger>) -> Vec<RequestState> {
        let asked = Asked {
            ledger,
            store: None,
        };
        let states = ids.into_iter().map(|id| self.state(id, None, asked));
        states.collect()
    }

    fn state(
        &self,
        id: String,
        evaluated: Option<(u64, &Evaluation)>,
        asked: Asked<'_>,
    ) -> RequestState {
        let evaluation = evaluated.map(|(_, evaluation)| Box::new(evaluation.clone()));
        if let Some(live) = self.live.get(&*id) {
            let since = Timestamp::from_unix_ms(live.since_unix_ms);
            let Some(tokens) = live.tokens else {
                return RequestState::Awaited { id, since };
            };
            let found = asked
                .ledger
                .and_then(|ledger| ledger.whereabouts(&id))
                .unwrap_or_default();
            let slots = found.sequences.into_iter();
            return RequestState::Cached {
                places: slots
                    .map(|slot| PlaceOut::Slot { slot })
                    .chain(found.host.then_some(PlaceOut::Host))
                    .collect(),
                id,
                tokens,
                since,
                kept: None,
                evaluation,
            };
        }
        match self.gone.get(&id) {
            Some(gone) => RequestState::Evicted {
                id,
                at: Timestamp::from_unix_ms(gone.at_unix_ms),
                reason: gone.reason,
                from: gone.from,
                by: gone.by.as_deref().map(str::to_owned),
                tokens: gone.tokens,
                cached_tokens: evaluated
                    .and_then(|(nth, _)| self.match_now(nth, asked))
                    .map(|found| spared(&found)),
                kept: None,
                evaluation,
            },
            None => RequestState::Unknown {
                id,
                hint: format!(
                    "never seen by this process, or evicted more than {MOST_GONE} evictions ago"
                ),
            },
        }
    }

    /// The last requests whose prompts were evaluated, the latest first. Each comes with the place where its
    /// prompt differs from an earlier one, if accounts keep the tokens there.
    #[must_use]
    pub fn latest(&self, most: usize) -> Vec<(Evaluated, Option<Difference>)> {
        self.evaluations.latest(most)
    }

    /// The place where the prompt of this request differs from an earlier one, if accounts keep the tokens
    /// there.
    #[must_use]
    pub fn difference(&self, id: &str) -> Option<Difference> {
        self.evaluations.difference(id)
    }

    pub(super) fn cached(&mut self, id: &RequestId, slot: SequenceId, tokens: u32, now: Now) {
        if let Some(live) = self.live.get_mut(id) {
            live.since_unix_ms = now.unix_ms;
            live.tokens = live.tokens.max(Some(tokens));
        }
        let id = id.to_string();
        self.change(Change::Cached { id, slot, tokens }, now);
    }

    pub(super) fn evicted(
        &mut self,
        id: &RequestId,
        reason: Reason,
        place: Place,
        by: Option<&Asker>,
        now: Now,
    ) {
        let live = self.live.remove(id);
        let reason = reason_out(reason);
        *self.counts.evictions.entry(reason).or_default() += 1;
        let arrival = by.and_then(Asker::arrival);
        if let Some(work) = arrival.and_then(|by| self.works.get_mut(&by)) {
            work.pushed_out(Evicted {
                id: id.to_string(),
                reason,
            });
        }
        let by = by.and_then(|by| by.id.clone());
        let from = place_out(place);
        let change = Change::Evicted {
            id: id.to_string(),
            reason,
            from,
            by: by.as_deref().map(str::to_owned),
        };
        let gone = Gone {
            at_unix_ms: now.unix_ms,
            reason,
            from,
            by,
            tokens: live.and_then(|live| live.tokens),
        };
        self.gone.remember(id, gone);
        self.change(change, now);
    }
}

/// How many tokens would be reused, or loaded from the store.
fn spared(found: &Match) -> u32 {
    let loaded = found.loaded.unwrap_or(0);
    let spared = match found.slot {
        Some(_) => found.reused + loaded,
        // All slots are at work. Which one is free first is not known.
        None => found.best.max(loaded),
    };
    u32::try_from(spared).unwrap_or(u32::MAX)
}
