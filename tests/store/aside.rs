//! What is evaluated before it is known what is in the model's file.
#![cfg(debug_assertions)] // A release build does not wait with the digest.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use contextpilot_testbed::{Arch, Builder, Model, Server};

use super::{SIGTERM, Stored, await_store, folder, one_slot, started, tokens};

/// While this file exists, the digest is not made.
fn hold(own: &Path) -> PathBuf {
    let held = own.join("held");
    fs::write(&held, "").unwrap();
    held
}

fn start_held(builder: &Builder, folder: &Path, held: &Path) -> Stored {
    let fault = format!("digest:{}", held.display());
    let builder = builder.clone().env("CONTEXTPILOT_FAULT", fault);
    let stored = Stored::start_unready(&builder, folder, "1");
    assert!(!stored.figures().ready);
    stored
}

fn slot_of(arch: Arch) -> Builder {
    Server::builder()
        .model(&Model::tiny(arch))
        .bare_slots(1)
        .args(["-c", "4096"])
}

#[test]
fn what_was_lost_before_the_digest_was_there_is_stored_then() {
    for (arch, least) in [(Arch::Llama, 699), (Arch::Mamba, 690), (Arch::Gemma2, 690)] {
        let (folder, own) = (folder(), folder());
        let plain = started(&slot_of(arch));
        let [tea, sea, fog] = [51, 52, 53].map(|seed| tokens(seed, 700));
        let held = hold(own.path());
        let mut first = start_held(&slot_of(arch), folder.path(), &held);
        for prompt in [&tea, &sea] {
            let (_, account) = first.compare(&plain, prompt);
            assert_eq!(account.from.store, 0, "{account:?}");
        }
        let (_, account) = first.compare(&plain, &tea);
        assert_eq!(account.from.store, 0, "nothing is loaded yet: {account:?}");
        first.compare(&plain, &fog);
        assert_eq!(first.figures().chunks, 0);
        fs::remove_file(&held).unwrap();
        await_store(&first.control);
        for prompt in [&tea, &sea] {
            let (_, account) = first.compare(&plain, prompt);
            assert!(account.from.store >= least, "{arch:?}: {account:?}");
        }
        first.end();
        let mut second = Stored::start(&slot_of(arch), folder.path());
        for prompt in [&fog, &tea, &sea] {
            let (_, account) = second.compare(&plain, prompt);
            assert!(account.from.store >= least, "{arch:?}: {account:?}");
        }
    }
}

/// Where nothing is asked any more, what a process has evaluated is stored when it ends.
#[test]
fn a_process_that_ends_before_the_digest_is_there_waits_for_it() {
    let (folder, own) = (folder(), folder());
    let [tea, sea] = [54, 55].map(|seed| tokens(seed, 500));
    let held = hold(own.path());
    let mut first = start_held(&one_slot(), folder.path(), &held);
    first.ask(&tea);
    first.ask(&sea);
    first.server.signal(SIGTERM);
    // It frees its context meanwhile. Were it not to wait, it would be gone by then.
    thread::sleep(Duration::from_millis(500));
    fs::remove_file(&held).unwrap();
    // A second signal would end it at once.
    first.server.wait(Duration::from_secs(30)).unwrap();
    let mut second = Stored::start(&one_slot(), folder.path());
    for prompt in [&tea, &sea] {
        let (_, account) = second.ask(prompt);
        assert_eq!(account.from.store, 499, "{account:?}");
    }
}
