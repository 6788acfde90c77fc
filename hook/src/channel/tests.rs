use contextpilot_residency::{Arrival, ContextId};

use super::*;

const CONTEXT: ContextId = ContextId(1);

fn submitted(sequences: &[i32]) -> Event {
    let entry = |&sequence| Entry {
        sequence,
        position: 0,
        token: 1,
        output: true,
    };
    Event::Submitted {
        context: CONTEXT,
        entries: sequences.iter().map(entry).collect(),
    }
}

fn removed(from: i32, to: i32) -> Event {
    Event::Removed {
        context: CONTEXT,
        sequence: 0,
        from,
        to,
    }
}

fn posted(id: &RequestId) -> Event {
    Event::Posted {
        arrival: Arrival(1),
        task: 1,
        id: Some(id.clone()),
    }
}

fn event_in(item: Item) -> Event {
    match item.what {
        What::Event(event) => event,
        What::Note(note) => panic!("nobody observes: {note:?}"),
        What::Waiting(_) => panic!("nobody waits"),
    }
}

/// How many events wait for the worker.
fn waiting(channel: &Channel, inbox: &mut Inbox) -> usize {
    std::iter::from_fn(|| channel.next(inbox)).count()
}

const EVALUATED: Event = Event::Evaluated {
    context: CONTEXT,
    failed: Vec::new(),
    no_room: false,
};

#[test]
fn a_generated_token_wakes_nobody() {
    let channel = Channel::new();
    assert_eq!(channel.weigh(&submitted(&[0, 1, 2])), Weight::Token);
    assert_eq!(channel.weigh(&EVALUATED), Weight::Token);
}

#[test]
fn a_generated_token_wakes_nobody_with_sliding_windows_either() {
    let channel = Channel::new();
    let reaches = Event::Reaches {
        context: CONTEXT,
        sequence: 0,
        first: 3,
    };
    assert_eq!(channel.weigh(&submitted(&[0])), Weight::Token);
    assert_eq!(channel.weigh(&reaches), Weight::Token);
    assert_eq!(channel.weigh(&EVALUATED), Weight::Token);
    assert_eq!(channel.weigh(&submitted(&[0])), Weight::Token);
}

#[test]
fn a_prompts_submission_is_urgent_and_its_evaluation_a_result() {
    let channel = Channel::new();
    assert_eq!(channel.weigh(&submitted(&[0, 1, 1])), Weight::Urgent);
    assert_eq!(channel.weigh(&EVALUATED), Weight::Result);
    let failed = Event::Evaluated {
        context: CONTEXT,
        failed: vec![(0, 0)],
        no_room: false,
    };
    assert_eq!(channel.weigh(&failed), Weight::Urgent);
    assert_eq!(channel.weigh(&submitted(&[0, 1])), Weight::Token);
    assert_eq!(channel.weigh(&EVALUATED), Weight::Token);
}

#[test]
fn a_single_token_after_a_removed_tail_is_urgent() {
    let channel = Channel::new();
    assert_eq!(channel.weigh(&removed(7, -1)), Weight::News);
    assert_eq!(channel.weigh(&submitted(&[0])), Weight::Urgent);
    assert_eq!(channel.weigh(&submitted(&[0])), Weight::Token);
}

#[test]
fn a_removal_does_not_wake_a_worker_that_naps() {
    let channel = Channel::new();
    assert_eq!(channel.weigh(&removed(-1, -1)), Weight::News);
    assert_eq!(channel.weigh(&removed(3, 5)), Weight::News);
    assert_eq!(channel.weigh(&submitted(&[0])), Weight::Urgent);
}

/// What a channel has after an event, and what it holds then.
fn left_by(channel: &Channel, inbox: &mut Inbox) -> (Vec<Event>, u8, bool, bool, usize) {
    let events = std::iter::from_fn(|| channel.next(inbox)).map(event_in);
    let events = events.collect();
    let attention = channel.attention.0.load(Ordering::SeqCst);
    let is_prompt = channel.prompt_evaluation.load(Ordering::Relaxed);
    let entries = channel.entries.load(Ordering::Relaxed);
    (events, attention, is_prompt, channel.close_gap(), entries)
}

