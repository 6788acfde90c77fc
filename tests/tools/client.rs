//! The crate `contextpilot-client` against a real server and hook.

use contextpilot_client::control::{Change, HealthStatus, RequestState};
use contextpilot_client::{Control, LlamaServer, Prompt, Update};

use crate::support::{Watched, two_slots, until};

#[test]
fn the_size_of_a_slot_is_that_of_its_saved_state() {
    let watched = Watched::start(two_slots());
    let server = LlamaServer::new(&watched.server.address().to_string()).unwrap();
    let control = Control::new(&watched.control).unwrap();
    let before = control.slot(0).unwrap();
    assert_eq!(before.unwrap_or_default().tokens, 0);
    let prompt = Prompt::new("Tea is picked in spring.").id("tea").slot(0);
    let answer = server.complete(&prompt).unwrap();
    let (prompt_tokens, held) = (answer.prompt_tokens, answer.prompt_tokens + 7);
    let slot = until("all is counted", || {
        let slot = control.slot(0).unwrap()?;
        (u64::from(slot.tokens) == held && !slot.busy).then_some(slot)
    });
    assert_eq!(slot.capacity, Some(2048));
    assert_eq!(slot.last_request.as_deref(), Some("tea"));
    match control.request("tea").unwrap() {
        RequestState::Cached { tokens, .. } => assert_eq!(u64::from(tokens), prompt_tokens),
        other => panic!("{other:?}"),
    }
    let unknown = control.request("a/b c").unwrap();
    assert!(
        matches!(&unknown, RequestState::Unknown { id, .. } if id == "a/b c"),
        "{unknown:?}"
    );
    assert_eq!(control.health().unwrap().status, HealthStatus::Ok);
    assert_eq!(control.ready().unwrap().status, HealthStatus::Ok);
    // The size of the slot's state in the file that the server writes. The file has a header and
    // the tokens, too.
    let saved = server.save(0, "tea.bin").unwrap();
    let bytes = control.slot(0).unwrap().unwrap().bytes.unwrap();
    let more = saved.bytes.abs_diff(bytes);
    assert!(more <= 64 + 4 * saved.tokens, "{bytes} of {}", saved.bytes);
}

#[test]
fn after_a_break_the_stream_of_events_continues_where_it_ended() {
    let watched = Watched::start(two_slots());
    let server = LlamaServer::new(&watched.server.address().to_string()).unwrap();
    let control = Control::new(&watched.control).unwrap();
    let ask = |id: &str| {
        server
            .complete(&Prompt::new(format!("{id} {id}")).id(id).slot(0))
            .unwrap()
    };
    let cached = |update: Update| match update {
        Update::Event(event) => match event.change {
            Change::Cached { id, .. } => Some(id),
            _ => None,
        },
        Update::Missed(missed) => panic!("{missed:?}"),
    };
    let mut events = control.events(None).unwrap();
    ask("one");
    let first = events.next().unwrap().unwrap();
    assert_eq!(cached(first).as_deref(), Some("one"));
    let last = events.last_id().cloned().unwrap();
    drop(events);
    ask("two");
    ask("three");
    let again = control.events(Some(&last)).unwrap();
    let ids: Vec<String> = again
        .filter_map(|update| cached(update.unwrap()))
        .take(2)
        .collect();
    assert_eq!(ids, ["two", "three"]);
}

#[path = "../../crates/watch/client/examples/evictions.rs"]
mod evictions;
#[path = "../../crates/watch/client/examples/slots.rs"]
mod slots;

#[test]
fn the_examples_of_the_library_run() {
    let watched = Watched::start(two_slots());
    let url = format!("http://{}", watched.server.address());
    let server = LlamaServer::new(&url).unwrap();
    let ask = |id: &str| {
        let prompt = Prompt::new(format!("{id} {id} {id}")).id(id).slot(0);
        server.complete(&prompt).unwrap();
    };
    let lines = slots::slots(&url).unwrap();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("slot 0: idle, "), "{lines:?}");

    let control = watched.control.clone();
    let first = std::thread::spawn(move || {
        let mut first = String::new();
        let taken = evictions::evictions(&control, |id| {
            first = id.to_owned();
            false
        });
        taken.map(|()| first)
    });
    let mut number = 0;
    until("an eviction is handed over", || {
        number += 1;
        ask(&format!("{number}-req"));
        first.is_finished().then_some(())
    });
    let first = first.join().unwrap().unwrap();
    assert!(first.ends_with("-req"), "{first}");
}
