//! The index cannot be reached, for a while or for good.

mod support;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use contextpilot_delivery::{Config, Limits, Sender};
use contextpilot_testbed::{Behaviour, Index, nowhere};
use support::*;

#[test]
fn everything_arrives_once_and_in_order_after_an_outage() {
    let address = nowhere();
    let (sender, _) = sender_to(&format!("http://{address}/evict"));
    let all = ids(0..5000);
    evict(&sender, &all);
    wait_for(&sender, "failures", |s| s.failed_posts >= 3);
    // An id in flight cannot be held back, even if its POST mostly fails.
    let withdrawn = all.iter().step_by(5);
    let late: Vec<_> = withdrawn.filter(|id| !sender.withdraw(id)).collect();
    let index = Index::start_at(address).expect("the port again");
    let stats = wait_for(&sender, "the end", |s| s.waiting + s.in_flight == 0);
    let mut reported = wait_for_reported(&index, usize::try_from(stats.sent).expect("few"));
    reported.retain(|id| !late.contains(&id));
    let expected: Vec<_> = (0..5000)
        .filter(|n| n % 5 != 0)
        .map(|n| all[n].clone())
        .collect();
    assert_eq!(reported, expected);
}

/// What withdraws an id may still be on its way when the index answers again.
#[test]
fn before_ids_are_sent_that_have_waited_what_withdraws_them_may_catch_up() {
    static SENDER: OnceLock<Sender> = OnceLock::new();
    let address = nowhere();
    let (sender, _) = sender_with(&format!("http://{address}/evict"), |config| {
        config.catch_up = || {
            if let Some(sender) = SENDER.get() {
                sender.withdraw(&ids(1..2)[0]);
            }
        };
    });
    let all = ids(0..3);
    evict(&sender, &all);
    wait_for(&sender, "failures", |s| s.failed_posts >= 2);
    let sender = SENDER.get_or_init(|| sender);
    // A POST that fails after this brings back what was not withdrawn before it.
    let failed = sender.stats().failed_posts;
    wait_for(sender, "another failure", |s| s.failed_posts > failed + 1);
    let index = Index::start_at(address).expect("the port again");
    wait_for(sender, "the end", |s| s.waiting + s.in_flight == 0);
    assert_eq!(
        wait_for_reported(&index, 2),
        [all[0].clone(), all[2].clone()]
    );
}

/// What an ingress says while the index behind it is replaced. Each answer is named once.
#[test]
fn while_an_ingress_answers_for_the_index_nothing_is_lost() {
    let index = start_index();
    let html = || vec!["content-type: text/html".to_owned()];
    let page = |status| Behaviour::Answer(status, html(), "<h1>Not here</h1>".to_owned());
    let later = vec!["retry-after: 0".to_owned()];
    index.behave(page(503));
    let (sender, log) = sender_to(&index.evict_url());
    let all = ids(0..3000);
    evict(&sender, &all[..1]);
    wait_for_lines(&sender, &log, 1);
    index.script([page(404), page(404), page(410), page(502)]);
    index.script([Behaviour::Answer(429, later, String::new()), page(200)]);
    evict(&sender, &all[1..]);
    wait_for_lines(&sender, &log, 6);
    index.behave(Behaviour::Accept);
    assert_eq!(wait_for_reported(&index, 3000), all);
    let stats = wait_for(&sender, "confirmation", |s| s.sent == 3000);
    let failed = index.posts().iter().filter(|post| !post.accepted).count();
    assert_eq!((stats.failed_posts, stats.rejected), (failed as u64, 0));
    assert_eq!((stats.failures_in_a_row, stats.overflowed), (0, 0));
    let lines = log.lines();
    assert_eq!(lines.len(), 7, "{lines:#?}");
    for (line, status) in lines.iter().zip([503, 404, 410, 502, 429, 200]) {
        assert!(line.contains(&format!("answered {status}")), "{lines:#?}");
    }
    assert!(lines[6].ends_with("it answers again"), "{}", lines[6]);
}

#[test]
fn when_the_index_restarts_nothing_is_lost_or_repeated() {
    let address = nowhere();
    let (sender, _) = sender_to(&format!("http://{address}/evict"));
    let mut reported = Vec::new();
    for round in 0..10 {
        // Half of them while the index is down, half while it is up.
        let batch = ids(round * 100..(round + 1) * 100);
        evict(&sender, &batch[..50]);
        let index = Index::start_at(address).expect("the port again");
        evict(&sender, &batch[50..]);
        wait_for(&sender, "confirmation", |s| {
            s.sent == (round as u64 + 1) * 100
        });
        reported.extend(wait_for_reported(&index, 100));
    }
    assert_eq!(reported, ids(0..1000));
}