/// They have ways of their own into the channel, which must not differ from that of other events.
#[test]
fn an_evaluation_is_sent_like_any_other_event() {
    let batches: [&[i32]; 4] = [&[0], &[0, 1], &[0, 0], &[]];
    for room in [0, 1, 2, 4] {
        for (batch, is_news) in batches.iter().flat_map(|one| [(*one, false), (*one, true)]) {
            for resting in [Rest::default(), DOZES, NAPS] {
                let [by_itself, as_any] = [true, false].map(|by_itself| {
                    let channel = Channel::with_room(room);
                    let mut inbox = channel.take_inbox().expect("the first to ask gets it");
                    let attention = attention(resting);
                    channel.attention.0.store(attention, Ordering::SeqCst);
                    channel.news.store(is_news, Ordering::Relaxed);
                    let mut left = Vec::new();
                    for empties in [true, false] {
                        let Event::Submitted { context, entries } = submitted(batch) else {
                            panic!("it is one");
                        };
                        if by_itself {
                            channel.submitted(context, entries);
                        } else {
                            channel.push(Event::Submitted { context, entries });
                        }
                        if empties {
                            left.push(left_by(&channel, &mut inbox));
                        }
                        if by_itself {
                            channel.evaluated(context);
                        } else {
                            channel.push(EVALUATED);
                        }
                        left.push(left_by(&channel, &mut inbox));
                    }
                    left
                });
                assert_eq!(by_itself, as_any, "{batch:?}, room for {room}");
                let lost = by_itself.iter().any(|(_, _, _, has_gap, _)| *has_gap);
                assert_eq!(lost, room < 2, "room for {room}");
            }
        }
    }
}

#[test]
fn a_batch_for_whose_entries_there_is_no_room_opens_a_gap() {
    let channel = Channel::new();
    let mut inbox = channel.take_inbox().expect("the first to ask gets it");
    channel.entries.store(ENTRIES + 1, Ordering::Relaxed);
    let entry = Entry {
        sequence: 0,
        position: 0,
        token: 1,
        output: true,
    };
    channel.submitted(CONTEXT, entry.into());
    assert_eq!(channel.entries.load(Ordering::Relaxed), ENTRIES + 1);
    channel.evaluated(CONTEXT);
    assert_eq!(waiting(&channel, &mut inbox), 0, "the gap is open");
    assert!(channel.close_gap());
}

const DOZES: Rest = Rest {
    longest: Some(DOZE),
    generating: true,
    watched: false,
};
const NAPS: Rest = Rest {
    longest: Some(NAP),
    generating: false,
    watched: false,
};

/// The weights that wake a worker in this state of rest.
fn woken(rest: Rest) -> Vec<Weight> {
    let weights = [
        Weight::Announcement,
        Weight::Token,
        Weight::News,
        Weight::Result,
        Weight::Urgent,
    ];
    let wakes = |weight: &Weight| {
        let channel = Channel::new();
        channel.attention.0.store(attention(rest), Ordering::SeqCst);
        channel.wake(*weight);
        channel.attention.0.load(Ordering::SeqCst) == AWAKE
    };
    weights.into_iter().filter(wakes).collect()
}

#[test]
fn each_state_of_rest_is_ended_by_the_weights_it_does_not_expect() {
    use Weight::{News, Result, Token, Urgent};
    let asleep = Rest::default();
    let napping = Rest {
        longest: Some(NAP),
        ..asleep
    };
    let dozing = Rest {
        longest: Some(DOZE),
        generating: true,
        ..asleep
    };
    assert_eq!(woken(asleep), [Token, News, Result, Urgent]);
    assert_eq!(woken(dozing), [News, Result, Urgent]);
    assert_eq!(woken(napping), [Urgent]);
    let watched = Rest {
        watched: true,
        ..napping
    };
    assert_eq!(woken(watched), [Result, Urgent]);
}

