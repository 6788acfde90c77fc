use proptest::prelude::*;

use super::*;

fn id(n: usize) -> Arc<str> {
    // Lengths differ, so that the limit on bytes is felt at different counts.
    format!("req-{n:0width$}", width = 1 + n % 5).into()
}

fn texts(batch: &[Arc<str>]) -> Vec<&str> {
    batch.iter().map(|id| &**id).collect()
}

#[test]
fn ids_are_taken_oldest_first_and_each_once() {
    let mut outbox = Outbox::default();
    for text in ["a", "b", "a", "c"] {
        outbox.evict(text.into());
    }
    assert_eq!(texts(&outbox.take_batch(2)), ["a", "b"]);
    assert_eq!((outbox.len(), outbox.in_flight()), (1, 2));
    assert!(outbox.take_batch(2).is_empty(), "one batch at a time");
    outbox.delivered();
    assert_eq!(texts(&outbox.take_batch(2)), ["c"]);
    outbox.delivered();
    assert!(outbox.is_empty());
    assert!(outbox.take_batch(2).is_empty());
}

#[test]
fn a_failed_batch_is_sent_before_later_ids() {
    let mut outbox = Outbox::default();
    for text in ["a", "b", "c"] {
        outbox.evict(text.into());
    }
    outbox.take_batch(2);
    outbox.evict("d".into());
    outbox.put_back();
    assert_eq!(texts(&outbox.take_batch(9)), ["a", "b", "c", "d"]);
}

#[test]
fn a_withdrawn_id_is_not_sent() {
    let mut outbox = Outbox::default();
    outbox.evict("a".into());
    outbox.evict("b".into());
    assert!(outbox.withdraw("a"));
    assert!(!outbox.withdraw("a"));
    assert!(!outbox.withdraw("unknown"));
    assert_eq!(texts(&outbox.take_batch(9)), ["b"]);
    // Too late to hold it back, but it must not go out a second time.
    assert!(!outbox.withdraw("b"));
    outbox.put_back();
    assert!(outbox.is_empty());
}

#[test]
fn an_id_evicted_again_while_in_flight_is_sent_again_once() {
    let mut outbox = Outbox::default();
    outbox.evict("a".into());
    outbox.take_batch(1);
    outbox.withdraw("a");
    outbox.evict("a".into());
    outbox.delivered();
    assert_eq!(texts(&outbox.take_batch(9)), ["a"]);
    // And after a failure it is reported once, not twice.
    outbox.evict("a".into());
    outbox.put_back();
    assert_eq!(texts(&outbox.take_batch(9)), ["a"]);
    outbox.delivered();
    assert!(outbox.is_empty());
}

#[test]
fn over_a_limit_the_oldest_ids_are_dropped_and_counted() {
    let mut outbox = Outbox::new(Limits { ids: 3, bytes: 10 });
    for text in ["a", "b", "c", "d"] {
        outbox.evict(text.into());
    }
    assert_eq!((outbox.len(), outbox.take_dropped()), (3, 1));
    outbox.take_batch(2); // b, c
    outbox.evict("e".into());
    outbox.put_back(); // room for one of them
    assert_eq!((outbox.take_dropped(), outbox.take_dropped()), (1, 0));
    assert_eq!(texts(&outbox.take_batch(9)), ["c", "d", "e"]);
    outbox.delivered();
    outbox.evict("12345".into());
    outbox.evict("67890".into());
    outbox.evict("x".into());
    assert_eq!(outbox.take_dropped(), 1);
    outbox.evict("longer than all that may wait".into());
    assert_eq!((outbox.len(), outbox.take_dropped()), (0, 3));
}

#[test]
fn tombstones_behind_an_old_id_are_bounded() {
    let mut outbox = Outbox::default();
    outbox.evict("oldest".into());
    for n in 0..100_000 {
        outbox.evict(id(n));
        assert!(outbox.withdraw(&id(n)));
        assert!(outbox.queue.len() <= 2048, "{}", outbox.queue.len());
    }
    assert_eq!(texts(&outbox.take_batch(9)), ["oldest"]);
}

