//! A thread of ours has the store's tree when a prompt wants it, and does not go on: it has a low priority, and may have
//! lost the processor.
#![cfg(debug_assertions)] // A release build has no errors on demand.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use contextpilot_testbed::until;

use super::{Stored, folder, one_slot, started, tokens};

/// A server whose thread that tells routers keeps the tree as long as there is a file here.
fn holding(held: &Path, folder: &Path) -> Stored {
    let builder = one_slot()
        .env("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:0")
        .env("CONTEXTPILOT_FAULT", format!("index:{}", held.display()));
    Stored::start(&builder, folder)
}

fn hold(held: &Path) {
    fs::write(held, "").unwrap();
    until("the thread that tells routers has the tree", || {
        (fs::read(held).unwrap() == b"held").then_some(())
    });
}

#[test]
fn a_prompt_does_not_wait_for_ever_for_a_thread_that_keeps_the_tree() {
    let (folder, own) = (folder(), folder());
    let held = own.path().join("held");
    let mut stored = holding(&held, folder.path());
    let plain = started(&one_slot());
    let [tea, sea, owl] = [1, 2, 3].map(|seed| tokens(seed, 600));
    for prompt in [&tea, &sea] {
        stored.ask_as(&plain, prompt);
    }
    hold(&held);
    // What is stored is not found, and what is lost is not stored.
    for prompt in [&tea, &owl, &tea] {
        let account = stored.ask_as(&plain, prompt);
        assert_eq!((account.from.store, account.evaluated), (0, 600));
    }
    fs::remove_file(&held).unwrap();
    let before = stored.figures();
    until("the tree can be read again", || {
        stored.ask_as(&plain, &owl);
        (stored.ask_as(&plain, &tea).from.store == 599).then_some(())
    });
    let after = stored.figures();
    assert!(after.loads > before.loads, "{after:?}");
    assert_eq!((after.failed_loads, after.problem), (0, None));
    assert_eq!(after.refused, [""; 0]);
    // What was evaluated meanwhile is known as well as ever.
    assert_eq!(stored.ask_as(&plain, &owl).from.store, 599);
}

/// A pause that is shorter than evaluating the prompt: the prompt is loaded when it is over.
#[test]
fn a_prompt_waits_for_a_thread_that_keeps_the_tree_for_a_moment() {
    const PAUSE: Duration = Duration::from_millis(40);
    let (folder, own) = (folder(), folder());
    let held = own.path().join("held");
    let mut stored = holding(&held, folder.path());
    let [tea, sea] = [1, 2].map(|seed| tokens(seed, 2000));
    stored.ask(&tea);
    // On a busy machine the pause may be over before the prompt is there, or last longer than the prompt waits.
    let mut rounds = 0..20;
    let is_loaded = rounds.any(|_| {
        stored.ask(&sea);
        hold(&held);
        let account = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(PAUSE);
                fs::remove_file(&held).unwrap();
            });
            stored.ask(&tea).1
        });
        let has_waited = account.seconds >= Some(PAUSE.as_secs_f64() / 2.0);
        has_waited && account.from.store == 1999
    });
    assert!(is_loaded);
}

#[test]
fn the_end_does_not_wait_for_a_thread_that_keeps_the_tree() {
    let (folder, own) = (folder(), folder());
    let held = own.path().join("held");
    let builder = one_slot().env("CONTEXTPILOT_FAULT", format!("index:{}", held.display()));
    let mut stored = Stored::start(&builder, folder.path());
    stored.ask(&tokens(1, 600));
    fs::write(&held, "").unwrap();
    until("the thread that looks at the folder has the tree", || {
        (fs::read(&held).unwrap() == b"held").then_some(())
    });
    // It never lets go, and the server ends.
    stored.end();
    assert!(held.exists());
}
