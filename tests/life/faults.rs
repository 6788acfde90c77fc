//! Errors of our own, made on demand: the server does not notice, the index is told.

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

/// At whichever event: one may be a request's arrival, another the end of its prompt.
#[test]
fn after_a_panic_in_the_ledger_all_live_ids_are_reported() {
    for event in [12, 13, 14, 15, 16, 20, 40] {
        let (home, index) = (Home::new(), Index::start().unwrap());
        let stall = home.folder().with_extension("stall");
        let fault = format!("ledger:{event},stall:{}", stall.display());
        let server = with_fault(home.server(&index, 4), fault).spawn().unwrap();
        // Until both are answered nothing is worked on, so that it is known what has arrived.
        std::fs::write(&stall, "").unwrap();
        let prompt = "some prompt that goes on and on";
        let long = Request::completion(prompt).id("req-a").slot(0).predict(30);
        server.complete(&long).unwrap();
        ask(&server, 1, "req-b");
        assert!(lines(&server).is_empty(), "event {event} is too early");
        std::fs::remove_file(&stall).unwrap();
        assert!(wait_for_line(&server, STOPPED), "{:?}", lines(&server));
        // What was taken back with the ledger may be taken back again with its late events.
        let expected = ids(&["req-a", "req-b"]);
        assert!(index.wait_until(|evicted| *evicted == expected, PATIENCE));

        // From now on it is a plain server.
        ask(&server, 0, "req-after");
        assert!(is_cached(&server, 0, "req-after"));
        let ours = lines(&server);
        assert_eq!(ours.len(), 1, "{ours:?}");
        end_as_usual(server);
        assert_eq!(index.evicted(), expected);
        assert!(home.files().is_empty(), "all was told");
    }
}

/// What cannot be told at once is told later, or by the next start.
#[test]
fn after_a_panic_while_the_index_is_away_ids_are_reported_later() {
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
fn a_panic_in_a_hook_does_not_reach_the_server() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let server = with_fault(home.server(&index, 4), "hook:3")
        .spawn()
        .unwrap();
    for (slot, id) in (0..).zip(["req-a", "req-b", "req-c", "req-d"]) {
        ask(&server, slot, id);
    }
    assert!(wait_for_line(&server, STOPPED));
    assert_told(&index, &["req-a", "req-b"]);
    assert_eq!(lines(&server).len(), 1, "{:?}", lines(&server));
    assert!(
        is_cached(&server, 0, "req-a"),
        "the server goes on as it was"
    );
    end_as_usual(server);
}

/// The channel is full: everything is taken back, also the requests of which the ledger never
/// heard; and then it starts over, as exact as before.
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
    // There is no room for anything of this one.
    ask(&server, 3, "req-stranded");
    assert!(index.posts().is_empty(), "the worker stands still");
    std::fs::remove_file(&stall).unwrap();
    let all = ["req-a", "req-b", "req-long", "req-stranded"];
    assert!(index.wait_until(|evicted| *evicted == ids(&all), PATIENCE));
    // It is said less than there is: these are cached, and nobody was told so.
    assert!(is_cached(&server, 0, "req-a"));
    // What these slots hold it has not seen, and nobody empties them. From what is overwritten on
    // it knows them again.
    ask(&server, 0, "req-c");
    ask(&server, 1, "req-d");
    assert_told(&index, &all);
    assert!(is_cached(&server, 1, "req-d"));
    ask(&server, 0, "req-e");
    let later = [&all[..], &["req-c"]].concat();
    assert_told(&index, &later);
    end_as_usual(server);
    assert_told(&index, &[&later[..], &["req-d", "req-e"]].concat());
}
