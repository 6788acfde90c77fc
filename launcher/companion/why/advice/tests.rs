use contextpilot_client::control::{
    Causes, ChosenBy, Elsewhere, Lost, Reason, RequestName, Through, Timestamp,
};
use serde_json::{Value, json};

use super::*;

/// A server of four slots whose host cache is nearly empty.
fn server() -> Value {
    json!({
        "at": "2026-01-02T03:04:05.000Z", "epoch": "e", "process": 1, "uptime_seconds": 1.0,
        "hook_version": "0.1.0", "mode": "observing", "slots": [], "tokens": {}, "requests": {},
        "engine": {"name": "llama.cpp", "attached": ["KV cache", "host prompt cache"]},
        "flags": {"parallel": 4, "slot_prompt_similarity": 0.1, "can_shift": true},
        "host": {"bytes": 18 << 20, "limit_bytes": 8_u64 << 30, "limit_from": "default of 0.7"},
        "kv": {"bytes_per_token": 20_000.0}, "reuse": {"total": {}, "last_minute": {}, "causes": {}},
        "evictions": {}, "losses": {},
    })
}

fn said_of(evaluation: &Evaluation, server: &Value) -> Vec<String> {
    let stats: Stats = serde_json::from_value(server.clone()).unwrap();
    let all = advice(evaluation, Some(&stats), SECONDS);
    all.iter().map(Advice::line).collect()
}

/// The only advice for an evaluation, without its size.
#[track_caller]
fn only(evaluation: &Evaluation, server: &Value) -> String {
    let [one] = said_of(evaluation, server).try_into().expect("one");
    let (_, text) = one.split_once(": ").unwrap();
    text.to_owned()
}

/// 2 ms for each of 1,000 tokens.
fn with(causes: Causes) -> Evaluation {
    let new = 1000 - causes.sum();
    Evaluation {
        prompt_tokens: 1200,
        reused: 200,
        evaluated: 1000,
        seconds: Some(2.0),
        causes: Causes { new, ..causes },
        ..Evaluation::default()
    }
}

fn moved(moved: u64) -> Evaluation {
    with(Causes {
        moved,
        ..Causes::default()
    })
}

fn lost(evicted: u64, reason: Reason, taking: Option<(ChosenBy, f64, f64)>) -> Evaluation {
    Evaluation {
        lost: Some(Lost {
            when: Timestamp::from_unix_ms(0),
            reason,
            by: Some(RequestName::Id("other".to_owned())),
            through: None,
            tokens: evicted,
            chosen_by: taking.map(|taking| taking.0),
            similarity: taking.map(|taking| taking.1),
            kept: taking.map(|taking| taking.2),
        }),
        ..with(Causes {
            evicted,
            ..Causes::default()
        })
    }
}

#[test]
fn advice_must_save_enough_tokens_and_time() {
    let none: [String; 0] = [];
    assert_eq!(said_of(&moved(63), &server()), none);
    let said = said_of(&moved(64), &server());
    let text =
        "would have saved 64 tokens, 128 ms: start the server with --cache-reuse 64 (off now)";
    assert!(said[0].starts_with(text), "{said:?}");
    // A twentieth of what was evaluated.
    let large = |moved| Evaluation {
        evaluated: 10_000,
        seconds: Some(20.0),
        ..self::moved(moved)
    };
    assert_eq!(said_of(&large(499), &server()), none);
    assert_eq!(said_of(&large(500), &server()).len(), 1);
    // A tenth of a second.
    let fast = |seconds| Evaluation {
        seconds,
        ..moved(500)
    };
    assert_eq!(said_of(&fast(Some(0.19)), &server()), none);
    assert_eq!(said_of(&fast(Some(0.21)), &server()).len(), 1);
    assert!(said_of(&fast(None), &server())[0].starts_with("would have saved 500 tokens: "));
}

/// 7 of 157 tokens were evicted, and 13 of 215 were in another slot: both got advice.
#[test]
fn a_handful_of_tokens_gets_no_advice() {
    let handful = Evaluation {
        prompt_tokens: 372,
        evaluated: 157,
        causes: Causes {
            last_token: 1,
            new: 129,
            evicted: 7,
            elsewhere: Elsewhere {
                similarity: 13,
                ..Elsewhere::default()
            },
            moved: 7,
            ..Causes::default()
        },
        ..lost(7, Reason::Overwritten, None)
    };
    assert_eq!(said_of(&handful, &server()), [""; 0]);
}

