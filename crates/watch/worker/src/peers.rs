//! The contexts of a program that is no llama-server, side by side.
//!
//! The ledger follows one context, and one batch of it at a time. A program's contexts are told to it as
//! [one](contextpilot_residency::program); they work on threads of their own. So while a batch of one is being
//! evaluated, what the others do waits here. The order within each context stays, and contexts do not depend on
//! each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use contextpilot_observer::Stamp;
use contextpilot_residency::program::{PROGRAM, context_of, sequence_of, slot_of, told_of_program};
use contextpilot_residency::{Adapter, Compared, ContextId, Event, SequenceId};

use crate::library::{Item, What};

mod at_work;
use at_work::AtWork;

/// Items that may wait while a batch is being evaluated. Another context generates as many in some minutes.
pub const MOST_HELD: usize = 1 << 16;
/// Entries of batches in these items.
pub const MOST_HELD_ENTRIES: usize = 1 << 20;

/// The living contexts of a program, and what waits.
#[derive(Default)]
pub(crate) struct Peers {
    /// The living contexts, by place.
    living: BTreeMap<usize, Peer>,
    /// The context whose batch is being evaluated.
    flying: Option<usize>,
    held: VecDeque<Item>,
    held_entries: usize,
    /// The context whose adapters the ledger takes for those that are applied. `None`: no context ever had any.
    applied: Option<usize>,
    /// The widest window of the bounded contexts.
    window: Option<u32>,
    at_work: AtWork,
}

#[derive(Default)]
struct Peer {
    /// Its sequences, by slot.
    slots: BTreeSet<SequenceId>,
    adapters: Option<(Vec<Adapter>, Compared)>,
}

/// The items that the ledger gets in place of an item.
pub(crate) type Outgoing = VecDeque<Item>;

impl Peers {
    /// Appends to `told` what may be told now.
    pub(crate) fn pass(&mut self, item: Item, told: &mut Outgoing) {
        if let What::Event(event) = &item.what {
            self.at_work.note(event, item.at);
        }
        self.go_on(item, told);
    }

    /// The slots that are at work at this moment.
    pub(crate) fn at_work(&self, now: Stamp) -> BTreeSet<SequenceId> {
        self.at_work.slots(now)
    }

    fn go_on(&mut self, item: Item, told: &mut Outgoing) {
        if self.must_wait(&item) {
            self.held_entries += entries_in(&item);
            self.held.push_back(item);
            if self.held.len() > MOST_HELD || self.held_entries > MOST_HELD_ENTRIES {
                self.desync();
                told.push_back(event(Event::OutOfStep, Stamp::default()));
            }
            return;
        }
        self.tell(item, told);
        if self.flying.is_none() {
            self.held_entries = 0;
            for item in std::mem::take(&mut self.held) {
                self.go_on(item, told);
            }
        }
    }

    /// Events were lost: what waits is void.
    pub(crate) fn desync(&mut self) {
        self.flying = None;
        self.held.clear();
        self.held_entries = 0;
        self.applied = None;
        self.at_work.desync();
    }

    fn must_wait(&self, item: &Item) -> bool {
        let Some(flying) = self.flying else {
            return false;
        };
        match &item.what {
            // A request may become known early, but must not be over before its prompt was told.
            What::Event(Event::Answered { .. } | Event::Freed { .. }) => !self.held.is_empty(),
            What::Event(event) => context_of(event).is_some_and(|context| context.0 != flying),
            What::Note(_) | What::Waiting(_) => false,
        }
    }

