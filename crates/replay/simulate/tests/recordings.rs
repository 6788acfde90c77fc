//! Recordings of a real llama-server, and what it reused: more clients than slots, and no pauses.
//!
//! `recordings/` has requests of agents' sessions from callanjfox/kv-cache-tester (Apache-2.0, recorded at WEKA), a
//! block of 64 tokens played as one (`scripts/lib/play_sessions.py`), to llama-server 0.7.0 with a tiny model on a busy
//! machine. It has what all recordings have: lengths, times and which prompts begin alike, and no text. The sessions of
//! `small-store`, `without-room` and `with-room` are made up, and so is what clients sent in `slow-store`, `further-answers`,
//! `shifted` and `checkpoints`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::Range;

use contextpilot_simulate::{Change, Kind, Point, Replay, Setting, Spread, advise, simulate};
use contextpilot_traffic::{Traffic, read};

/// How far the share of reused tokens may be off.
const TOLERANCE: f64 = 0.02;

/// So many requests are in the recording, and this share of their tokens was reused or loaded, which is in the range that the
/// simulator finds, and what it finds in the recorded order.
fn agree(bytes: &[u8], requests: usize, share: Range<f64>) -> (Traffic, Point) {
    let traffic = read(bytes);
    assert!(traffic.damage.is_none());
    let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
    let records = || traffic.requests.iter().map(|request| &request.record);
    let computed: u64 = records().map(|record| u64::from(record.computed())).sum();
    let prompts: u64 = records().map(|record| u64::from(record.prompt)).sum();
    let (engine, simulated) = (1.0 - computed as f64 / prompts as f64, point.spared_share());
    assert_eq!(traffic.requests.len(), requests);
    assert!(share.start < engine && engine < share.end, "{engine}");
    let replay = Replay::new(&traffic);
    let spread = replay.spread(&point).unwrap();
    let range = spread.lowest - TOLERANCE..spread.highest + TOLERANCE;
    assert!(range.contains(&engine), "{engine} {spread:?}");
    // In the recorded order, nothing depends on times.
    let followed = replay.as_recorded(&Setting::recorded(&traffic).unwrap());
    let share = followed.spared_share();
    let outcomes = followed.outcomes.iter().zip(records());
    let exact = outcomes.filter(|(outcome, record)| {
        outcome
            .is_some_and(|outcome| outcome.reused + outcome.loaded == record.reused + record.loaded)
    });
    let exact = exact.count();
    println!(
        "{engine:.4} simulated {simulated:.4} followed {share:.4}, {exact} of {requests} exact"
    );
    assert!((engine - share).abs() < TOLERANCE / 4.0, "{engine} {share}");
    // Which prompts a batch began with, which decides over a store, is not recorded.
    let least = match traffic.setup.as_ref().and_then(|setup| setup.store) {
        Some(_) => requests * 9 / 10,
        None => requests,
    };
    assert!(exact >= least, "{exact} of {requests}");
    (traffic, point)
}

/// Two clients, two slots, a host prompt cache of 2 MiB. A simulation in which requests come at their recorded times found
/// 50 %: once one was late, they passed each other.
#[test]
fn two_clients_on_two_slots() {
    let (traffic, point) = agree(include_bytes!("recordings/two-clients"), 1338, 0.89..0.90);
    // There is no third client to wait for.
    let waited = traffic.requests.iter().map(|request| &request.record);
    let waited: u64 = waited.map(|record| record.launched - record.arrived).sum();
    assert!(
        point.waited_seconds < 3.0 * waited as f64 / 1e6,
        "{waited} {}",
        point.waited_seconds
    );
}

/// Six clients, four slots, a host prompt cache of 8 MiB: 37 % in such a simulation.
#[test]
fn six_clients_on_four_slots() {
    let (traffic, _) = agree(include_bytes!("recordings/six-clients"), 2183, 0.81..0.82);
    // The same was played to six slots without a host prompt cache.
    let setting = Setting::recorded(&traffic).unwrap();
    let setting = setting.with_parallel(6).with_cache_ram(0).unwrap();
    let other = simulate(&traffic, &setting).reused_share();
    assert!((other - 0.826).abs() < TOLERANCE, "{other}");
}