#[test]
fn a_worker_that_is_woken_again_and_again_looks_by_itself() {
    let channel = Channel::new();
    let mut inbox = channel.take_inbox().expect("the first to ask gets it");
    let start = Instant::now();
    let at = |micros| start + Duration::from_micros(micros);
    inbox.note_woken(start);
    assert!(!inbox.looks_by_itself(at(1)), "it was woken once");
    inbox.note_woken(at(1500));
    assert!(!inbox.looks_by_itself(at(1501)));
    inbox.note_woken(at(2400));
    assert!(inbox.looks_by_itself(at(2401)));
    assert!(!inbox.looks_by_itself(at(3400)), "there was nothing to do");

    let resting = attention(Rest::default()) | SOON;
    channel.attention.0.store(resting, Ordering::SeqCst);
    thread::scope(|scope| {
        // It would look for longer than a test may take.
        let worker = scope.spawn(|| {
            channel.attend();
            channel.look(Instant::now(), Duration::from_secs(3600));
        });
        while channel.worker.get().is_none() {
            thread::yield_now();
        }
        channel.push(submitted(&[0, 0]));
        worker.join().expect("it has seen that it was asked for");
    });
    assert_eq!(channel.attention.0.load(Ordering::SeqCst), AWAKE);
}

#[test]
fn who_waits_for_the_worker_finds_all_applied_that_was_sent_before() {
    let channel = Channel::new();
    let mut inbox = channel.take_inbox().expect("the first to ask gets it");
    let (applied, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            channel.attend();
            while !is_over.load(Ordering::SeqCst) {
                while channel.next(&mut inbox).is_some() {
                    applied.fetch_add(1, Ordering::SeqCst);
                }
                channel.rest(&mut inbox, Rest::default());
            }
        });
        let id = RequestId::from("req-a");
        for round in 1..=100 {
            // It does not wake the worker by itself.
            assert!(channel.introduce(posted(&id), Arrival(1), &id, true));
            let start = Instant::now();
            channel.catch_up();
            let is_late = start.elapsed() >= CATCH_UP;
            assert!(applied.load(Ordering::SeqCst) == round || is_late);
        }
        is_over.store(true, Ordering::SeqCst);
        channel.nudge();
    });
}

#[test]
fn a_request_wakes_the_worker_only_if_its_id_is_kept_nowhere_or_many_wait() {
    let wakes = |kept, earlier| {
        let channel = Channel::new();
        let resting = attention(Rest::default());
        channel.attention.0.store(resting, Ordering::SeqCst);
        channel.announcements.store(earlier, Ordering::Relaxed);
        let id = RequestId::from("req-a");
        assert!(channel.introduce(posted(&id), Arrival(1), &id, kept));
        channel.attention.0.load(Ordering::SeqCst) == AWAKE
    };
    assert!(!wakes(true, 0));
    assert!(!wakes(true, ANNOUNCEMENTS - 1));
    assert!(wakes(true, ANNOUNCEMENTS));
    assert!(wakes(false, 0));
}

#[test]
fn after_an_overflow_everything_is_dropped_until_the_worker_closes_the_gap() {
    let channel = Channel::new();
    let mut inbox = channel.take_inbox().expect("the first to ask gets it");
    // No worker runs, so the smaller bound holds.
    for _ in 0..EVENTS_BEFORE_WORKER {
        assert!(channel.enqueue(EVALUATED));
    }
    channel.push(EVALUATED);
    assert_eq!(waiting(&channel, &mut inbox), EVENTS_BEFORE_WORKER);
    let (a, b) = (RequestId::from("req-a"), RequestId::from("req-b"));
    assert!(!channel.introduce(posted(&a), Arrival(7), &a, true));
    channel.push(posted(&b));
    assert_eq!(waiting(&channel, &mut inbox), 0, "the gap is still open");
    assert!(channel.close_gap());
    assert!(!channel.close_gap());
    assert_eq!(inbox.stranded(), Some((Arrival(7), a.clone())));
    assert_eq!(inbox.stranded(), None, "the other is known");
    assert!(channel.introduce(posted(&a), Arrival(8), &a, true));
    assert_eq!(waiting(&channel, &mut inbox), 1);
    channel.push(EVALUATED);
    assert_eq!(waiting(&channel, &mut inbox), 1);
    assert_eq!(inbox.stranded(), None);
}

