//! `/requests/{id}`: where a prompt is, or what became of it. And `/reset`.

use crate::support::{Hooked, PATIENCE, ask, bare, model, text, until};
use contextpilot_control::{
    Latest, Place, Reason, RequestState, RequestStates, RequestsQuery, Reset, Sections,
};
use contextpilot_testbed::{Arch, Connection, Index, Request};
use serde_json::{Value, json};

#[test]
fn a_request_is_cached_in_its_slot_until_another_overwrites_it() {
    let hooked = Hooked::observing(&bare(1));
    let tokens = hooked.complete(&ask(1, 60).id("req/1 \u{e9}"))["tokens_evaluated"].as_u64();
    hooked.settled(1);
    let id = "req%2F1%20%C3%A9";
    let RequestState::Cached {
        id: name,
        places,
        tokens: held,
        since,
        evaluation,
        kept: None,
    } = hooked.request(id)
    else {
        panic!("{:?}", hooked.request(id));
    };
    assert_eq!(name, "req/1 \u{e9}");
    assert_eq!(places, [Place::Slot { slot: 0 }]);
    assert_eq!(Some(u64::from(held)), tokens);
    let evaluation = evaluation.unwrap();
    assert_eq!((evaluation.reused, Some(evaluation.evaluated)), (0, tokens));

    hooked.complete(&ask(2, 60).id("req-2"));
    let stats = hooked.settled(2);
    assert_eq!(stats.evictions[&Reason::Overwritten], 1);
    let RequestState::Evicted {
        at,
        reason,
        from,
        by,
        tokens: lost,
        ..
    } = hooked.request(id)
    else {
        panic!("{:?}", hooked.request(id));
    };
    assert_eq!(
        (reason, from),
        (Reason::Overwritten, Place::Slot { slot: 0 })
    );
    assert_eq!((by.as_deref(), lost), (Some("req-2"), Some(held)));
    assert!(at >= since);

    let slot = &stats.slots[0];
    assert_eq!(slot.requests, ["req-2"]);
    assert_eq!(slot.last_request.as_deref(), Some("req-2"));
    assert_eq!(slot.capacity, Some(1024));
    assert!(slot.tokens > 60 && !slot.busy, "{slot:?}");
    let per_token = stats.kv.bytes_per_token.unwrap();
    let bytes = (per_token * f64::from(slot.tokens)).round() as u64;
    assert_eq!(slot.bytes, Some(bytes));
    // More than the keys and values of 16 bits in all layers: positions take some bytes, too.
    assert!(per_token > 256.0, "{per_token}");
}

/// The id and the scale of each adapter; `None`: not known which were applied.
type Applied = Option<Vec<(Option<u32>, f32)>>;

/// The adapters of the last requests, the latest first.
fn adapters_of_last(hooked: &Hooked) -> Vec<Applied> {
    let latest: Latest = serde_json::from_str(&hooked.get("/requests/last").text()).unwrap();
    let each = latest.requests.into_iter().map(|one| {
        let all = one.evaluation.adapters?;
        Some(all.iter().map(|one| (one.id, one.scale)).collect())
    });
    each.collect()
}

#[test]
fn the_last_requests_name_the_adapters_that_they_were_evaluated_under() {
    let server = bare(2).adapter(1, &[]).adapter(2, &[]);
    let hooked = Hooked::observing(&server.args(["--lora-init-without-apply"]));
    let named = [
        json!([{"id": 0, "scale": 0.0}]),
        json!([{"id": 1, "scale": 1.0}]),
    ];
    let both = json!([{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.25}]);
    for (turn, lora) in (1..).zip(named.into_iter().chain([both])) {
        hooked.complete(&ask(turn, 60).with("lora", lora));
        hooked.settled(turn);
    }
    let expected = [
        Some(vec![(Some(0), 1.0), (Some(1), 0.25)]),
        Some(vec![(Some(1), 1.0)]),
        Some(vec![]),
    ];
    assert_eq!(adapters_of_last(&hooked), expected);
    // Of what is applied to requests that name none, the server alone decides.
    let all = json!([{"id": 0, "scale": 0.5}]);
    let set = hooked.server.post("/lora-adapters", &all).unwrap();
    assert_eq!(set.status, 200, "{}", set.text());
    hooked.complete(&ask(9, 60));
    hooked.settled(4);
    let last = adapters_of_last(&hooked).swap_remove(0);
    assert_eq!(last, Some(vec![(Some(0), 0.5)]));
}

#[test]
fn the_last_requests_have_their_sections_in_bytes_of_json() {
    let hooked = Hooked::observing(&bare(1));
    let (system, user) = (
        json!({"role": "system", "content": text(1, 20)}),
        json!({"role": "user", "content": text(2, 30)}),
    );
    let chat = Request::chat(&[]).with("messages", json!([system, user]));
    hooked.complete(&chat.predict(1).id("chat"));
    hooked.settled(1);
    hooked.complete(&ask(3, 40));
    hooked.settled(2);
    let latest: Latest = serde_json::from_str(&hooked.get("/requests/last").text()).unwrap();
    let [completion, chat] = &latest.requests[..] else {
        panic!("{latest:?}");
    };
    assert_eq!(completion.sections, None);
    let length = |value: &Value| value.to_string().len() as u64;
    let expected = Sections {
        system: length(&system),
        tools: 0,
        // The brackets and the comma of the list.
        messages: length(&user) + 3,
    };
    assert_eq!(chat.sections, Some(expected));
}

