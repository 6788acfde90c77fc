//! A folder with many chunks: prompts are looked up by its index, while all of it is read.
#![cfg(debug_assertions)] // A release build does not wait with reading.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contextpilot_kv_files::{Folder, Writer};
use contextpilot_kv_store::{Fingerprint, Store};
use contextpilot_testbed::until;

use super::{SIGTERM, Stored, folder, one_slot, started, tokens};

/// So many chunks have an index.
const MANY: i32 = 4096;

/// Chunks of another model.
fn fill(at: &Path) {
    let folder = Folder::open(at).unwrap();
    let writer = Writer::start(folder, u64::MAX, || (), || false).unwrap();
    let rows = Arc::new(vec![0; 8]);
    for prompt in 0..MANY {
        let made = Store::new(0).missing(&Fingerprint([5; 16]), &[prompt], 8);
        writer.write(&made[0], Arc::clone(&rows)).unwrap();
    }
    // A busy disk takes more than a minute for as many files.
    assert!(writer.flush(Duration::from_secs(600)));
}

/// Waits until all of the folder has been read.
fn read_all(store: &Stored) {
    until("all of the folder has been read", || {
        (store.figures().chunks > MANY as u64).then_some(())
    });
}

#[test]
fn a_prompt_is_loaded_before_the_folder_has_been_read() {
    let (folder, own) = (folder(), folder());
    fill(folder.path());
    let index = folder.path().join("v1/index");
    let plain = started(&one_slot());
    let tea = tokens(41, 700);
    let branch = [&tea[..300], &tokens(42, 500)].concat();
    let grown = [&tea[..], &tokens(43, 300)].concat();
    let mut first = Stored::start(&one_slot(), folder.path());
    for prompt in [&tea, &branch] {
        first.ask(prompt);
    }
    first.end();
    assert_eq!(
        index.metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );

    let waits = own.path().join("waits");
    fs::write(&waits, "").unwrap();
    let reading = format!("reading:{}", waits.display());
    let mut second = Stored::start(
        &one_slot().env("CONTEXTPILOT_FAULT", reading.clone()),
        folder.path(),
    );
    assert_eq!(second.figures().chunks, 0);
    for (prompt, evaluated) in [(&tea, 1), (&branch, 1), (&grown, 300)] {
        let (_, account) = second.compare(&plain, prompt);
        assert_eq!(account.evaluated, evaluated, "{account:?}");
        assert!(account.from.store > 0, "{account:?}");
    }
    // It ends before it has read anything else, and what is new is found by the next one.
    second.server.stop(SIGTERM).unwrap();
    let mut third = Stored::start(
        &one_slot().env("CONTEXTPILOT_FAULT", reading),
        folder.path(),
    );
    let (_, account) = third.compare(&plain, &grown);
    assert_eq!(account.from.store, 999, "{account:?}");
    fs::remove_file(&waits).unwrap();
    read_all(&third);
    // A damaged index is none.
    third.end();
    fs::write(&index, "other").unwrap();
    let mut fourth = Stored::start(&one_slot(), folder.path());
    read_all(&fourth);
    let (_, account) = fourth.compare(&plain, &branch);
    assert_eq!(account.from.store, 799, "{account:?}");
}