#[test]
fn entries_beyond_the_bound_open_a_gap() {
    let channel = Channel::new();
    let mut inbox = channel.take_inbox().expect("the first to ask gets it");
    channel.entries.store(ENTRIES + 1, Ordering::Relaxed);
    assert!(!channel.enqueue(submitted(&[0])));
    channel.entries.store(0, Ordering::Relaxed);
    assert!(channel.enqueue(submitted(&[0, 1])));
    assert_eq!(channel.entries.load(Ordering::Relaxed), 2);
    assert!(channel.next(&mut inbox).is_some());
    assert_eq!(channel.entries.load(Ordering::Relaxed), 0);
}

/// What a worker saw: an event of that thread with that number, or the end of a gap.
enum Seen {
    Event(i32, u64),
    Gap,
}

/// Meant for ThreadSanitizer too (`scripts/sanitize threads`).
#[test]
fn when_threads_overflow_the_channel_no_id_and_no_order_is_lost() {
    const THREADS: i32 = 4;
    // Together fewer than may be stranded, so that no id is lost.
    const EACH: u64 = 4_000;
    const { assert!(THREADS as usize * EACH as usize <= STRANDED) };
    let channel = Channel::with_room(64);
    let done = AtomicUsize::new(0);
    let mut seen = Vec::new();
    let mut stranded = Vec::new();
    thread::scope(|scope| {
        for task in 0..THREADS {
            let (channel, done) = (&channel, &done);
            scope.spawn(move || {
                for n in 0..EACH {
                    let id = RequestId::from(format!("{task} {n}"));
                    let event = Event::Posted {
                        arrival: Arrival(n),
                        task,
                        id: Some(id.clone()),
                    };
                    channel.introduce(event, Arrival(n), &id, false);
                }
                done.fetch_add(1, Ordering::SeqCst);
                channel.nudge();
            });
        }
        let mut inbox = channel.take_inbox().expect("the first to ask gets it");
        channel.attend();
        loop {
            // Read this first: what was sent before the threads were done is found below.
            let over = done.load(Ordering::SeqCst) == THREADS as usize;
            while let Some(item) = channel.next(&mut inbox) {
                let event = event_in(item);
                if let Event::Posted { arrival, task, .. } = event {
                    seen.push(Seen::Event(task, arrival.0));
                }
            }
            if channel.close_gap() {
                stranded.extend(std::iter::from_fn(|| inbox.stranded()));
                seen.push(Seen::Gap);
                continue;
            }
            if over {
                break;
            }
            // If no event wakes this thread, the time limit ends the test.
            channel.rest(&mut inbox, Rest::default());
        }
    });

    let gaps = seen.iter().filter(|seen| matches!(seen, Seen::Gap)).count();
    let received = seen.len() - gaps;
    let ids: std::collections::HashSet<_> = stranded.iter().collect();
    assert_eq!(ids.len(), stranded.len(), "an id is stranded once");
    assert_eq!(received + stranded.len(), THREADS as usize * EACH as usize);
    assert!(gaps > 0, "nothing was lost, so nothing was tested");

    // If events of a thread are missing, there is a gap before its next event.
    let mut next = [0; THREADS as usize];
    let mut gap_since = [false; THREADS as usize];
    for seen in seen {
        match seen {
            Seen::Gap => gap_since = [true; THREADS as usize],
            Seen::Event(task, n) => {
                let task = task as usize;
                assert!(n == next[task] || (n > next[task] && gap_since[task]));
                next[task] = n + 1;
                gap_since[task] = false;
            }
        }
    }
}
