//! What one end writes, the other end reads; and JSON looks as the docs say.

use contextpilot_control::{
    AppliedAdapter, Branch, Causes, Change, ChosenBy, ControlEndpoint, Delivery, Diverged, Engine,
    Evaluated, Evaluation, EventId, Evicted, Flags, Health, HealthStatus, HookedFunction,
    HostCache, KeptBeginning, KeptTokens, KvBytes, KvEvents, LogLine, Losses, Lost, Memory, Merged,
    Missed, Mode, Model, ModelState, Outcome, Place, PrefixStore, Reason, Recording, Refusal,
    RequestName, RequestState, Requests, RequestsQuery, Reset, ResidencyEvent, Reuse, ReuseOver,
    Sections, Seen, Slot, Sources, Stats, StoreRemote, Through, Timestamp, Title, Tokens, Tree,
    UnfinishedPrompt,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;

#[track_caller]
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn moment() -> Timestamp {
    Timestamp::from_unix_ms(1_767_323_045_006)
}

fn stats() -> Stats {
    Stats {
        at: moment(),
        epoch: "00ff".to_owned(),
        process: 7,
        uptime_seconds: 1.5,
        hook_version: "0.1.0".to_owned(),
        mode: Mode::Reporting,
        listening: vec!["http://127.0.0.1:9931".to_owned()],
        routed: false,
        engine: Engine {
            name: "llama.cpp".to_owned(),
            version: Some("0.7.0".to_owned()),
            build: None,
            inside_executable: false,
            attached: vec!["KV cache".to_owned()],
            missing: vec![],
            seen: Some(Seen {
                loaded: true,
                evaluated: true,
                changed: false,
            }),
            not_followed: None,
            functions: vec![HookedFunction {
                name: "llama_decode".to_owned(),
                way: "import".to_owned(),
                found: 2,
                patched: 2,
                called: true,
            }],
        },
        model: Some(Model {
            name: "m.gguf".to_owned(),
            from: "command line".to_owned(),
        }),
        model_state: ModelState::Loaded,
        flags: Some(Flags {
            parallel: Some(4),
            memory: Memory::Window,
            ..Flags::default()
        }),
        contexts: vec![],
        slots: vec![Slot {
            slot: 0,
            context: None,
            tokens: 80,
            capacity: Some(1024),
            bytes: Some(20_480),
            busy: true,
            requests: vec!["req-1".to_owned()],
            requests_total: 1,
            last_request: None,
            last_launch: Some(moment()),
            prompt: Some(UnfinishedPrompt {
                number: 17,
                id: Some("req-2".to_owned()),
                reused: 16,
                evaluated: 64,
                in_batch: 32,
                client_left: true,
                tokens: Some(200),
                seconds_left: Some(2.75),
                seconds: 1.5,
                tokens_per_second: Some(42.5),
            }),
            last_title: Some(title()),
        }],
        host: HostCache::default(),
        tokens: Tokens::default(),
        kv: KvBytes {
            bytes_per_token: Some(256.25),
            measured_tokens: 80,
            measured_bytes: 20_500,
        },
        requests: Requests::default(),
        reuse: Reuse {
            total: ReuseOver::new(2, 30, 70),
            last_minute: ReuseOver::new(0, 0, 0),
            causes: evaluation().causes,
            seconds: 0.25,
        },
        evictions: BTreeMap::from([(Reason::Overwritten, 3), (Reason::NeverCached, 1)]),
        undecided: true,
        delivery: Some(Delivery::default()),
        index_in_front: Some("http://127.0.0.1:8765".to_owned()),
        control: Some(ControlEndpoint {
            refused: 3,
            work_us: 1200,
        }),
        kv_events: Some(KvEvents::default()),
        recording: Some(Recording::default()),
        store: Some(PrefixStore::default()),
        kept: Some(KeptTokens::default()),
        losses: Losses::default(),
    }
}

#[test]
fn stats_come_back_whole() {
    let value = round_trip(&stats());
    assert_eq!(value["at"], "2026-01-02T03:04:05.006Z");
    assert_eq!(value["mode"], "reporting");
    assert_eq!(value["evictions"]["overwritten"], 3);
    assert_eq!(value["reuse"]["total"]["hit_ratio"], 0.3);
    assert_eq!(value["reuse"]["last_minute"]["hit_ratio"], Value::Null);
}

#[test]
fn fields_of_other_versions_do_no_harm() {
    let mut value = round_trip(&stats());
    value["unheard_of"] = json!(1);
    value["slots"][0]["unheard_of"] = json!({});
    value["host"] = json!({"entries": 4});
    let read: Stats = serde_json::from_value(value).unwrap();
    assert_eq!((read.host.entries, read.host.limit_bytes), (4, None));
    for word in [Reason::ALL.as_slice(), &[Reason::Other]].concat() {
        assert_eq!(round_trip(&word), json!(word.as_str()));
    }
    let reason: Reason = serde_json::from_str("\"melted\"").unwrap();
    assert_eq!(reason, Reason::Other);
    let status: HealthStatus = serde_json::from_str("\"melting\"").unwrap();
    assert_eq!(status, HealthStatus::Other);
    let outcome: Outcome = serde_json::from_str("\"melted\"").unwrap();
    assert_eq!(outcome, Outcome::Other);
    let event = json!({"epoch": "e", "sequence": 1, "at": moment(), "change": "melted", "x": 1});
    let event: ResidencyEvent = serde_json::from_value(event).unwrap();
    assert_eq!(event.change, Change::Other);
}

fn title() -> Title {
    Title {
        words: "Fix the login test".to_owned(),
        agent: "opencode/1.18.33".to_owned(),
    }
}

fn evaluation() -> Evaluation {
    let mut causes = Causes {
        last_token: 1,
        new: 5,
        ..Causes::default()
    };
    causes.add(Causes {
        new: 1,
        not_known: 2,
        ..Causes::default()
    });
    Evaluation {
        prompt_tokens: 12,
        reused: 3,
        evaluated: 9,
        seconds: Some(0.5),
        causes,
        from: Sources {
            slot: 3,
            ..Sources::default()
        },
        adapters: Some(vec![AppliedAdapter {
            id: Some(1),
            scale: 0.5,
        }]),
        given_up: true,
        attempts: 3,
        kept: 41,
        diverged: Some(Diverged {
            at: 3,
            request: Some(RequestName::Id("req-1".to_owned())),
            differing: 2,
            same_after: 5,
            inserted: 2,
            deleted: 1,
            repeated: 6,
            reordered: 2,
            unmatched: 1,
            answer: true,
            earlier_answer: true,
            block: 200,
            media: true,
            sent: Some(false),
            text: None,
        }),
        lost: Some(Lost {
            when: moment(),
            reason: Reason::Overwritten,
            by: Some(RequestName::Number(7)),
            through: Some(Through::NoRoom),
            tokens: 4,
            chosen_by: Some(ChosenBy::Similarity),
            similarity: Some(0.75),
            kept: Some(0.5),
        }),
        title: Some(title()),
    }
}

#[test]
fn evaluations_come_back_whole() {
    let evaluated = Evaluated {
        number: 8,
        id: None,
        at: moment(),
        slot: 1,
        time_to_first_token_seconds: Some(0.25),
        ended: Some(moment()),
        sections: Some(Sections {
            system: 5,
            tools: 6,
            messages: 7,
        }),
        evaluation: evaluation(),
    };
    let value = round_trip(&evaluated);
    // An older hook's.
    let mut old = value.clone();
    let fields = old.as_object_mut().unwrap();
    fields.retain(|name, _| name != "ended" && name != "time_to_first_token_seconds");
    let old: Evaluated = serde_json::from_value(old).unwrap();
    assert_eq!((old.ended, old.time_to_first_token_seconds), (None, None));
    let evaluation = &value["evaluation"];
    assert_eq!(evaluation["causes"]["new"], 6);
    assert_eq!(evaluation["causes"]["elsewhere"]["busy"], 0);
    assert_eq!(evaluation["diverged"]["request"], "req-1");
    assert_eq!(evaluation["lost"]["by"], 7);
    assert_eq!(evaluation["adapters"], json!([{"id": 1, "scale": 0.5}]));
    assert_eq!(evaluation["lost"]["chosen_by"], "similarity");
    // An older hook's.
    let lost = json!({"when": moment(), "reason": "overwritten", "by": null});
    let lost: Lost = serde_json::from_value(lost).unwrap();
    assert_eq!((lost.tokens, lost.kept), (0, None));
    assert!(evaluation["diverged"].get("text").is_none());
    assert_eq!(evaluated.evaluation.causes.sum(), 9);
}

#[test]
fn trees_come_back_whole() {
    let branch = Branch {
        parent: Some(0),
        from: 8,
        to: 11,
        slots: vec![0, 2],
        host: 1,
        requests: vec![RequestName::Id("a".to_owned()), RequestName::Number(7)],
        requests_total: 2,
        merged: Merged {
            branches: 3,
            tokens: 40,
            requests: 1,
        },
    };
    let tree = Tree {
        at: moment(),
        epoch: "00ff".to_owned(),
        resident: 11,
        branches: vec![
            Branch {
                to: 8,
                ..Branch::default()
            },
            branch,
        ],
    };
    let value = round_trip(&tree);
    assert_eq!(value["branches"][0]["parent"], Value::Null);
    assert_eq!(value["branches"][1]["requests"], json!(["a", 7]));
}

#[test]
fn requests_come_back_whole() {
    let id = || "req-\u{e9} \"1\"".to_owned();
    let cached = RequestState::Cached {
        id: id(),
        places: vec![Place::Slot { slot: 3 }, Place::Host],
        tokens: 9,
        since: moment(),
        kept: Some(KeptBeginning {
            tokens: 8,
            until: moment(),
        }),
        evaluation: Some(Box::new(evaluation())),
    };
    let value = round_trip(&cached);
    assert_eq!(value["state"], "cached");
    assert_eq!(
        value["places"],
        json!([{"place": "slot", "slot": 3}, {"place": "host"}])
    );
    for state in [
        cached,
        RequestState::Awaited {
            id: id(),
            since: moment(),
        },
        RequestState::Evicted {
            id: id(),
            at: moment(),
            reason: Reason::Overwritten,
            from: Place::Slot { slot: 1 },
            by: Some("req-2".to_owned()),
            tokens: Some(12),
            cached_tokens: Some(7),
            kept: None,
            evaluation: None,
        },
        RequestState::Numbered {
            id: id(),
            at: moment(),
            slot: 1,
            prompts: 2,
            tokens: Some(70),
            cached_tokens: Some(64),
            evaluation: Box::default(),
        },
        RequestState::Unknown {
            id: id(),
            hint: "never seen".to_owned(),
        },
    ] {
        round_trip(&state);
        assert_eq!(state.id(), id());
    }
}

#[test]
fn events_come_back_whole() {
    let event = |change| ResidencyEvent {
        epoch: "a1-b2".to_owned(),
        sequence: 12,
        at: moment(),
        change,
    };
    let evicted = event(Change::Evicted {
        id: "req-1".to_owned(),
        reason: Reason::DroppedFromHost,
        from: Place::Host,
        by: None,
    });
    let value = round_trip(&evicted);
    assert_eq!(value["change"], "evicted");
    assert_eq!(value["from"], json!({"place": "host"}));
    assert_eq!(evicted.id().to_string(), "a1-b2-12");
    assert_eq!("a1-b2-12".parse(), Ok(evicted.id()));
    for wrong in ["", "12", "-12", "a-", "a-+1", "a-99999999999999999999999"] {
        assert_eq!(wrong.parse::<EventId>(), Err(()), "{wrong}");
    }
    for change in [
        Change::Cached {
            id: "req-1".to_owned(),
            slot: 1,
            tokens: 80,
        },
        Change::MovedToHost {
            ids: vec!["req-1".to_owned()],
            slot: 1,
            tokens: 80,
            bytes: Some(1),
        },
        Change::Restored {
            ids: vec![],
            slot: 2,
            tokens: 80,
        },
    ] {
        round_trip(&event(change));
    }
    round_trip(&Missed {
        epoch: "e".to_owned(),
        missed: None,
    });
}

#[test]
fn the_rest_comes_back_whole() {
    round_trip(&Health {
        status: HealthStatus::IndexFailing,
        reason: "connection refused".to_owned(),
    });
    assert_eq!(round_trip(&Reset { evicted: 3 }), json!({"evicted": 3}));
    round_trip(&Refusal {
        error: "no such page".to_owned(),
    });
    let line = LogLine {
        at: moment(),
        id: None,
        outcome: Outcome::Answered,
        slot: Some(0),
        prompts: 1,
        prompt_tokens: 81,
        reused: 1,
        evaluated: 80,
        time_to_first_token_seconds: Some(0.002_5),
        total_seconds: 0.004,
        evicted: vec![Evicted {
            id: "req-1".to_owned(),
            reason: Reason::Overwritten,
        }],
        evaluation: Some(Box::new(evaluation())),
        sections: None,
    };
    let value = round_trip(&line);
    assert_eq!(value["outcome"], "answered");
    assert_eq!(value["evicted"][0]["reason"], "overwritten");
}

proptest! {
    #[test]
    fn any_moment_comes_back(unix_ms in 0_u64..253_402_300_800_000) {
        let time = Timestamp::from_unix_ms(unix_ms);
        prop_assert_eq!(time.to_string().parse(), Ok(time));
        prop_assert_eq!(time.unix_ms(), unix_ms);
    }

    #[test]
    fn any_id_comes_back(id in any::<String>()) {
        let state = RequestState::Unknown { id, hint: String::new() };
        round_trip(&state);
    }
}

/// A request of several prompts has their sums, and the causes of the prompt with the most evaluated tokens.
#[test]
fn prompts_of_a_request_are_added_up() {
    let prompt = Evaluation {
        prompt_tokens: 10,
        reused: 7,
        evaluated: 3,
        from: Sources {
            slot: 1,
            host: 1,
            checkpoint: 1,
            moved: 1,
            store: 3,
        },
        adapters: Some(Vec::new()),
        ..Evaluation::default()
    };
    let mut sum = Evaluation::default();
    sum.add(prompt.clone(), true);
    assert_eq!(sum, prompt);
    let other = Evaluation {
        adapters: None,
        ..prompt.clone()
    };
    sum.add(other, false);
    assert_eq!((sum.prompt_tokens, sum.reused, sum.evaluated), (20, 14, 6));
    let from = [
        sum.from.slot,
        sum.from.host,
        sum.from.checkpoint,
        sum.from.moved,
        sum.from.store,
    ];
    assert_eq!(from, [2, 2, 2, 2, 6]);
    assert_eq!(sum.adapters, prompt.adapters, "of the largest");
}

/// A reader takes a field that is not there for a number of 0, for a no, or for nothing known.
#[test]
fn what_says_nothing_is_left_out() {
    let fields = |value: Value| value.as_object().unwrap().keys().cloned().collect();
    let names: Vec<String> = fields(round_trip(&Evaluation::default()));
    let always = [
        "causes",
        "diverged",
        "evaluated",
        "from",
        "lost",
        "prompt_tokens",
        "reused",
        "seconds",
    ];
    assert_eq!(names, always);
    let mut all: Vec<String> = fields(round_trip(&evaluation()));
    all.retain(|name| !always.contains(&name.as_str()));
    assert_eq!(all, ["adapters", "attempts", "given_up", "kept", "title"]);
    assert_eq!(round_trip(&evaluation())["attempts"], 3);
    assert!(round_trip(&evaluation())["given_up"] == true);
}

#[test]
fn causes_are_named_as_in_json() {
    let mut names = Vec::new();
    for (cause, number) in round_trip(&Causes::default()).as_object().unwrap() {
        match number.as_object() {
            None => names.push(cause.clone()),
            Some(inner) => names.extend(inner.keys().map(|name| format!("{cause}_{name}"))),
        }
    }
    let all = Causes::default().all();
    let mut said: Vec<_> = all.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    said.sort();
    assert_eq!(said, names);

    let mut causes = evaluation().causes;
    causes.elsewhere.busy = 20;
    causes.elsewhere.host_rule = 300;
    assert_eq!(causes.elsewhere.sum(), 320);
    assert_eq!(causes.sum(), 9 + 320);
    assert!(causes.all().contains(&("elsewhere_host_rule", 300)));
}

#[test]
fn a_request_is_named_by_its_id_or_its_number() {
    let name = RequestName::Number(17).to_string();
    assert_eq!(name, "#17");
    assert_eq!(RequestName::number(&name), Some(17));
    assert_eq!(RequestName::number("17"), None);
    assert_eq!(RequestName::number("#req-1"), None);
    assert_eq!(RequestName::Id("req-1".to_owned()).to_string(), "req-1");
}

#[test]
fn only_what_was_evaluated_has_an_evaluation() {
    let mut numbered = RequestState::Numbered {
        id: "#8".to_owned(),
        at: moment(),
        slot: 1,
        prompts: 2,
        tokens: Some(70),
        cached_tokens: None,
        evaluation: Box::new(evaluation()),
    };
    assert_eq!(numbered.evaluation(), Some(&evaluation()));
    numbered.evaluation_mut().unwrap().diverged = None;
    assert_eq!(numbered.evaluation().unwrap().diverged, None);
    let mut awaited = RequestState::Awaited {
        id: "req-1".to_owned(),
        since: moment(),
    };
    assert_eq!(awaited.evaluation(), None);
    assert_eq!(awaited.evaluation_mut(), None);
}

#[test]
fn a_query_has_no_more_ids_than_it_may() {
    let read = |ids: usize| {
        let body = json!({"ids": vec!["a"; ids]}).to_string();
        serde_json::from_str::<RequestsQuery>(&body)
    };
    for ids in [0, 2, RequestsQuery::MOST] {
        assert_eq!(read(ids).unwrap().ids, vec!["a"; ids]);
    }
    let error = read(RequestsQuery::MOST + 1).unwrap_err().to_string();
    assert!(
        error.starts_with("invalid length 1001, expected at most 1000 ids"),
        "{error}"
    );
}

#[test]
fn a_remote_that_nobody_speaks_for_is_not_reachable() {
    let said = StoreRemote {
        address: "redis://10.0.0.7".to_owned(),
        reachable: true,
        sent: 5,
        at: Some(moment()),
        ..StoreRemote::default()
    };
    let json = round_trip(&said).to_string();
    let after = |ms| {
        let now = Timestamp::from_unix_ms(moment().unix_ms() + ms);
        StoreRemote::read(json.as_bytes(), now).unwrap()
    };
    assert_eq!(after(60_000), said);
    let silent = after(60_001);
    assert!(!silent.reachable && silent.problem.is_some());
    assert_eq!((silent.since, silent.sent), (Some(moment()), 5));
    assert_eq!(StoreRemote::read(b"{", moment()), None);
}
