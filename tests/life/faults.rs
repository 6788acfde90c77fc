//! Internal errors of the hook, made on demand: the server goes on, and all live ids are reported.

use std::time::{Duration, Instant};

use contextpilot_testbed::{Behaviour, Builder, Index, Request, Server};

use crate::support::{Home, PATIENCE, ask, assert_told, ids, is_cached, lines};

const STOPPED: &str = "Stopped after an internal error";

fn with_fault(builder: Builder, fault: impl AsRef<std::ffi::OsStr>) -> Builder {
    builder.env("CONTEXTPILOT_FAULT", fault.as_ref())
}

fn wait_for_line(server: &Server, what: &str) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !lines(server).iter().any(|line| line.contains(what)) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

fn end_as_usual(mut server: Server) {
    assert_eq!(server.stop(libc::SIGTERM).unwrap().code(), Some(0));
}

/// The panic comes at different events, such as the arrival of a request or the end of a prompt.
#[test]
fn after_a_panic_in_the_ledger_all_live_ids_are_reported() {
    for event in [12, 13, 14, 15, 16, 20, 40] {
        let (home, index) = (Home::new(), Index::start().unwrap());
        let stall = home.folder().with_extension("stall");
        let fault = format!("ledger:{event},stall:{}", stall.display());
        let server = with_fault(home.server(&index, 4), fault).spawn().unwrap();
        // While this file exists, the worker applies no events. So all events have arrived before the
        // panic.
        std::fs::write(&stall, "").unwrap();
        let prompt = "some prompt that goes on and on";
        let long = Request::completion(prompt).id("req-a").slot(0).predict(30);
        server.complete(&long).unwrap();
        ask(&server, 1, "req-b");
        assert!(lines(&server).is_empty(), "event {event} is too early");
        std::fs::remove_file(&stall).unwrap();
        assert!(wait_for_line(&server, STOPPED), "{:?}", lines(&server));
        // An id may be reported twice: after the panic, and again for an event that follows.
        let expected = ids(&["req-a", "req-b"]);
        assert!(index.wait_until(|evicted| *evicted == expected, PATIENCE));

        // From now on the server runs without the hook.
        ask(&server, 0, "req-after");
        assert!(is_cached(&server, 0, "req-after"));
        let ours = lines(&server);
        assert_eq!(ours.len(), 1, "{ours:?}");
        end_as_usual(server);
        assert_eq!(index.evicted(), expected);
        assert!(home.files().is_empty(), "all was told");
    }
}

/// If the index does not answer after the panic, the next start reports the ids.
#[test]
fn after_a_panic_while_the_index_is_away_the_next_start_reports_the_ids() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 4);
    let server = with_fault(builder.clone(), "ledger:25").spawn().unwrap();
    index.behave(Behaviour::Close);
    ask(&server, 0, "req-a");
    ask(&server, 1, "req-b");
    assert!(wait_for_line(&server, STOPPED), "{:?}", lines(&server));
    let mut server = server;
    server.stop(libc::SIGKILL).unwrap();
    index.behave(Behaviour::Accept);
    let _next = builder.spawn().unwrap();
    assert!(index.wait_until(|evicted| evicted.contains("req-a"), PATIENCE));
}

#[test]
fn after_a_panic_in_a_hook_the_server_goes_on_and_live_ids_are_reported() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let server = with_fault(home.server(&index, 4), "hook:3")
        .spawn()
        .unwrap();
    for (slot, id) in (0..).zip(["req-a", "req-b", "req-c", "req-d"]) {
        ask(&server, slot, id);
    }
    assert!(wait_for_line(&server, STOPPED));
    assert_told(&index, &[&server], &["req-a", "req-b"]);
    assert_eq!(lines(&server).len(), 1, "{:?}", lines(&server));
    assert!(
        is_cached(&server, 0, "req-a"),
        "the server goes on as it was"
    );
    end_as_usual(server);
}

/// The channel is full, so events are lost. All live ids are reported as evicted, including those
/// whose events were lost. Then the ledger starts from empty, and is exact again.
#[test]
fn after_an_overflow_all_live_ids_are_reported_and_tracking_goes_on() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let stall = home.folder().with_extension("stall");
    let fault = format!("room:200,stall:{}", stall.display());
    let server = with_fault(home.server(&index, 4), fault).spawn().unwrap();
    ask(&server, 0, "req-a");
    ask(&server, 1, "req-b");
    assert!(index.posts().is_empty());

    std::fs::write(&stall, "").unwrap();
    let request = Request::completion("some prompt that goes on and on")
        .id("req-long")
        .slot(2)
        .predict(300);
    server.complete(&request).unwrap();
    // All events of this request are lost.
    ask(&server, 3, "req-stranded");
    assert!(index.posts().is_empty(), "the worker stands still");
    std::fs::remove_file(&stall).unwrap();
    let all = ["req-a", "req-b", "req-long", "req-stranded"];
    assert!(index.wait_until(|evicted| *evicted == ids(&all), PATIENCE));
    // `req-a` is still cached, although it was reported: after a gap the hook claims less.
    assert!(is_cached(&server, 0, "req-a"));
    // The ledger does not know what the slots hold. It knows a slot again once a new prompt has
    // overwritten it.
    ask(&server, 0, "req-c");
    ask(&server, 1, "req-d");
    assert_told(&index, &[&server], &all);
    assert!(is_cached(&server, 1, "req-d"));
    ask(&server, 0, "req-e");
    let later = [&all[..], &["req-c"]].concat();
    assert_told(&index, &[&server], &later);
    end_as_usual(server);
    assert_told(&index, &[], &[&later[..], &["req-d", "req-e"]].concat());
}