#[test]
fn a_long_outage_is_reported_once_and_so_is_its_end() {
    let address = nowhere();
    let (sender, log) = sender_to(&format!("http://{address}/evict"));
    evict(&sender, &ids(0..3));
    wait_for_lines(&sender, &log, 1);
    let failed = sender.stats().failed_posts;
    wait_for(&sender, "more failures", |s| s.failed_posts > failed + 3);
    let _index = Index::start_at(address).expect("the port again");
    wait_for(&sender, "confirmation", |s| s.sent == 3);
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(
        lines[0].contains(&address.to_string()) && lines[0].contains("refused"),
        "{}",
        lines[0]
    );
    assert!(lines[0].contains("3 evictions wait"), "{}", lines[0]);
    assert!(lines[1].contains("answers again"), "{}", lines[1]);
}

#[test]
fn over_the_limits_ids_are_dropped_and_a_message_says_how_many() {
    let address = nowhere();
    let (sender, log) = sender_with(&format!("http://{address}/evict"), |c| {
        c.limits = Limits {
            ids: 100,
            ..Limits::default()
        };
    });
    let all = ids(0..350);
    for id in &all {
        sender.evict(id.as_str().into());
    }
    let stats = wait_for(&sender, "a failure", |s| {
        s.failed_posts > 0 && s.in_flight == 0
    });
    assert_eq!((stats.waiting, stats.overflowed), (100, 250));
    let index = Index::start_at(address).expect("the port again");
    wait_for(&sender, "confirmation", |s| s.posts == 1);
    let lines: Vec<_> = log
        .lines()
        .into_iter()
        .filter(|l| l.contains("250"))
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(wait_for_reported(&index, 100), all[250..]);
}

#[test]
fn a_drain_delivers_everything_if_the_index_answers() {
    let index = start_index();
    index.script([Behaviour::empty(500), Behaviour::empty(500)]);
    let (sender, _) = sender_with(&index.evict_url(), |c| {
        // Without a drain it would sit out long pauses.
        c.retry.base = PATIENCE;
        c.retry.cap = PATIENCE;
    });
    evict(&sender, &ids(0..3000));
    wait_for(&sender, "a failure", |s| s.failed_posts > 0);
    let start = Instant::now();
    let drained = sender.drain(PATIENCE);
    let took = start.elapsed();
    assert!(took < PATIENCE / 4, "it sat out a pause: {took:?}");
    assert_eq!(drained.left, 0);
    assert!(drained.reported <= 3000);
    assert_eq!(wait_for_reported(&index, 3000), ids(0..3000));
    assert_eq!(sender.drain(PATIENCE).reported, 0, "nothing left, no wait");
}

/// The deadline, and not the timeout of a POST, which is [`PATIENCE`] here. Far from both, so
/// that a loaded machine makes no difference.
fn assert_in_time(start: Instant, deadline: Duration) {
    let took = start.elapsed();
    assert!(took >= deadline && took < PATIENCE / 2, "{took:?}");
}

#[test]
fn a_drain_ends_in_time_whatever_the_index_does() {
    let deadline = Duration::from_millis(300);
    // Down.
    let patient = |c: &mut Config| c.timeout = PATIENCE;
    let (sender, _) = sender_with(&format!("http://{}/evict", nowhere()), patient);
    evict(&sender, &ids(0..10));
    let start = Instant::now();
    let drained = sender.drain(deadline);
    assert_in_time(start, deadline);
    assert_eq!((drained.reported, drained.left), (0, 10));
    // Hanging, since long before.
    let index = start_index();
    index.script([Behaviour::Hang]);
    let (sender, _) = sender_with(&index.evict_url(), patient);
    evict(&sender, &ids(0..10));
    wait_for_posts(&index, 1);
    let start = Instant::now();
    let drained = sender.drain(deadline);
    assert_in_time(start, deadline);
    assert_eq!((drained.reported, drained.left), (0, 10));
    // No time at all.
    assert_eq!(sender.drain(Duration::ZERO).left, 10);
    // Dropping the sender does not wait either.
    let start = Instant::now();
    drop(sender);
    assert!(start.elapsed() < PATIENCE / 2);
}

#[test]
fn a_drain_leaves_time_for_a_second_attempt_after_a_hang() {
    let index = start_index();
    index.script([Behaviour::Hang]);
    let (sender, _) = sender_with(&index.evict_url(), |c| {
        c.timeout = Duration::from_millis(300)
    });
    evict(&sender, &ids(0..10));
    wait_for_posts(&index, 1);
    let drained = sender.drain(PATIENCE);
    assert_eq!((drained.reported, drained.left), (10, 0));
    assert_eq!(wait_for_reported(&index, 10), ids(0..10));
}

#[test]
fn a_sender_can_be_shared_between_threads() {
    fn shareable<T: Send + Sync>() {}
    shareable::<Sender>();
    let index = start_index();
    let (sender, _) = sender_to(&index.evict_url());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let sender = &sender;
            scope.spawn(move || {
                for id in ids(thread * 1000..(thread + 1) * 1000) {
                    sender.evict(id.into());
                }
            });
        }
    });
    let mut reported = wait_for_reported(&index, 4000);
    reported.sort();
    assert_eq!(reported, ids(0..4000));
}
