//! Replays for subscribers that missed some batches.

use contextpilot_kv_events::{Feed, KvEvent, MOST_EMPTY, Medium, block_hash};
use support::{Subscriber, read};

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

fn stored(parent: Option<u64>, tokens: &[u32], medium: Medium) -> (u64, KvEvent) {
    stored_for(None, parent, tokens, medium)
}

fn stored_for(
    adapter: Option<&str>,
    parent: Option<u64>,
    tokens: &[u32],
    medium: Medium,
) -> (u64, KvEvent) {
    let hash = block_hash(parent, tokens, adapter);
    let event = KvEvent::Stored {
        hashes: vec![hash],
        parent,
        tokens: tokens.to_vec(),
        medium,
        adapter: adapter.map(Into::into),
    };
    (hash, event)
}

/// Two chains that share a block, on both media, and a block that came and went.
fn scene() -> (Feed, Subscriber) {
    let mut feed = Feed::new(2, 5);
    let mut live = Subscriber::new(2);
    let (a, first) = stored(None, &[1, 2], Medium::Gpu);
    let (b, second) = stored(Some(a), &[3, 4], Medium::Gpu);
    let (c, third) = stored(Some(a), &[5, 6], Medium::Gpu);
    let (_, host) = stored(None, &[1, 2], Medium::Cpu);
    let gone = KvEvent::Removed {
        hashes: vec![b],
        medium: Medium::Gpu,
    };
    let (_, below) = stored(Some(c), &[7, 8], Medium::Gpu);
    // The same tokens, for requests that name an adapter.
    let (d, adapted) = stored_for(Some("sql"), None, &[1, 2], Medium::Gpu);
    let (_, more) = stored_for(Some("sql"), Some(d), &[3, 4], Medium::Gpu);
    for events in [
        &[KvEvent::Cleared, first][..],
        &[second],
        &[],
        &[third, host],
        &[gone, below],
        &[adapted, more],
    ] {
        let batch = feed.batch(events, 1.0);
        live.take(&read(&batch.payload));
    }
    (feed, live)
}

#[test]
fn a_late_subscriber_gets_all_current_blocks() {
    let (feed, live) = scene();
    assert_eq!(feed.next_sequence(), 11);
    assert_eq!([5, 1, 0], Medium::ALL.map(|medium| feed.blocks(medium)));
    for start in [0, 5, 7, 9] {
        let batches: Vec<_> = feed.replay(start, 2.0).collect();
        let numbers: Vec<u64> = batches.iter().map(|batch| batch.sequence).collect();
        assert_eq!(numbers, (start..11).collect::<Vec<_>>());
        let mut late = Subscriber::new(2);
        let events = read(&batches[0].payload);
        assert_eq!(events[0], KvEvent::Cleared);
        late.take(&events);
        assert_eq!(late, live);
        assert!(
            batches[1..]
                .iter()
                .all(|batch| read(&batch.payload).is_empty())
        );
    }
    assert_eq!(feed.replay(11, 2.0).count(), 0);
    assert_eq!(feed.replay(u64::MAX, 2.0).count(), 0);
}

#[test]
fn a_replay_has_a_bounded_number_of_batches() {
    let mut feed = Feed::new(16, 1 << 40);
    assert_eq!(feed.replay(0, 0.0).count() as u64, MOST_EMPTY);
    feed.batch(&[], 0.0);
    let batches: Vec<_> = feed.replay(3, 0.0).collect();
    assert_eq!(batches.len() as u64, MOST_EMPTY);
    assert_eq!(batches.last().expect("some").sequence, 1 << 40);
    assert_eq!(read(&batches[0].payload), [KvEvent::Cleared]);
}

#[test]
fn a_block_that_is_stored_twice_is_in_the_snapshot_once() {
    let (mut feed, mut live) = scene();
    feed.batch(&[KvEvent::Cleared], 0.0);
    assert_eq!([0, 0, 0], Medium::ALL.map(|medium| feed.blocks(medium)));
    let (hash, again) = stored(None, &[1, 2], Medium::Gpu);
    feed.batch(std::slice::from_ref(&again), 0.0);
    feed.batch(&[again], 0.0);
    assert_eq!(feed.blocks(Medium::Gpu), 1);
    let batch = feed.replay(13, 0.0).next().expect("one");
    live.take(&read(&batch.payload));
    assert_eq!(live.blocks(Medium::Gpu, None), [hash].into());
    assert!(live.blocks(Medium::Cpu, None).is_empty());
}
