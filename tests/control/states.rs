//! `/health` and `/ready` if all is well, if the index fails, and after an internal error of the hook.

use crate::support::{Hooked, ask, bare, until};
use contextpilot_control::{Health, HealthStatus, Mode};
use contextpilot_testbed::{Behaviour, Index};

fn probe(hooked: &Hooked, path: &str) -> (u16, Health) {
    let response = hooked.get(path);
    let health = serde_json::from_str(&response.text()).unwrap();
    (response.status, health)
}

/// The answer of `/ready`. `/health` must answer 200 at the same time.
fn ready(hooked: &Hooked) -> (u16, Health) {
    let ready = probe(hooked, "/ready");
    let (status, alive) = probe(hooked, "/health");
    assert_eq!((status, alive.status), (200, HealthStatus::Ok), "{ready:?}");
    ready
}

#[test]
fn if_posts_to_the_index_fail_ready_answers_503() {
    let index = Index::start().unwrap();
    let hooked = Hooked::telling(&bare(1), &index);
    let (status, good) = ready(&hooked);
    assert_eq!((status, good.status), (200, HealthStatus::Ok), "{good:?}");
    index.behave(Behaviour::Status(500, String::new()));
    hooked.complete(&ask(1, 60).id("req-1"));
    hooked.complete(&ask(2, 60).id("req-2"));
    let bad = until("the index fails", || {
        let (status, bad) = ready(&hooked);
        (bad.status == HealthStatus::IndexFailing).then_some((status, bad.reason))
    });
    assert_eq!(bad.0, 503);
    assert!(bad.1.contains("500"), "{}", bad.1);
    let delivery = hooked.stats().delivery.unwrap();
    assert!(delivery.failed_posts > 0 && delivery.last_error.is_some());
    index.behave(Behaviour::Accept);
    until("the index is back", || {
        (ready(&hooked).0 == 200).then_some(())
    });
}

/// After a panic in the ledger the endpoint says so, and the server still answers.
#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "a release build has no errors on demand"
)]
fn after_a_panic_in_the_ledger_ready_answers_stopped() {
    let hooked = Hooked::observing(&bare(1).env("CONTEXTPILOT_FAULT", "ledger:40"));
    for n in 0..8 {
        hooked.complete(&ask(n, 60).id(format!("req-{n}")));
    }
    let bad = until("it has stopped", || {
        let (status, bad) = ready(&hooked);
        (bad.status == HealthStatus::Stopped).then_some((status, bad.reason))
    });
    assert_eq!(bad.0, 503);
    assert!(bad.1.contains("restart"), "{}", bad.1);
    let stats = until("the worker knows", || {
        let stats = hooked.stats();
        (stats.mode == Mode::Stopped).then_some(stats)
    });
    assert_eq!(stats.tokens.live_requests, 0);
}

/// After a panic in a hook, too.
#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "a release build has no errors on demand"
)]
fn after_a_panic_in_a_hook_the_mode_is_stopped() {
    let hooked = Hooked::observing(&bare(1).env("CONTEXTPILOT_FAULT", "hook:2"));
    assert_eq!(hooked.stats().mode, Mode::Observing);
    for n in 0..3 {
        hooked.complete(&ask(n, 60).id(format!("req-{n}")));
    }
    until("it has stopped", || {
        (ready(&hooked).1.status == HealthStatus::Stopped).then_some(())
    });
    assert_eq!(hooked.stats().mode, Mode::Stopped);
}