#[test]
fn the_largest_gain_comes_first() {
    let both = Evaluation {
        diverged: Some(Diverged {
            at: 200,
            repeated: 300,
            ..Diverged::default()
        }),
        ..moved(500)
    };
    let said = said_of(&both, &server());
    assert!(
        said[0].starts_with("would have saved 500 tokens, 1.0 s: start"),
        "{said:?}"
    );
    assert!(
        said[1].starts_with("would have saved 300 tokens, 600 ms: put"),
        "{said:?}"
    );
    assert_eq!(said.len(), 2);
}

#[test]
fn chunks_are_advised_only_where_they_could_be_moved() {
    let said = |flags: Value, functions: Value| {
        let mut server = server();
        let all = flags.as_object().unwrap();
        for (flag, value) in all {
            server["flags"][flag] = value.clone();
        }
        server["engine"]["functions"] = functions;
        said_of(&moved(500), &server).len()
    };
    assert_eq!(said(json!({}), json!([])), 1);
    assert_eq!(said(json!({"can_shift": null}), json!([])), 1);
    assert_eq!(said(json!({"can_shift": false}), json!([])), 0);
    assert_eq!(said(json!({"cache_reuse": 256}), json!([])), 0);
    assert_eq!(said(json!({"memory": "window"}), json!([])), 0);
    let projector = |called| json!([{"name": "mtmd_init_from_file", "called": called}]);
    assert_eq!(said(json!({}), projector(true)), 0);
    assert_eq!(said(json!({}), projector(false)), 1);
}

/// A higher similarity would have kept it, and may cost others more: `advise` tells.
#[test]
fn a_slot_that_a_similar_prompt_took_is_helped_by_a_slot_of_its_own_if_that_keeps_it() {
    let taken = |similarity, kept| {
        let taking = Some((ChosenBy::Similarity, similarity, kept));
        lost(500, Reason::Overwritten, taking)
    };
    let own = "name a slot (id_slot) for each conversation";
    assert_eq!(only(&taken(0.78, 0.7), &server()), own);
    let named = lost(500, Reason::Overwritten, Some((ChosenBy::Id, 0.78, 0.7)));
    assert_eq!(only(&named, &server()), own);
    // A named slot that was idle is empty, and the host cache, which has its content, is not asked.
    let mut emptied = server();
    emptied["flags"]["cache_idle_slots"] = json!(true);
    assert_eq!(said_of(&taken(0.78, 0.7), &emptied), [""; 0]);
    let mut alone = server();
    alone["flags"]["parallel"] = json!(1);
    assert_eq!(said_of(&taken(0.78, 0.7), &alone), [""; 0]);
    alone["host"] = json!({"limit_bytes": 0, "limit_from": "off"});
    assert_eq!(said_of(&taken(0.78, 0.7), &alone), [""; 0]);
    // Less than half was kept: the server saved the content, if it has a host cache.
    assert_eq!(said_of(&taken(0.2, 0.4), &server()), [""; 0]);
    let host = "give the server a host prompt cache (--cache-ram, off now)";
    assert_eq!(only(&taken(0.2, 0.4), &alone), host);
}

#[test]
fn more_slots_are_advised_only_for_what_the_oldest_slot_lost() {
    let mut bare = server();
    bare["host"] = json!({"limit_bytes": 0, "limit_from": "off"});
    let by_age = lost(
        500,
        Reason::Overwritten,
        Some((ChosenBy::LeastRecentlyUsed, 0.0, 0.0)),
    );
    assert_eq!(
        only(&by_age, &bare),
        "give the server more slots (--parallel, 4 now) or a host prompt cache (--cache-ram, off now)"
    );
    // The host cache is on: it was saved there.
    assert_eq!(said_of(&by_age, &server()), [""; 0]);
    // Unless it does not fit.
    let mut small = server();
    small["host"]["limit_bytes"] = json!(5_000_000);
    assert_eq!(
        only(&by_age, &small),
        "raise --cache-ram (18 MiB of 4.8 MiB used now)"
    );
    // A server of 2025 has no host cache.
    bare["host"] = json!({"limit_from": "unknown"});
    bare["engine"]["attached"] = json!(["KV cache"]);
    assert_eq!(
        only(&by_age, &bare),
        "give the server more slots (--parallel, 4 now)"
    );
}

