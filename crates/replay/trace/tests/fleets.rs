//! Fleets of which it is known what they must do.

use contextpilot_trace::fleet::{Own, Route, Setting, Shared, fleet, plan};
use contextpilot_trace::{Builder, Clock, NewRequest, Policy, Trace, ceiling, curve, play};
use proptest::prelude::*;

const BLOCK: u32 = 10;

/// Sessions that take turns and grow by a block each time.
fn sessions(count: u64, turns: u64, apart: u64) -> Trace {
    let mut builder = Builder::new(BLOCK, Clock::Trace, None);
    for turn in 0..turns {
        for session in 0..count {
            let ids: Vec<u64> = (0..=turn + 3).map(|nth| session * 1000 + nth).collect();
            let new = NewRequest {
                at: (turn * count + session) * apart,
                session: Some(session as u32),
                input: ids.len() as u32 * BLOCK,
                output: 2,
                ids,
                ..NewRequest::default()
            };
            assert_eq!(builder.push(&new), Ok(0));
        }
    }
    builder.finish()
}

fn setting(servers: u32, route: Route) -> Setting {
    Setting {
        servers,
        route,
        slots: 1,
        host_tokens: 0,
        similarity: 0.1,
        prompt_rate: 1000.0,
        answer_rate: 1000.0,
        token_bytes: 1,
        own: None,
        shared: None,
        warm_up: 0.0,
    }
}

const OWN: Own = Own {
    room: u64::MAX,
    speed: 1e9,
};
const SHARED: Shared = Shared {
    room: u64::MAX,
    link: 1e9,
    looks: 0,
    worth: 0.0,
};

#[test]
fn where_everything_is_kept_the_ceiling_is_reached() {
    let trace = sessions(7, 9, 1_000_000);
    let most = ceiling(&trace, 0);
    for route in Route::ALL {
        let alone = Setting {
            own: Some(OWN),
            ..setting(1, route)
        };
        assert_eq!(fleet(&trace, &alone).reuse, most, "{route}");
        let many = Setting {
            own: Some(OWN),
            shared: Some(SHARED),
            ..setting(3, route)
        };
        let outcome = fleet(&trace, &many);
        assert_eq!(outcome.reuse, most, "{route}");
        // The slots of three servers are too few for seven sessions.
        assert!(outcome.loaded_tokens > 0);
        assert_eq!(outcome.requests, 63);
        let roomy = Setting {
            host_tokens: 1 << 30,
            ..setting(1, route)
        };
        assert_eq!(fleet(&trace, &roomy).reuse, most, "{route}: host memory");
    }
}

#[test]
fn a_session_that_moves_finds_only_what_all_share() {
    // Three servers in turn for four sessions: each request of a session comes to another server.
    let trace = sessions(4, 9, 1_000_000);
    let alone = fleet(&trace, &setting(3, Route::RoundRobin));
    assert_eq!(alone.reuse.reused_tokens, 0);
    let late = Setting {
        shared: Some(Shared {
            looks: u64::MAX,
            ..SHARED
        }),
        ..setting(3, Route::RoundRobin)
    };
    assert_eq!(fleet(&trace, &late).reuse.reused_tokens, 0);
    // A link that is slower than evaluating is of no use.
    let slow = Setting {
        shared: Some(Shared {
            link: 500.0,
            ..SHARED
        }),
        ..setting(3, Route::RoundRobin)
    };
    assert_eq!(fleet(&trace, &slow).reuse.reused_tokens, 0);
    let shared = Setting {
        shared: Some(SHARED),
        ..setting(3, Route::RoundRobin)
    };
    let outcome = fleet(&trace, &shared);
    assert_eq!(outcome.reuse, ceiling(&trace, 0));
    assert_eq!(outcome.fetched_bytes, outcome.reuse.reused_tokens);
    // Each block is sent once.
    assert_eq!(outcome.sent_bytes, trace.tree.blocks() * u64::from(BLOCK));
    let prefix = fleet(&trace, &setting(4, Route::Prefix));
    assert_eq!(
        prefix.reuse,
        ceiling(&trace, 0),
        "each session keeps a server"
    );
}

