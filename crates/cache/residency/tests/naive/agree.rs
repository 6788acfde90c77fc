//! Applies the same events to the ledger and to the naive one, and compares the two.

use super::{Choices, Generator, Naive};
use contextpilot_residency::{BufferId, Event, Fact, Ledger};

pub(crate) struct Pair {
    pub(crate) ledger: Ledger,
    pub(crate) naive: Naive,
    /// All that the ledger told of the last event.
    pub(crate) facts: Vec<Fact>,
    applied: usize,
}

impl Default for Pair {
    fn default() -> Self {
        Self {
            // What is told to those who observe must change nothing.
            ledger: Ledger::observed(),
            naive: Naive::default(),
            facts: Vec::new(),
            applied: 0,
        }
    }
}

impl Pair {
    /// Applies random events until all decisions are used up, at most `events`.
    ///
    /// `check` is called with the ledger after each event. Returns the first difference.
    pub(crate) fn run(
        &mut self,
        choices: &mut impl Choices,
        generator: &mut Generator,
        events: usize,
        mut check: impl FnMut(&Ledger),
    ) -> Result<(), String> {
        for nth in 0..events {
            if choices.is_over() {
                break;
            }
            let event = generator.next(choices, &self.naive);
            self.apply(event)
                .map_err(|difference| format!("event {nth}: {difference}"))?;
            check(&self.ledger);
        }
        Ok(())
    }

    pub(crate) fn apply(&mut self, event: Event) -> Result<(), String> {
        let mut expected = self.naive.apply(&event);
        self.facts.clear();
        self.ledger.apply(event.clone(), &mut self.facts);
        let mut told: Vec<Fact> = self.facts.iter().filter_map(of_cache).collect();
        // The order of the facts of one event does not matter.
        if expected.len() > 1 {
            expected.sort_by_cached_key(|fact| format!("{fact:?}"));
            told.sort_by_cached_key(|fact| format!("{fact:?}"));
        }
        same("facts", &told, &expected, &event)?;
        let (ledger, naive) = (&self.ledger, &self.naive);
        for slot in [0, 1, 2, 3, -1, i32::MIN, i32::MAX] {
            same("held", &ledger.held(slot), &naive.held(slot), &event)?;
        }
        for buffer in (0..6).map(BufferId) {
            same(
                "buffer",
                &ledger.knows(buffer),
                &naive.knows(buffer),
                &event,
            )?;
        }
        same("tokens", &ledger.tokens(), &naive.tokens(), &event)?;
        same("live", &ledger.live(), &naive.ids().count(), &event)?;
        let (mut ours, mut theirs): (Vec<_>, Vec<_>) =
            (ledger.ids().collect(), naive.ids().collect());
        ours.sort_unstable();
        theirs.sort_unstable();
        same("ids", &ours, &theirs, &event)?;
        // The checks below cost more than the event, so they run after every eighth one.
        self.applied += 1;
        if self.applied % 8 != 0 {
            return Ok(());
        }
        let (ledger, naive) = (&self.ledger, &self.naive);
        same("saved", &ledger.saved(), &naive.saved(), &event)?;
        for id in ledger.ids() {
            let (here, there) = (ledger.whereabouts(id), naive.whereabouts(id));
            same("whereabouts", &here, &there, &event)?;
        }
        for slot in 0..4 {
            let (mut ours, mut theirs) = (
                ledger.requests_in(slot, usize::MAX),
                naive.requests_in(slot),
            );
            ours.sort_unstable();
            theirs.sort_unstable();
            same("requests", &ours, &theirs, &event)?;
        }
        Ok(())
    }
}

/// What the naive implementation says, too: nothing of who works on what.
fn of_cache(fact: &Fact) -> Option<Fact> {
    match fact.clone() {
        Fact::Evicted {
            id, reason, place, ..
        } => Some(Fact::Evicted {
            id,
            reason,
            place,
            by: None,
        }),
        fact @ (Fact::Awaited { .. } | Fact::Cached { .. }) => Some(fact),
        _ => None,
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    ledger: &T,
    naive: &T,
    event: &Event,
) -> Result<(), String> {
    if ledger == naive {
        return Ok(());
    }
    Err(format!(
        "{what}: the ledger has {ledger:?}, it should be {naive:?}, after {event:?}"
    ))
}