/// Six clients, two slots, no host prompt cache, and a store of 4 MB, which is a quarter of what the sessions have. Of
/// requests that were taken on together the first was found what the second one's slot drove out: 61.7 %.
#[test]
fn six_clients_on_two_slots_with_a_small_store() {
    let (traffic, _) = agree(include_bytes!("recordings/small-store"), 240, 0.57..0.58);
    // Fourteen such servers had 55.1 to 63.3 %.
    let recorded = Setting::recorded(&traffic).unwrap();
    let replay = Replay::new(&traffic);
    let simulated = replay.simulate(&recorded);
    let spread = replay.spread(&simulated).unwrap();
    let Spread { lowest, highest } = spread;
    let seen = 0.551 - 2.0 * TOLERANCE..0.633 + TOLERANCE;
    assert!(lowest < 0.57 && 0.58 < highest, "{spread:?}");
    assert!(
        seen.contains(&lowest) && seen.contains(&highest),
        "{spread:?}"
    );
    assert_eq!(replay.spread(&simulated), Some(spread), "equal input");
}

/// Six clients, four slots, and nothing that keeps what a slot loses. Six plays of the same sessions reused 5 to 22 %: a course
/// that is simulated is one of many, so what `advise` says of the recorded flags is replayed in the recorded order.
#[test]
fn six_clients_on_four_slots_without_room() {
    let traffic = read(include_bytes!("recordings/without-room"));
    assert!(traffic.damage.is_none());
    let records = || traffic.requests.iter().map(|request| &request.record);
    let sum = |of: fn(&contextpilot_traffic::RequestRecord) -> u32| -> u64 {
        records().map(|record| u64::from(of(record))).sum()
    };
    let (reused, prompts) = (sum(|record| record.reused), sum(|record| record.prompt));
    let engine = reused as f64 / prompts as f64;
    assert!(0.112 < engine && engine < 0.114, "{engine}");
    let recorded = Setting::recorded(&traffic).unwrap();
    let made_up = simulate(&traffic, &recorded);
    let made_up_share = made_up.reused_share();
    assert!(made_up_share > engine + 2.0 * TOLERANCE, "{made_up_share}");
    let advice = advise(&traffic, &recorded);
    assert_eq!(advice.replayed.reused_tokens, reused);
    assert_eq!(advice.recorded.reused_tokens, reused);
    // Two more slots for each, or a host cache, is more than any course by chance.
    let least = advice.changes.iter().chain(&advice.alone);
    let least = least
        .map(|change| change.point.spared_share())
        .fold(f64::INFINITY, f64::min);
    assert!(least > made_up_share + TOLERANCE, "{least} {made_up_share}");
    // It is in the range that is said of other flags, or near it.
    let Spread { lowest, highest } = Replay::new(&traffic).spread(&made_up).unwrap();
    let range = lowest - TOLERANCE..highest + TOLERANCE;
    assert!(range.contains(&engine), "{lowest} {highest}");
}

/// Six clients, four slots, and a store with room for all. Other servers, without that room, were sent the same sessions by as
/// many clients: ten reused 5.4 to 25.9 % on four slots without a store, and ten 56.5 to 63.3 % on two with 4 MB. Clients that were
/// tied to each other as they were in this recording had it 18.9 to 32.4 % and 61.9 to 67.7 %.
#[test]
fn with_less_room_the_share_of_other_servers_is_in_the_range() {
    let traffic = read(include_bytes!("recordings/with-room"));
    let recorded = Setting::recorded(&traffic).unwrap();
    let replay = Replay::new(&traffic);
    let range = |slots: u32, store_limit: u64| {
        let setting = Setting {
            store_limit,
            ..recorded.clone().with_slots(slots, false)
        };
        replay.spread(&replay.simulate(&setting)).unwrap()
    };
    for (slots, store, seen) in [
        (4, 0, [0.181, 0.209, 0.135]),
        (2, 4_000_000, [0.594, 0.590, 0.608]),
    ] {
        let Spread { lowest, highest } = range(slots, store);
        println!("{slots} {lowest} {highest}");
        for share in seen {
            assert!(
                lowest - TOLERANCE < share && share < highest + TOLERANCE,
                "{slots} slots: {share}, simulated {lowest} to {highest}"
            );
        }
        let mean = seen.iter().sum::<f64>() / seen.len() as f64;
        let middle = (lowest + highest) / 2.0;
        assert!((middle - mean).abs() < 2.0 * TOLERANCE, "{middle} {mean}");
    }
}

