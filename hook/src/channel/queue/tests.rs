use std::sync::atomic::AtomicU64;
use std::thread;

use super::*;

const ALL: usize = usize::MAX;

fn taken<T>(receiver: &mut Receiver<T>) -> Vec<T> {
    std::iter::from_fn(|| receiver.take()).collect()
}

fn segments<T>(receiver: &Receiver<T>) -> usize {
    let shared = &receiver.shared;
    let all = shared.table.iter().chain(&shared.spares);
    all.filter(|segment| !segment.load(Ordering::Relaxed).is_null())
        .count()
}

#[test]
fn values_are_received_in_the_order_they_were_sent() {
    let (sender, mut receiver) = queue(1000);
    assert_eq!(receiver.take(), None);
    for round in 0..10 {
        let sent: Vec<_> = (0..700).map(|n| round * 700 + n).collect();
        for &value in &sent {
            assert_eq!(sender.send(value, ALL), Ok(()));
            assert!(!receiver.is_empty());
        }
        assert_eq!(taken(&mut receiver), sent);
        assert!(receiver.is_empty());
    }
}

#[test]
fn a_full_queue_returns_the_value() {
    for capacity in [1, 64, PLACES - 1, PLACES, PLACES + 1, 3 * PLACES] {
        let (sender, mut receiver) = queue(capacity);
        // Begin at each place of a segment.
        for round in 0..PLACES + 3 {
            for nth in 0..capacity {
                assert_eq!(sender.send(nth, ALL), Ok(()), "{capacity} {round}");
            }
            assert_eq!(sender.send(7, ALL), Err(7), "{capacity} {round}");
            assert_eq!(receiver.take(), Some(0));
            assert_eq!(sender.send(capacity, ALL), Ok(()), "{capacity} {round}");
            assert_eq!(taken(&mut receiver), Vec::from_iter(1..=capacity));
        }
    }
}

#[test]
fn a_sender_may_set_a_lower_bound_than_the_capacity() {
    let (sender, mut receiver) = queue(10);
    assert_eq!(sender.send(1, 2), Ok(()));
    assert_eq!(sender.send(2, 2), Ok(()));
    assert_eq!(sender.send(3, 2), Err(3));
    assert_eq!(sender.send(3, 3), Ok(()));
    assert_eq!(taken(&mut receiver), [1, 2, 3]);
}

/// An idle queue has no segments. A queue that is emptied as fast as it is filled has two, however
/// much passes through it. A queue that was full frees all but a few.
#[test]
fn memory_grows_and_shrinks_with_the_waiting_values() {
    let (sender, mut receiver) = queue(65_536);
    assert_eq!(segments(&receiver), 0);
    for n in 0..100_000 {
        assert_eq!(sender.send(n, ALL), Ok(()));
        assert_eq!(receiver.take(), Some(n));
        assert!(segments(&receiver) <= 2);
    }
    while sender.send(1, ALL).is_ok() {}
    assert!(segments(&receiver) >= 65_536 / PLACES);
    assert_eq!(taken(&mut receiver).len(), 65_536);
    assert!(segments(&receiver) <= SPARES + 1);
}

#[test]
fn dropping_the_queue_drops_each_value_once() {
    static ALIVE: AtomicU64 = AtomicU64::new(0);
    #[derive(Debug)]
    struct Counted;
    impl Counted {
        fn new() -> Self {
            ALIVE.fetch_add(1, Ordering::Relaxed);
            Self
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            assert_ne!(ALIVE.fetch_sub(1, Ordering::Relaxed), 0);
        }
    }
    let alive = || ALIVE.load(Ordering::Relaxed);
    let (sender, mut receiver) = queue(1000);
    for _ in 0..1100 {
        let _ = sender.send(Counted::new(), ALL);
    }
    assert_eq!(alive(), 1000);
    for left in (990..1000).rev() {
        drop(receiver.take());
        assert_eq!(alive(), left);
    }
    drop(receiver);
    assert_eq!(alive(), 0);
    assert!(sender.send(Counted::new(), ALL).is_err(), "nobody receives");
    assert_eq!(alive(), 0);
}

/// Meant for ThreadSanitizer too (`scripts/sanitize threads`).
#[test]
fn many_senders_keep_their_own_order() {
    const SENDERS: usize = 4;
    const EACH: usize = 20_000;
    // A queue that is seldom full, and one that is nearly always full.
    for capacity in [10_000, 3] {
        let (sender, mut receiver) = queue(capacity);
        let mut next = [0; SENDERS];
        thread::scope(|scope| {
            for id in 0..SENDERS {
                let sender = &sender;
                scope.spawn(move || {
                    for n in 0..EACH {
                        while sender.send((id, n), ALL).is_err() {
                            thread::yield_now();
                        }
                    }
                });
            }
            while next.iter().sum::<usize>() < SENDERS * EACH {
                match receiver.take() {
                    Some((id, n)) => {
                        assert_eq!(n, next[id]);
                        next[id] += 1;
                    }
                    None => thread::yield_now(),
                }
            }
        });
        assert!(receiver.is_empty());
    }
}