/// One prompt, and once more at another server, which has a part of it in a store of all if that part was written in time.
#[test]
fn an_answer_of_one_token_is_written_when_its_slot_loses_it() {
    let reused = |output: u32, next: &[(u64, u64)]| {
        let mut builder = Builder::new(BLOCK, Clock::Trace, None);
        for &(seconds, first) in [(0, 0)].iter().chain(next) {
            let new = NewRequest {
                at: seconds * 1_000_000,
                input: 4 * BLOCK,
                output,
                ids: (first..first + 4).collect(),
                ..NewRequest::default()
            };
            assert_eq!(builder.push(&new), Ok(0));
        }
        let two = Setting {
            own: Some(OWN),
            shared: Some(SHARED),
            ..setting(2, Route::RoundRobin)
        };
        fleet(&builder.finish(), &two).reuse.reused_blocks
    };
    assert_eq!([1, 2].map(|output| reused(output, &[(10, 0)])), [0, 4]);
    // The slot loses it to a third prompt, which comes to the same server.
    let lost = [(10, 50), (20, 100), (30, 0)];
    assert_eq!([1, 2].map(|output| reused(output, &lost)), [4, 4]);
}

/// Requests of a session that are as close to each other as others see late what a server wrote: some find it.
#[test]
fn what_was_written_is_seen_two_looks_later() {
    let trace = sessions(4, 100, 250_000);
    let reused = |looks: u64| {
        let some = Setting {
            shared: Some(Shared { looks, ..SHARED }),
            own: Some(OWN),
            slots: 4,
            ..setting(3, Route::RoundRobin)
        };
        fleet(&trace, &some).reuse.of_tokens()
    };
    let (soon, late) = (reused(0), reused(u64::MAX));
    let some = reused(1_000_000);
    assert!(late < some && some < soon, "{late} {some} {soon}");
    // Requests of a session come as far apart as two looks take in the mean. Some of what came too late was found by the one after
    // the next.
    let found = (some - late) / (soon - late);
    assert!((0.4..0.8).contains(&found), "{found}");
}

/// Half of a prompt, or less, is no reason to wait for the server that has it.
#[test]
fn by_prefix_a_request_goes_where_more_than_half_of_it_is() {
    let reused = |shared: u64| {
        let [first, second] = [0, 100].map(|own| {
            let ids = (0..6).map(|nth| if nth < shared { nth } else { own + nth });
            ids.collect::<Vec<u64>>()
        });
        let trace = one_by_one(&[&first, &second]);
        fleet(&trace, &setting(2, Route::Prefix))
            .reuse
            .reused_tokens
    };
    assert_eq!([1, 3, 4].map(reused), [0, 0, 40]);
}

/// Not to the slot that is free for longest.
#[test]
fn a_prompt_comes_to_the_slot_that_has_it() {
    let trace = one_by_one(&[&[0, 1, 2, 3], &[10, 11, 12, 13], &[10, 11, 12, 13]]);
    let two = Setting {
        slots: 2,
        ..setting(1, Route::Session)
    };
    assert_eq!(fleet(&trace, &two).reuse.reused_blocks, 4);
}

/// Prompts by their ids, each of another session, long after each other.
fn one_by_one(prompts: &[&[u64]]) -> Trace {
    let mut builder = Builder::new(BLOCK, Clock::Trace, None);
    for (turn, ids) in prompts.iter().enumerate() {
        let new = NewRequest {
            at: turn as u64 * 10_000_000,
            session: Some(turn as u32),
            input: ids.len() as u32 * BLOCK,
            output: 1,
            ids: ids.to_vec(),
            ..NewRequest::default()
        };
        assert_eq!(builder.push(&new), Ok(0));
    }
    builder.finish()
}

/// A server with a slot, and a store with room for so many blocks.
fn stored(blocks: u64) -> Setting {
    Setting {
        own: Some(Own {
            room: blocks * u64::from(BLOCK),
            ..OWN
        }),
        ..setting(1, Route::Session)
    }
}

#[test]
fn what_has_no_room_leaves_from_its_end_and_from_a_host_cache_as_a_whole() {
    let (first, second) = ([0, 1, 2, 3, 4], [10, 11, 12, 13]);
    let trace = one_by_one(&[&first, &second, &first]);
    let reused = |setting: &Setting| fleet(&trace, setting).reuse.reused_blocks;
    assert_eq!([6, 8, 9].map(|room| reused(&stored(room))), [2, 4, 5]);
    let host = |blocks: u64| Setting {
        host_tokens: blocks * u64::from(BLOCK),
        ..setting(1, Route::Session)
    };
    assert_eq!([8, 9].map(|room| reused(&host(room))), [0, 5]);
}