    fn tell(&mut self, item: Item, told: &mut Outgoing) {
        let Item { what, at } = item;
        let What::Event(now) = what else {
            told.push_back(Item { what, at });
            return;
        };
        let mut push = |content| told.push_back(event(content, at));
        let context = match now {
            Event::Launched { sequence, .. } => sequence_of(sequence).0,
            _ => match context_of(&now) {
                Some(context) => context,
                None => return push(now),
            },
        };
        let is_alone = self.living.len() < 2;
        let peer = self.living.entry(context.0).or_default();
        peer.note(context, &now);
        match now {
            Event::ContextCreated { .. } => {
                // Its place may be one whose end was lost.
                std::mem::take(peer).removals(None).for_each(&mut push);
                push(told_of_program(now));
            }
            Event::ContextFreed { .. } => {
                let freed = std::mem::take(peer);
                self.living.remove(&context.0);
                self.flying = self.flying.filter(|&place| place != context.0);
                self.applied = self.applied.filter(|&place| place != context.0);
                if self.living.is_empty() {
                    self.window = None;
                    push(told_of_program(now));
                } else {
                    freed.removals(None).for_each(push);
                }
            }
            Event::Bounded { window, .. } => {
                self.window = self.window.max(Some(window));
                push(Event::Bounded {
                    context: PROGRAM,
                    window: self.window.unwrap_or(window),
                });
            }
            Event::Adapters {
                ref adapters,
                compared,
                ..
            } => {
                peer.adapters = Some((adapters.clone(), compared));
                self.applied = Some(context.0);
                push(told_of_program(now));
            }
            Event::Submitted { .. } => {
                if let Some(of) = self.applied.filter(|&place| place != context.0) {
                    let compared = |peer: &Peer| peer.adapters.as_ref().map(|known| known.1);
                    let others = self.living.get(&of).and_then(compared);
                    let own = self.living.get(&context.0);
                    let own = own.and_then(|peer| peer.adapters.clone());
                    let (adapters, compared) =
                        own.unwrap_or((Vec::new(), others.unwrap_or(Compared::Always)));
                    push(Event::Adapters {
                        context: PROGRAM,
                        adapters,
                        compared,
                    });
                    self.applied = Some(context.0);
                }
                self.flying = Some(context.0);
                push(told_of_program(now));
            }
            Event::Evaluated { .. } => {
                self.flying = None;
                push(told_of_program(now));
            }
            Event::Obscured { sequence: ..0, .. } => {
                // The engine threw, or a batch is not known.
                self.flying = None;
                let obscured = |&slot: &SequenceId| Event::Obscured {
                    context: PROGRAM,
                    sequence: slot,
                };
                peer.slots.iter().map(obscured).for_each(push);
            }
            Event::Cleared { .. } if !is_alone => peer.removals(None).for_each(push),
            Event::Removed {
                sequence: ..0,
                from,
                to,
                ..
            } => {
                let removed = |&slot: &SequenceId| Event::Removed {
                    context: PROGRAM,
                    sequence: slot,
                    from,
                    to,
                };
                peer.slots.iter().map(removed).for_each(push);
            }
            Event::Kept { sequence, .. } if !is_alone => {
                let kept = slot_of(context, sequence);
                peer.removals(Some(kept)).for_each(push);
            }
            _ => push(told_of_program(now)),
        }
    }
}

impl Peer {
    /// Notes the sequences that an event is about.
    fn note(&mut self, context: ContextId, event: &Event) {
        match event {
            Event::Launched { sequence, .. } => {
                self.slots.insert(*sequence);
            }
            Event::Submitted { entries, .. } => {
                for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
                    self.slots.insert(slot_of(context, run[0].sequence));
                }
            }
            Event::Copied { target, .. } => {
                self.slots.insert(slot_of(context, *target));
            }
            Event::Replaced { sequence, .. } | Event::Restored { sequence, .. } => {
                self.slots.insert(slot_of(context, *sequence));
            }
            _ => {}
        }
    }

    /// Events that empty its slots, except one.
    fn removals(&self, but: Option<SequenceId>) -> impl Iterator<Item = Event> {
        let slots = self.slots.iter().copied();
        let removed = |sequence| Event::Removed {
            context: PROGRAM,
            sequence,
            from: -1,
            to: -1,
        };
        slots
            .filter(move |&slot| Some(slot) != but)
            .map(removed)
            .collect::<Vec<_>>()
            .into_iter()
    }
}

fn event(event: Event, at: Stamp) -> Item {
    let what = What::Event(event);
    Item { what, at }
}

