//! The hook's queue in loom, which tries every order of what its threads do, as far as the
//! memory model lets them differ. Segments have two places here, so that all borders are crossed.

#[cfg(all(loom, test))]
#[path = "../../src/channel/queue.rs"]
mod queue;

#[cfg(all(loom, test))]
mod tests {
    use loom::model::Builder;
    use loom::sync::Arc;
    use loom::thread;

    use super::queue::{Receiver, Sender, queue};

    /// Boxed, so that loom sees what is leaked or freed twice.
    type Value = Box<u32>;

    const ALL: usize = usize::MAX;

    /// Every order in which threads are interrupted at most so many times.
    fn model(interruptions: usize, test: impl Fn() + Sync + Send + 'static) {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(interruptions);
        builder.max_branches = 10_000;
        builder.check(test);
    }

    /// Sends these numbers; says how many there was room for. No further one is tried then.
    fn send(sender: &Sender<Value>, from: u32, count: u32) -> u32 {
        let mut numbers = (0..count).map(|n| Box::new(from + n));
        let sent = numbers.position(|number| sender.send(number, ALL).is_err());
        sent.map_or(count, |sent| sent as u32)
    }

    /// Takes what is found in so many looks.
    fn take(mut receiver: Receiver<Value>, looks: usize) -> (Vec<u32>, Receiver<Value>) {
        let found = (0..looks).filter_map(|_| receiver.take());
        (found.map(|value| *value).collect(), receiver)
    }

    /// Senders, and a receiver that takes while they send and once more after they did. Each one's
    /// numbers arrive in their order, as many as it was told that there was room for.
    ///
    /// All of them are threads of their own, and interruptions are bounded: otherwise loom leaves
    /// out orders, which breaking the queue on purpose shows.
    fn exchange<const SENDERS: usize>(capacity: usize, counts: [u32; SENDERS], looks: usize) {
        let (sender, receiver) = queue(capacity);
        let sender = Arc::new(sender);
        let receiving = thread::spawn(move || take(receiver, looks));
        let mut from = 0;
        let sending = counts.map(|count| {
            let sender = Arc::clone(&sender);
            from += 10;
            thread::spawn(move || from..from + send(&sender, from, count))
        });
        let sent = sending.map(|thread| thread.join().unwrap());
        let (mut all, mut receiver) = receiving.join().unwrap();
        all.extend(std::iter::from_fn(|| receiver.take()).map(|value| *value));
        for numbers in sent {
            let sender = numbers.start / 10;
            let from_it = all.iter().copied().filter(|number| number / 10 == sender);
            assert!(from_it.eq(numbers), "{all:?}");
        }
        assert!(receiver.is_empty());
    }

    /// A table of two segments, and three that are used: the third in the place of the first.
    #[test]
    fn values_arrive_in_order() {
        model(3, || exchange(2, [5], 4));
    }

    #[test]
    fn two_senders_share_segments() {
        model(2, || exchange(8, [2, 2], 2));
    }

    #[test]
    fn a_full_queue_is_never_overfilled() {
        model(2, || exchange(1, [2, 2], 2));
    }

    #[test]
    fn the_end_of_the_receiver_leaks_nothing() {
        model(3, || {
            let (sender, receiver) = queue(4);
            let sending = thread::spawn(move || send(&sender, 0, 2));
            let receiving = thread::spawn(move || drop(receiver));
            sending.join().unwrap();
            receiving.join().unwrap();
        });
    }
}
