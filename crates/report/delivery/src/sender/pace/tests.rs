use std::sync::Arc;

use super::*;
use crate::Limits;

const SECOND: Duration = Duration::from_secs(1);

fn pace() -> (Pace, Instant) {
    (Pace::new(RetryPolicy::default()), Instant::now())
}

fn failure(ids: usize, next: Next) -> Failure {
    Failure {
        source: Source::Queue,
        ids,
        next,
        after: None,
    }
}

fn outbox(queue: usize, aside: usize) -> Outbox {
    let mut outbox = Outbox::new(Limits::default());
    for n in 0..aside {
        outbox.evict(Arc::from(format!("aside-{n}")));
        outbox.take_batch(1);
        outbox.set_aside();
    }
    for n in 0..queue {
        outbox.evict(Arc::from(format!("queued-{n}")));
    }
    outbox
}

/// The longest delay.
const RANDOM: u64 = u64::MAX;

#[test]
fn after_a_post_that_is_too_large_the_next_is_halved_at_once_down_to_one_id() {
    let (mut pace, now) = pace();
    let mut ids = 1000;
    for half in [500, 250, 125, 62, 31, 15, 7, 3, 1] {
        let failure = failure(ids, Next::HalfAtOnce);
        assert_eq!(pace.failed(failure, now, RANDOM, false), Back::First);
        assert_eq!(pace.most(), half);
        assert_eq!(pace.next(&outbox(9, 0), now), Ok(Source::Queue));
        ids = half;
    }
    assert_eq!((pace.failures(), pace.failing_since()), (0, None));
    // A single id cannot be halved: from here on this is like any other refusal.
    let alone = failure(1, Next::HalfAtOnce);
    assert_eq!(pace.failed(alone, now, RANDOM, false), Back::Aside);
    assert_eq!((pace.failures(), pace.failing_since()), (1, Some(now)));
    assert!(pace.next(&outbox(9, 1), now).is_err());
}

#[test]
fn where_an_id_may_be_the_cause_the_batch_is_halved_with_pauses() {
    let (mut pace, now) = pace();
    assert_eq!(
        pace.failed(failure(9, Next::Half), now, RANDOM, false),
        Back::First
    );
    assert_eq!((pace.most(), pace.failures()), (4, 1));
    let Err(Some(pause)) = pace.next(&outbox(9, 0), now) else {
        panic!("no pause")
    };
    assert!(
        pause > 40 * SECOND / 1000 && pause <= 50 * SECOND / 1000,
        "{pause:?}"
    );
    assert_eq!(pace.next(&outbox(9, 0), now + pause), Ok(Source::Queue));
    // The batch grows again after a few that were accepted.
    for most in [4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000] {
        for _ in 0..BEFORE_GROWING {
            assert_eq!(pace.most(), most);
            pace.settled(Source::Aside);
            pace.settled(Source::Queue);
        }
    }
}

#[test]
fn where_no_id_can_be_the_cause_the_batch_stays_whole() {
    let (mut pace, now) = pace();
    for ids in [1000, 1] {
        assert_eq!(
            pace.failed(failure(ids, Next::Same), now, RANDOM, false),
            Back::First
        );
    }
    assert_eq!((pace.most(), pace.failures()), (1000, 2));
}

#[test]
fn an_id_that_was_set_aside_delays_no_other() {
    let (mut pace, now) = pace();
    assert_eq!(
        pace.failed(failure(1, Next::Half), now, RANDOM, false),
        Back::Aside
    );
    pace.settled(Source::Queue);
    assert_eq!(pace.next(&outbox(1, 1), now), Ok(Source::Queue));
    // The id is tried after each longest pause.
    let mut now = now;
    for _ in 0..3 {
        assert_eq!(pace.next(&outbox(0, 1), now), Err(Some(5 * SECOND)));
        now += 5 * SECOND;
        assert_eq!(pace.next(&outbox(0, 1), now), Ok(Source::Aside));
        let alone = Failure {
            source: Source::Aside,
            ..failure(1, Next::Half)
        };
        assert_eq!(pace.failed(alone, now, RANDOM, false), Back::Aside);
        assert_eq!(pace.next(&outbox(1, 1), now), Ok(Source::Queue));
        assert_eq!((pace.failures(), pace.failing_since()), (0, None));
    }
    now += 5 * SECOND;
    // When it is accepted, the ids set aside after it are sent without a pause.
    pace.settled(Source::Aside);
    assert_eq!(pace.next(&outbox(0, 1), now), Ok(Source::Aside));
    assert_eq!(pace.next(&outbox(0, 0), now), Err(None));
}

#[test]
fn ids_set_aside_are_tried_in_turn_even_if_others_are_added() {
    let (mut pace, start) = pace();
    pace.failed(failure(1, Next::Half), start, 0, false);
    pace.failed(failure(1, Next::Half), start + SECOND, 0, false);
    assert_eq!(
        pace.next(&outbox(0, 2), start + 5 * SECOND),
        Ok(Source::Aside)
    );
}

#[test]
fn a_retry_after_is_followed_up_to_a_minute() {
    let (mut pace, now) = pace();
    let asked = |source, seconds| Failure {
        source,
        ids: 3,
        next: Next::Same,
        after: Some(seconds * SECOND),
    };
    for (seconds, granted) in [(7, 7), (3600, 60)] {
        pace.failed(asked(Source::Queue, seconds), now, RANDOM, false);
        assert_eq!(pace.next(&outbox(3, 0), now), Err(Some(granted * SECOND)));
        pace.failed(asked(Source::Aside, seconds), now, RANDOM, false);
        assert_eq!(pace.next(&outbox(0, 1), now), Err(Some(granted * SECOND)));
    }
}

#[test]
fn during_a_drain_there_are_no_pauses() {
    let (mut pace, now) = pace();
    pace.failed(failure(1, Next::Half), now, RANDOM, false);
    assert!(pace.next(&outbox(1, 1), now).is_err());
    pace.hurry();
    assert_eq!(pace.next(&outbox(1, 1), now), Ok(Source::Queue));
    assert_eq!(pace.next(&outbox(0, 1), now), Ok(Source::Aside));
    let patient = Failure {
        after: Some(60 * SECOND),
        ..failure(1, Next::Half)
    };
    for source in [Source::Queue, Source::Aside] {
        pace.failed(Failure { source, ..patient }, now, RANDOM, true);
    }
    let Err(Some(pause)) = pace.next(&outbox(1, 1), now) else {
        panic!("no pause at all")
    };
    assert!(pause <= DRAIN_PAUSE);
}