#[test]
fn an_unknown_request_is_not_found() {
    let hooked = Hooked::observing(&bare(1));
    let response = hooked.get("/requests/req-0");
    assert_eq!(response.status, 404);
    let state: RequestState = serde_json::from_str(&response.text()).unwrap();
    assert!(matches!(state, RequestState::Unknown { .. }), "{state:?}");
    assert_eq!(state.id(), "req-0");
    assert_eq!(hooked.get("/requests/%zz").status, 400);
}

#[test]
fn a_prompt_moved_to_the_host_cache_is_found_there() {
    let hooked = Hooked::observing(&model(Arch::Llama));
    hooked.complete(&ask(1, 100).id("req-1"));
    hooked.complete(&ask(2, 100).id("req-2"));
    let stats = hooked.settled(2);
    let RequestState::Cached { places, .. } = hooked.request("req-1") else {
        panic!("{:?}", hooked.request("req-1"));
    };
    assert!(places.contains(&Place::Host), "{places:?}");
    assert!(stats.host.entries > 0 && stats.host.bytes > 0, "{stats:?}");
    assert!(stats.tokens.resident >= 200, "{stats:?}");
    assert_eq!(stats.tokens.live_requests, 2);
}

#[test]
fn a_reset_reports_all_live_ids_and_later_requests_are_tracked() {
    let index = Index::start().unwrap();
    let hooked = Hooked::telling(&bare(2), &index);
    hooked.complete(&ask(1, 60).id("req-1"));
    hooked.complete(&ask(2, 60).id("req-2"));
    hooked.settled(2);
    let response = hooked.exchange("POST", "/reset");
    assert_eq!(response.status, 200, "{}", response.text());
    let reset: Reset = serde_json::from_str(&response.text()).unwrap();
    assert_eq!(reset.evicted, 2);
    let both =
        |ids: &std::collections::BTreeSet<String>| ids.contains("req-1") && ids.contains("req-2");
    assert!(index.wait_until(both, PATIENCE));
    let stats = hooked.stats();
    assert_eq!(stats.evictions[&Reason::Reset], 2);
    assert_eq!(stats.tokens.live_requests, 0);
    // The hook still knows what the engine holds, and tracks later requests.
    let tokens = |stats: &contextpilot_control::Stats| -> u32 {
        stats.slots.iter().map(|slot| slot.tokens).sum()
    };
    assert!(tokens(&stats) > 120, "{stats:?}");
    hooked.complete(&ask(1, 60).id("req-3"));
    hooked.settled(3);
    assert!(matches!(
        hooked.request("req-3"),
        RequestState::Cached { .. }
    ));
    assert_eq!(hooked.exchange("POST", "/reset").text(), r#"{"evicted":1}"#);
}

#[test]
fn delivery_counts_the_ids_that_the_index_received() {
    let index = Index::start().unwrap();
    let hooked = Hooked::telling(&bare(1), &index);
    hooked.complete(&ask(1, 60).id("req-1"));
    hooked.complete(&ask(2, 60).id("req-2"));
    let delivery = until("the index has confirmed", || {
        hooked
            .stats()
            .delivery
            .filter(|delivery| delivery.sent == 1)
    });
    assert!(delivery.endpoint.starts_with(&index.url()), "{delivery:?}");
    assert_eq!((delivery.waiting, delivery.failures_in_a_row), (0, 0));
    assert!(delivery.last_success_at.is_some());
    assert_eq!(delivery.last_error, None);
}

#[test]
fn many_requests_are_asked_for_at_once() {
    let hooked = Hooked::observing(&bare(1));
    let ids = ["first", "second", "never \"sent\""];
    for (seed, id) in ids[..2].iter().enumerate() {
        hooked.complete(&ask(seed as u64, 60).id(*id));
    }
    hooked.settled(2);
    let ask = |body: &str| {
        let mut connection = Connection::open(hooked.control).unwrap();
        connection
            .exchange("POST", "/requests", body.as_bytes())
            .unwrap()
    };
    let answer = ask(&serde_json::json!({ "ids": ids }).to_string());
    let states: RequestStates = serde_json::from_slice(&answer.body).unwrap();
    let [
        RequestState::Evicted { id: first, .. },
        RequestState::Cached {
            id: second,
            places,
            evaluation: None,
            ..
        },
        RequestState::Unknown { id: third, .. },
    ] = &states.requests[..]
    else {
        panic!("{states:?}");
    };
    assert_eq!([first, second, third], ids);
    assert_eq!(places, &[Place::Slot { slot: 0 }]);
    // As many as are allowed, and one more.
    let most = |more| serde_json::json!({"ids": vec!["x"; RequestsQuery::MOST + more]});
    assert_eq!(ask(&most(0).to_string()).status, 200);
    let refused = ask(&most(1).to_string());
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(
        refused.text().contains("at most 1000 ids"),
        "{}",
        refused.text()
    );
    assert_eq!(hooked.get("/requests").status, 405);
}
