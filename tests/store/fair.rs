//! Several prompts at once: who waits for whom, in batches. (How long a batch takes is the machine's affair.)

use std::fs;

use contextpilot_testbed::{Arch, Model, Server};

use super::{Stored, asking, folder, tokens};

/// Tokens of a batch of the server.
const BATCH: usize = 32;

/// The server fills its batches slot by slot. So a prompt in the first slot has its share of the next batch, whatever
/// the second slot evaluates, and what is loaded of it does not wait.
#[test]
fn a_short_prompt_is_loaded_while_a_long_one_is_evaluated() {
    let folder = folder();
    let trace = folder.path().join("trace");
    let builder = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2)
        .args(["-c", "32768", "-b", "32", "-ub", "32"])
        .env("CONTEXTPILOT_TRACE_FILE", &trace);
    let mut stored = Stored::start(&builder, &folder.path().join("store"));
    let (short, other, long) = (tokens(1, 320), tokens(2, 320), tokens(3, 4_000));
    stored.ask_slot(0, &short);
    stored.ask_slot(0, &other);
    stored.await_written();

    let mut connection = stored.server.connect().unwrap();
    let long = asking(&long)
        .slot(1)
        .streamed()
        .with("return_progress", true);
    let path = long.path().to_owned();
    connection
        .write(&contextpilot_testbed::Connection::request_bytes(
            "POST",
            &path,
            long.wire_body().as_bytes(),
        ))
        .unwrap();
    let head = connection.head().unwrap();
    connection
        .part(&head)
        .unwrap()
        .expect("the first batch was evaluated");
    let (_, account) = stored.ask_slot(0, &short);
    assert_eq!(account.from.store, 319, "{account:?}");
    while connection.part(&head).unwrap().is_some() {}
    stored.end();

    let trace = fs::read_to_string(&trace).unwrap();
    let lines: Vec<&str> = trace.lines().collect();
    let place = |text: &str, from: usize| {
        let found = lines[from..].iter().position(|line| line.contains(text));
        found
            .map(|at| from + at)
            .unwrap_or_else(|| panic!("no {text}"))
    };
    let long_begins = place("Launched { sequence: 1,", 0);
    let short_begins = place("Launched { sequence: 0,", long_begins);
    let short_ends = short_begins
        + lines[short_begins..]
            .iter()
            .position(|line| {
                line.contains("Submitted") && line.contains("seq 0: ") && line.contains('!')
            })
            .expect("the short prompt ends");
    let long_ends = place("..=3999!", long_begins);
    assert!(
        short_ends < long_ends,
        "the long prompt was not being evaluated any more"
    );
    let batches = |from: usize, to: usize| {
        let between = &lines[from..=to];
        between
            .iter()
            .filter(|line| line.contains("Submitted"))
            .count()
    };
    // Its own, and one that may have been made before it came.
    let waited = batches(short_begins, short_ends);
    assert!(waited <= 320 / BATCH + 1, "{waited} batches");
    // All in all the long prompt has waited for these, and for the tokens of the answer.
    let all = batches(long_begins, long_ends);
    assert!(
        all <= 4_000_usize.div_ceil(BATCH) + waited + 8,
        "{all} batches"
    );
}