/// Of two prompts with one beginning, that leaves when both ends have left.
#[test]
fn a_beginning_leaves_after_what_goes_on_from_it() {
    let other = [50, 51, 52, 53, 54, 55];
    let prompts: [&[u64]; 5] = [&[0, 1, 2, 3, 4], &[0, 1, 2, 9], &other, &[70], &other];
    let reused = fleet(&one_by_one(&prompts), &stored(6)).reuse.reused_blocks;
    assert_eq!(reused, 3 + 5);
}

#[test]
fn times_follow_from_the_rates() {
    // One request of 40 tokens, and the next while it is evaluated.
    let mut builder = Builder::new(BLOCK, Clock::Trace, None);
    for (nth, at) in [0, 10_000].into_iter().enumerate() {
        let first = nth as u64 * 100;
        let new = NewRequest {
            at,
            input: 40,
            output: 100,
            ids: (first..first + 4).collect(),
            ..NewRequest::default()
        };
        assert_eq!(builder.push(&new), Ok(0));
    }
    let trace = builder.finish();
    let two_slots = Setting {
        slots: 2,
        ..setting(1, Route::RoundRobin)
    };
    let times = fleet(&trace, &two_slots);
    // 40 ms at 1,000 tokens a second; the second waits for 30 of them.
    assert_eq!(times.first_tokens, [0.040, 0.070]);
    assert!((times.seconds - 0.180).abs() < 1e-9, "{}", times.seconds);
    let one_slot = fleet(&trace, &setting(1, Route::RoundRobin));
    // It waits for the whole answer, which ends at 140 ms.
    assert_eq!(one_slot.first_tokens, [0.040, 0.170]);
    let apart = fleet(&trace, &setting(2, Route::LoadPrefix));
    assert_eq!(apart.first_tokens, [0.040, 0.040]);
    assert_eq!(
        (apart.first_token(0.5), apart.first_token(1.0)),
        (f64::from(0.040_f32), f64::from(0.040_f32))
    );
}

#[test]
fn a_plan_is_the_smallest_fleet_that_is_quick_enough() {
    let trace = sessions(40, 5, 5_000);
    let base = setting(1, Route::LoadPrefix);
    let (servers, outcome) = plan(&trace, &base, 0.95, 0.2, 1000).expect("there is a fleet");
    assert!(outcome.first_token(0.95) <= 0.2);
    assert!(servers > 1, "{servers}");
    let fewer = Setting {
        servers: servers - 1,
        ..base
    };
    assert!(fleet(&trace, &fewer).first_token(0.95) > 0.2);
    assert_eq!(plan(&trace, &base, 0.95, 1e-6, 50), None);
}

#[test]
fn numbers_without_sense_end_in_no_panic() {
    let trace = sessions(3, 3, 0);
    for number in [0.0, f64::NAN, f64::INFINITY, -1.0, 1e300] {
        for whole in [0, 1, u64::MAX] {
            let absurd = Setting {
                servers: 2,
                route: Route::LoadPrefix,
                slots: 0,
                host_tokens: whole,
                similarity: number,
                prompt_rate: number,
                answer_rate: number,
                token_bytes: whole,
                own: Some(Own {
                    room: whole,
                    speed: number,
                }),
                shared: Some(Shared {
                    room: whole,
                    link: number,
                    looks: whole,
                    worth: number,
                }),
                warm_up: number,
            };
            let outcome = fleet(&trace, &absurd);
            assert!(outcome.reuse.reused_tokens <= outcome.reuse.tokens);
        }
    }
}

proptest! {
    /// The policies that this crate plays one size at a time, against the one-pass curve, and against what they may not do.
    #[test]
    fn policies_stay_within_what_is_possible(
        chains in prop::collection::vec(prop::collection::vec(0..3_u64, 1..7), 1..80),
        room in 0..30_u64,
    ) {
        let mut builder = Builder::new(512, Clock::Trace, None);
        for ids in &chains {
            let new = NewRequest {
                input: ids.len() as u32 * 512,
                ids: ids.clone(),
                ..NewRequest::default()
            };
            prop_assert_eq!(builder.push(&new), Ok(0));
        }
        let trace = builder.finish();
        let most = ceiling(&trace, 0);
        let lru = curve(&trace, &[room], 0)[0];
        prop_assert_eq!(play(&trace, Policy::Lru, room, 0), lru);
        // A block is larger than a chunk here.
        prop_assert_eq!(play(&trace, Policy::Store, room, 0), lru);
        for policy in Policy::ALL {
            prop_assert!(play(&trace, policy, room, 0).reused_blocks <= most.reused_blocks);
            prop_assert_eq!(play(&trace, policy, u64::MAX, 0), most);
        }
    }
}