#[test]
fn a_larger_host_cache_is_advised_only_if_it_is_full() {
    let dropped = lost(300, Reason::DroppedFromHost, None);
    assert_eq!(said_of(&dropped, &server()), [""; 0]);
    let mut full = server();
    full["host"] =
        json!({"bytes": 900 << 10, "limit_bytes": 1 << 20, "limit_from": "command line"});
    assert_eq!(
        only(&dropped, &full),
        "raise --cache-ram (900 KiB of 1.0 MiB used now)"
    );
    full["host"] = json!({"bytes": 900 << 10, "limit_from": "unlimited"});
    assert!(only(&dropped, &full).starts_with("give --cache-ram a size"));
}

/// Each of these was followed on a real server, and saved nothing, or cost others more.
#[test]
fn what_was_not_seen_to_help_is_not_advised() {
    let elsewhere = |elsewhere| {
        with(Causes {
            elsewhere,
            ..Causes::default()
        })
    };
    let similarity = elsewhere(Elsewhere {
        similarity: 500,
        ..Elsewhere::default()
    });
    let host_rule = elsewhere(Elsewhere {
        host_rule: 500,
        ..Elsewhere::default()
    });
    let no_way_back = with(Causes {
        no_way_back: 500,
        ..Causes::default()
    });
    let mut recurrent = server();
    recurrent["flags"]["memory"] = json!("recurrent");
    for (evaluation, server) in [
        (similarity, server()),
        (host_rule, server()),
        (no_way_back.clone(), recurrent),
    ] {
        assert_eq!(said_of(&evaluation, &server), [""; 0]);
    }
    let mut window = server();
    window["flags"]["memory"] = json!("window");
    assert!(only(&no_way_back, &window).ends_with("or use --swa-full"));
}

#[test]
fn what_was_in_a_busy_slot_is_not_the_clients_order() {
    let mut busy = with(Causes {
        elsewhere: Elsewhere {
            busy: 500,
            ..Elsewhere::default()
        },
        ..Causes::default()
    });
    busy.diverged = Some(Diverged {
        repeated: 400,
        reordered: 100,
        ..Diverged::default()
    });
    assert!(only(&busy, &server()).starts_with("wait for the answer"));
}

#[test]
fn what_no_prompt_took_gets_the_advice_for_who_did() {
    for (through, advised) in [
        (Through::Erase, "do not erase slots"),
        (Through::Restore, "do not restore into a slot"),
        (Through::NoRoom, "give the slots a larger context (-c)"),
    ] {
        let mut evaluation = lost(500, Reason::Cleared, None);
        if let Some(lost) = &mut evaluation.lost {
            lost.through = Some(through);
        }
        assert!(only(&evaluation, &server()).starts_with(advised));
    }
}

fn diverging(diverged: Diverged) -> Evaluation {
    Evaluation {
        diverged: Some(diverged),
        ..with(Causes::default())
    }
}

/// Requests for a title have the conversation in them, behind another system prompt.
#[test]
fn another_prompt_is_no_misplaced_text() {
    let title = Diverged {
        at: 5,
        repeated: 700,
        differing: 300,
        unmatched: 300,
        ..Diverged::default()
    };
    let none: [String; 0] = [];
    assert_eq!(said_of(&diverging(title.clone()), &server()), none);
    let date = Diverged {
        differing: 6,
        unmatched: 6,
        ..title
    };
    assert!(only(&diverging(date), &server()).starts_with("put what changes"));
}

#[test]
fn an_answer_that_comes_back_otherwise_is_no_date() {
    let back = Diverged {
        at: 200,
        answer: true,
        repeated: 300,
        deleted: 40,
        ..Diverged::default()
    };
    assert!(
        only(&diverging(back.clone()), &server()).starts_with("send answers back as they were")
    );
    let same = Diverged {
        text: Some(DivergedText {
            before: "He said".to_owned(),
            old: " hello there".to_owned(),
            new: " hello".to_owned(),
        }),
        ..back
    };
    let keep = "start the server with CONTEXTPILOT_KEEP_TOKENS=1";
    assert!(only(&diverging(same), &server()).starts_with(keep));
}
