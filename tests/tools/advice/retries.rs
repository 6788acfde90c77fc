//! A client that gives up in the middle of its prompt, and asks again.
//!
//! The server looks whether a client is still there when nothing was sent for a second, and lets go between two batches. A client
//! that asks again before that gets another slot, and all is evaluated again.

use contextpilot_testbed::Connection;

use super::*;

/// How many requests the server works on.
fn at_work(watched: &Watched) -> u64 {
    let metrics = watched.server.get("/metrics").unwrap().text();
    let mut lines = metrics.lines();
    let number = lines.find_map(|line| line.strip_prefix("llamacpp:requests_processing "));
    number.expect("--metrics").trim().parse().unwrap()
}

/// What `why` says of the request that was given up, and of the one that came then; and a server that knows both.
fn play(waits: bool, settings: &[(&str, &std::ffi::OsStr)]) -> (Value, Value, Watched) {
    // A token at a time in one thread, so that the prompt takes seconds on any machine.
    let flags = "-c 16384 --metrics -t 1 -b 128 -ub 1";
    let server = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2)
        .args(flags.split_whitespace());
    let server = settings
        .iter()
        .fold(server, |server, (name, value)| server.env(name, value));
    let mut watched = Watched::start(server);
    let request = Request::completion(tokens(1, 6_000)).predict(2);
    watched.server.await_ready().unwrap();
    let mut first = Connection::open(watched.server.address()).unwrap();
    let body = request.body().to_string();
    let bytes = Connection::request_bytes("POST", request.path(), body.as_bytes());
    first.write(&bytes).unwrap();
    until("the server works on it", || {
        (at_work(&watched) == 1).then_some(())
    });
    if waits {
        drop(first);
        // Questions to the server itself would keep it from looking.
        until("the server has let go of it", || {
            let text = watched.text(&["why", "--json"]);
            let is_left = |text: &str| json(text)["evaluation"]["given_up"] == true;
            text.lines().next().is_some_and(is_left).then_some(())
        });
        watched.complete(request);
    } else {
        // However slow the machine is: the server has let go of nothing yet.
        let mut second = Connection::open(watched.server.address()).unwrap();
        second.write(&bytes).unwrap();
        until("the server works on both", || {
            (at_work(&watched) == 2).then_some(())
        });
        drop(first);
        assert_eq!(second.response().unwrap().status, 200);
    }
    let [left, again] = until("both are explained", || {
        let text = watched.text(&["why", "--last", "2", "--worth", "0", "--json"]);
        let both: Vec<Value> = text.lines().map(json).collect();
        let is_told = |one: &Value| one["evaluation"]["prompt_tokens"] == 6_000;
        let both: [Value; 2] = both.try_into().ok()?;
        let is_left = both[0]["evaluation"]["given_up"] == true;
        (is_left && is_told(&both[1])).then_some(both)
    });
    (left, again, watched)
}

#[test]
fn who_asks_again_too_early_is_told_to_wait() {
    let evaluated = |one: &Value| one["evaluation"]["evaluated"].as_u64().unwrap();
    let (left, again, watched) = play(false, &[]);
    let begun = evaluated(&left);
    assert!(begun > 0 && begun < 6_000, "{left}");
    // How much is begun differs from run to run.
    let is_kept = |advice: &Value, left: &Value, then: &Value| {
        let kept = evaluated(left);
        let saved = evaluated(&again) - evaluated(then);
        println!(
            "  promised {begun} of {begun} that were begun, saved {saved} of {kept}: {}",
            advice["text"]
        );
        assert_eq!(saved, kept, "{then}");
    };
    let advice = again["advice"].as_array().expect("a list");
    let is_it = |one: &&Value| one["client"] == "late_retry";
    let advice = advice.iter().find(is_it);
    let advice = advice.unwrap_or_else(|| panic!("{again}"));
    let said = watched.text(&["why", "--worth", "0"]);
    print!("{said}");
    let words = "it came before the server had let go of what was given up";
    assert!(said.contains(words), "{said}");
    assert!(said.contains("for 1 request until then"), "{said}");
    assert!(
        said.contains("clients gave up 1 request before it"),
        "{said}"
    );
    assert_eq!(advice["tokens"], begun, "{advice}");
    // What had been evaluated when it got another slot; the one that was given up went on for a while.
    let busy = &again["evaluation"]["causes"]["elsewhere"]["busy"];
    let busy = busy.as_u64().unwrap();
    assert!(busy > 0 && busy <= begun, "{again}");
    assert!(said.contains(" in a busy slot"), "{said}");
    let advised = watched.json(&["advise"]);
    let alone = advised["alone"].as_array().expect("a list");
    assert!(
        alone.iter().any(|one| one["client"] == "late_retry"),
        "{advised}"
    );

    let (left, waited, watched) = play(true, &[]);
    is_kept(advice, &left, &waited);
    let said = watched.text(&["why", "--worth", "0"]);
    assert!(!said.contains(words), "{said}");

    let is_store = |one: &&Value| one["setting"][1] == "CONTEXTPILOT_STORE_GB=1";
    let advice = again["advice"].as_array().expect("a list");
    let advice = advice.iter().find(is_store);
    let advice = advice.unwrap_or_else(|| panic!("{again}"));
    assert_eq!(advice["tokens"], begun, "{advice}");
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        ("CONTEXTPILOT_STORE", folder.path().as_os_str()),
        ("CONTEXTPILOT_STORE_GB", "1".as_ref()),
    ];
    let (left, loaded, _watched) = play(false, &settings);
    is_kept(advice, &left, &loaded);
}