#[test]
fn after_an_outage_the_memory_is_freed() {
    let mut outbox = Outbox::default();
    for n in 0..50_000 {
        outbox.evict(id(n));
    }
    while !outbox.take_batch(1_000).is_empty() {
        outbox.delivered();
    }
    assert!(outbox.queue.capacity() <= 4096);
    assert!(outbox.numbers.capacity() <= 8192);
}

#[test]
fn an_id_set_aside_is_in_no_batch_and_is_taken_alone() {
    let mut outbox = Outbox::default();
    for text in ["a", "b", "c"] {
        outbox.evict(text.into());
    }
    for text in ["a", "b"] {
        assert_eq!(texts(&outbox.take_batch(1)), [text]);
        outbox.set_aside();
    }
    assert_eq!(
        (outbox.len(), outbox.aside(), outbox.in_flight()),
        (3, 2, 0)
    );
    // It waits already.
    outbox.evict("a".into());
    assert!(outbox.is_waiting("a") && outbox.has_batch());
    assert_eq!(texts(&outbox.take_batch(9)), ["c"]);
    assert!(outbox.take_aside().is_empty(), "one batch at a time");
    outbox.delivered();
    assert!(!outbox.has_batch() && !outbox.is_empty());

    // Each in turn.
    assert_eq!(texts(&outbox.take_aside()), ["a"]);
    outbox.set_aside();
    assert_eq!(texts(&outbox.take_aside()), ["b"]);
    outbox.delivered();
    assert!(outbox.withdraw("a"));
    assert!(outbox.is_empty() && outbox.take_aside().is_empty());
}

#[test]
fn a_dropped_id_is_not_sent_again() {
    let mut outbox = Outbox::default();
    for text in ["a", "b", "c", "d"] {
        outbox.evict(text.into());
    }
    outbox.take_batch(3);
    assert_eq!(texts(&outbox.give_up(&[0, 2, 7])), ["a", "c"]);
    outbox.put_back();
    assert_eq!(texts(&outbox.take_batch(9)), ["b", "d"]);
}

/// A simple and slow implementation, to compare with.
#[derive(Default)]
struct Model {
    aside: Vec<Arc<str>>,
    waiting: Vec<Arc<str>>,
    /// With whether a failure brings it back.
    in_flight: Vec<(Arc<str>, bool)>,
    dropped: u64,
}

impl Model {
    fn evict(&mut self, id: &Arc<str>, limits: Limits) {
        if self.waiting.contains(id) || self.aside.contains(id) {
            return;
        }
        self.no_return(id);
        self.waiting.push(Arc::clone(id));
        self.limit(limits);
    }

    fn withdraw(&mut self, id: &Arc<str>) {
        self.no_return(id);
        self.waiting.retain(|other| other != id);
        self.aside.retain(|other| other != id);
    }

    fn no_return(&mut self, id: &Arc<str>) {
        for (other, returns) in &mut self.in_flight {
            *returns &= other != id;
        }
    }

    fn take(&mut self, max: usize) -> Vec<Arc<str>> {
        if !self.in_flight.is_empty() {
            return Vec::new();
        }
        let batch: Vec<_> = self.waiting.drain(..max.min(self.waiting.len())).collect();
        self.in_flight = batch.iter().map(|id| (Arc::clone(id), true)).collect();
        batch
    }

    fn take_aside(&mut self) -> Vec<Arc<str>> {
        if !self.in_flight.is_empty() || self.aside.is_empty() {
            return Vec::new();
        }
        let id = self.aside.remove(0);
        self.in_flight.push((Arc::clone(&id), true));
        vec![id]
    }