/// Changes and what each saves: all of them save time.
fn all_save_time(traffic: &Traffic) -> Vec<Change> {
    let advice = advise(traffic, &Setting::recorded(traffic).unwrap());
    let takes = |point: &Point| point.prompt_seconds + point.store_seconds;
    let now = takes(&advice.recorded);
    assert!(now > 0.0);
    let seconds: Vec<f64> = advice
        .alone
        .iter()
        .map(|change| takes(&change.point))
        .collect();
    assert!(
        seconds.is_sorted(),
        "what saves most comes first: {seconds:?}"
    );
    let all: Vec<Change> = [advice.changes, advice.alone].concat();
    for Change { flags, point, .. } in &all {
        assert!(takes(point) < now, "{flags:?}: {} of {now} s", takes(point));
    }
    all
}

/// Five clients on a machine that was busy with other things now and then. A store spares a quarter of what was evaluated, and
/// was said to take longer, as other tokens were evaluated in those moments.
#[test]
fn what_is_not_evaluated_takes_no_time() {
    let traffic = read(include_bytes!("recordings/slow-store"));
    all_save_time(&traffic);
    let recorded = Setting::recorded(&traffic).unwrap();
    let store = Setting {
        store_limit: 1 << 30,
        ..recorded.clone()
    };
    let points = [&recorded, &store].map(|setting| simulate(&traffic, setting));
    let ratio = |of: fn(&Point) -> f64| of(&points[1]) / of(&points[0]);
    let tokens = ratio(|point| point.evaluated_tokens as f64);
    let time = ratio(|point| point.prompt_seconds);
    // Most of the time is the batches', of which no prompt has fewer.
    assert!(tokens < 0.8 && time < 0.95, "{tokens} {time}");
}

/// Three and four clients that ask for two answers (`n`) now and then. The slots of further answers are idle when the prompt is
/// launched, and go to the host prompt cache as other idle ones do: 40 and 42 % were replayed without that.
#[test]
fn what_the_slots_of_further_answers_held_is_saved_as_that_of_idle_slots() {
    for (bytes, share) in [
        (&include_bytes!("recordings/further-answers")[..], 0.519),
        (
            &include_bytes!("recordings/further-answers-of-four")[..],
            0.513,
        ),
    ] {
        let traffic = read(bytes);
        let recorded = Setting::recorded(&traffic).unwrap();
        let replay = Replay::new(&traffic);
        let replayed = replay.as_recorded(&recorded);
        let engine = replay.engine(&replayed);
        let engine_share = engine.spared_share();
        assert!((engine_share - share).abs() < 0.001, "{engine_share}");
        assert_eq!(replayed.reused_tokens, engine.reused_tokens);
        all_save_time(&traffic);
    }
}

/// A prompt whose answer was longer than the slot, and the same prompt again.
#[test]
fn a_larger_context_or_a_store_has_what_was_shifted_out() {
    let traffic = read(include_bytes!("recordings/shifted"));
    let all = all_save_time(&traffic);
    let change = all.iter().find(|change| change.kind == Kind::Context);
    let again = change.and_then(|change| change.point.outcomes[1]);
    assert_eq!(again.map(|again| again.evaluated), Some(1));

    let traffic = read(include_bytes!("recordings/shifted-store"));
    let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
    let again = point.outcomes[1].map(|again| (again.loaded, again.evaluated));
    assert_eq!(again, Some((229, 1)));
}

/// A recurrent model, and prompts that want nothing from the cache: the server drops a slot's checkpoints for these. One that was
/// kept, and went to the host prompt cache, made it 11.4 %.
#[test]
fn a_prompt_without_the_cache_leaves_no_earlier_checkpoints() {
    let traffic = read(include_bytes!("recordings/checkpoints"));
    let recorded = Setting::recorded(&traffic).unwrap();
    let replay = Replay::new(&traffic);
    let replayed = replay.simulate(&recorded);
    let engine = replay.engine(&replayed);
    assert_eq!(engine.reused_tokens, 620);
    assert_eq!(replayed.reused_tokens, engine.reused_tokens);
}