fn entries_in(item: &Item) -> usize {
    match &item.what {
        What::Event(Event::Submitted { entries, .. }) => entries.len(),
        What::Event(Event::Replaced { tokens, .. }) => tokens.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_residency::{Entry, Ledger, TaskId};

    use super::*;

    const AT: Stamp = Stamp(0);

    fn submitted(place: usize, tokens: std::ops::Range<i32>) -> Event {
        let entry = |position| Entry {
            sequence: 0,
            position,
            token: position,
            output: position + 1 == tokens.end,
        };
        Event::Submitted {
            context: ContextId(place),
            entries: tokens.clone().map(entry).collect(),
        }
    }

    fn evaluated(place: usize) -> Event {
        Event::Evaluated {
            context: ContextId(place),
            failed: Vec::new(),
            no_room: false,
        }
    }

    fn created(place: usize) -> Event {
        Event::ContextCreated {
            context: ContextId(place),
        }
    }

    fn launched(place: usize, task: TaskId) -> Event {
        let sequence = slot_of(ContextId(place), 0);
        Event::Launched { sequence, task }
    }

    fn pass(peers: &mut Peers, events: impl IntoIterator<Item = Event>) -> Vec<Event> {
        let mut told = Outgoing::new();
        for content in events {
            peers.pass(event(content, AT), &mut told);
        }
        let events = told.into_iter().map(|item| match item.what {
            What::Event(event) => event,
            _ => unreachable!(),
        });
        events.collect()
    }

    fn held(ledger: &mut Ledger, events: Vec<Event>, slots: [i32; 2]) -> [u32; 2] {
        let mut effects = Vec::new();
        for event in events {
            ledger.apply(event, &mut effects);
        }
        slots.map(|slot| ledger.held(slot))
    }

    #[test]
    fn batches_of_two_contexts_that_are_evaluated_at_the_same_time_come_one_after_the_other() {
        let mut peers = Peers::default();
        let mut ledger = Ledger::new();
        let begun = [created(0), created(1), launched(0, 1), submitted(0, 0..9)];
        let begun = pass(&mut peers, begun);
        assert_eq!(held(&mut ledger, begun, [0, 1000]), [9, 0]);
        // The other one begins and ends within that.
        let waits = [
            launched(1, 2),
            submitted(1, 0..5),
            evaluated(1),
            submitted(1, 5..6),
        ];
        assert_eq!(pass(&mut peers, waits), []);
        let told = pass(
            &mut peers,
            [
                evaluated(0),
                submitted(0, 9..10),
                evaluated(1),
                evaluated(0),
            ],
        );
        let order: Vec<i32> = told
            .iter()
            .filter_map(|event| match event {
                Event::Submitted { entries, .. } => Some(entries[0].sequence),
                Event::Evaluated { .. } => Some(-1),
                _ => None,
            })
            .collect();
        assert_eq!(order, [-1, 1000, -1, 1000, -1, 0, -1]);
        assert_eq!(held(&mut ledger, told, [0, 1000]), [10, 6]);
    }

    #[test]
    fn what_is_done_to_all_sequences_of_a_context_is_done_to_no_other() {
        let whole = |place: usize| {
            let context = ContextId(place);
            [
                Event::Cleared { context },
                Event::Removed {
                    context,
                    sequence: -1,
                    from: -1,
                    to: -1,
                },
                Event::Kept {
                    context,
                    sequence: 1,
                },
                Event::Obscured {
                    context,
                    sequence: -1,
                },
                Event::ContextFreed { context },
            ]
        };
        for nth in 0..5 {
            for (place, left) in [(0, [0, 5]), (1, [9, 0])] {
                let mut peers = Peers::default();
                let mut ledger = Ledger::new();
                let events = [created(0), created(1), submitted(0, 0..9), evaluated(0)];
                let more = [submitted(1, 0..5), evaluated(1)];
                let told = pass(&mut peers, events.into_iter().chain(more));
                assert_eq!(held(&mut ledger, told, [0, 1000]), [9, 5]);
                let told = pass(&mut peers, [whole(place)[nth].clone()]);
                assert_eq!(held(&mut ledger, told, [0, 1000]), left, "{nth} {place}");
            }
        }
    }

    #[test]
    fn adapters_of_one_context_are_not_those_of_another() {
        let adapters = Event::Adapters {
            context: ContextId(1),
            adapters: Vec::new(),
            compared: Compared::Always,
        };
        let mut peers = Peers::default();
        let first = [
            created(0),
            created(1),
            adapters,
            submitted(1, 0..3),
            evaluated(1),
        ];
        pass(&mut peers, first);
        let told = pass(
            &mut peers,
            [submitted(0, 0..3), evaluated(0), submitted(0, 3..4)],
        );
        assert!(matches!(told[0], Event::Adapters { .. }), "{told:?}");
        assert_eq!(told.len(), 4, "{told:?}");
    }

    #[test]
    fn too_much_that_waits_makes_the_ledger_start_anew() {
        let mut peers = Peers::default();
        pass(&mut peers, [created(0), created(1), submitted(0, 0..9)]);
        let half = MOST_HELD_ENTRIES as i32 / 2;
        assert_eq!(pass(&mut peers, [submitted(1, 0..half)]), []);
        let told = pass(&mut peers, [submitted(1, 0..half + 1)]);
        assert_eq!(told, [Event::OutOfStep]);
        assert_eq!(pass(&mut peers, [evaluated(0), evaluated(1)]).len(), 2);
    }

    /// In a program as everywhere: an id that is over before its prompt was told would count as never cached.
    #[test]
    fn an_answer_does_not_overtake_its_prompt() {
        let mut peers = Peers::default();
        pass(&mut peers, [created(0), created(1), submitted(0, 0..9)]);
        let (arrival, id) = (contextpilot_residency::Arrival(1), Some("a".into()));
        let over = Event::Answered { arrival, id };
        assert_eq!(
            pass(&mut peers, [submitted(1, 0..5), evaluated(1), over]),
            []
        );
        let told = pass(&mut peers, [evaluated(0)]);
        assert!(
            matches!(told.last(), Some(Event::Answered { .. })),
            "{told:?}"
        );
    }
}