    fn returning(&mut self) -> Vec<Arc<str>> {
        let returning = self.in_flight.drain(..).filter(|(_, returns)| *returns);
        returning.map(|(id, _)| id).collect()
    }

    fn set_aside(&mut self, limits: Limits) {
        let mut returning = self.returning();
        self.aside.append(&mut returning);
        self.limit(limits);
    }

    fn give_up(&mut self, place: usize) {
        if let Some((_, returns)) = self.in_flight.get_mut(place) {
            *returns = false;
        }
    }

    fn put_back(&mut self, limits: Limits) {
        let mut all = self.returning();
        all.append(&mut self.waiting);
        self.waiting = all;
        self.limit(limits);
    }

    fn bytes(&self) -> usize {
        let all = self.aside.iter().chain(&self.waiting);
        all.map(|id| id.len()).sum()
    }

    fn limit(&mut self, limits: Limits) {
        while self.aside.len() + self.waiting.len() > limits.ids || self.bytes() > limits.bytes {
            if self.aside.is_empty() {
                self.waiting.remove(0)
            } else {
                self.aside.remove(0)
            };
            self.dropped += 1;
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Evict(usize),
    Withdraw(usize),
    Take(usize),
    TakeAside,
    PutBack,
    SetAside,
    GiveUp(usize),
    Delivered,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0usize..40).prop_map(Op::Evict),
        3 => (0usize..40).prop_map(Op::Withdraw),
        2 => (0usize..12).prop_map(Op::Take),
        1 => Just(Op::TakeAside),
        1 => Just(Op::PutBack),
        1 => Just(Op::SetAside),
        1 => (0usize..12).prop_map(Op::GiveUp),
        1 => Just(Op::Delivered),
    ]
}

proptest! {
    #[test]
    fn agrees_with_the_naive_model(
        ops in proptest::collection::vec(op(), 0..300),
        ids in 1usize..30,
        bytes in 8usize..300,
    ) {
        let limits = Limits { ids, bytes };
        let mut outbox = Outbox::new(limits);
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Evict(n) => {
                    outbox.evict(id(n));
                    model.evict(&id(n), limits);
                }
                Op::Withdraw(n) => {
                    let waited = model.waiting.contains(&id(n)) || model.aside.contains(&id(n));
                    prop_assert_eq!(outbox.withdraw(&id(n)), waited);
                    model.withdraw(&id(n));
                }
                Op::Take(max) => prop_assert_eq!(outbox.take_batch(max), model.take(max)),
                Op::TakeAside => prop_assert_eq!(outbox.take_aside(), model.take_aside()),
                Op::SetAside => {
                    outbox.set_aside();
                    model.set_aside(limits);
                }
                Op::GiveUp(place) => {
                    let given_up = outbox.give_up(&[place]);
                    let there = model.in_flight.get(place).map(|(id, _)| Arc::clone(id));
                    prop_assert_eq!(given_up, Vec::from_iter(there));
                    model.give_up(place);
                }
                Op::PutBack => {
                    outbox.put_back();
                    model.put_back(limits);
                }
                Op::Delivered => {
                    outbox.delivered();
                    model.in_flight.clear();
                }
            }
            prop_assert_eq!(outbox.len(), model.waiting.len() + model.aside.len());
            prop_assert_eq!(outbox.aside(), model.aside.len());
            prop_assert_eq!(outbox.has_batch(), !model.waiting.is_empty());
            prop_assert_eq!(outbox.in_flight(), model.in_flight.len());
            prop_assert_eq!(outbox.dropped, model.dropped);
            prop_assert_eq!(outbox.bytes, model.bytes());
            let order: Vec<_> = outbox.queue.iter().flatten().cloned().collect();
            prop_assert_eq!(&order, &model.waiting);
            prop_assert_eq!(&outbox.aside, &model.aside);
            prop_assert_eq!(outbox.is_aside.len(), model.aside.len());
        }
    }
}
