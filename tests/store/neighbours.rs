//! Servers that use one folder at once.

use std::fs;
use std::path::Path;

use contextpilot_testbed::until;

use super::{Stored, chunk_files, folder, one_slot, started, tokens};

/// Bytes of all chunks' files, in whole blocks.
pub(super) fn bytes(folder: &Path) -> u64 {
    let sizes = chunk_files(folder)
        .into_iter()
        .filter_map(|file| file.metadata().ok());
    sizes.map(|file| file.len().next_multiple_of(4096)).sum()
}

#[test]
fn a_server_loads_what_its_neighbour_wrote_a_moment_ago() {
    let folder = folder();
    let tea = tokens(34, 500);
    let mut one = Stored::start(&one_slot(), folder.path());
    let mut other = Stored::start(&one_slot(), folder.path());
    let plain = started(&one_slot());
    one.ask(&tea);
    one.ask(&tokens(35, 500));
    until("the neighbour sees the chunks", || {
        let chunks = one.figures().chunks;
        (chunks > 0 && other.figures().chunks == chunks).then_some(())
    });
    let (_, account) = other.compare(&plain, &tea);
    assert_eq!(account.from.store, 499, "{account:?}");
    // And the other way round, what only the neighbour's neighbour had.
    let sea = tokens(36, 400);
    other.ask(&sea);
    other.ask(&tea);
    until("its chunks are seen, too", || {
        (one.figures().chunks == other.figures().chunks).then_some(())
    });
    let (_, account) = one.compare(&plain, &sea);
    assert_eq!(account.from.store, 399, "{account:?}");
}

#[test]
fn what_is_removed_leaves_the_neighbours_too() {
    let folder = folder();
    let mut one = Stored::start(&one_slot(), folder.path());
    let other = Stored::start(&one_slot(), folder.path());
    one.ask(&tokens(37, 500));
    one.ask(&tokens(38, 500));
    // What is written only afterwards would stay.
    one.await_written();
    until("the neighbour sees the chunks", || {
        (other.figures().chunks > 0).then_some(())
    });
    for file in chunk_files(folder.path()) {
        fs::remove_file(file).unwrap();
    }
    until("nobody counts what is gone", || {
        let chunks = [&one, &other].map(|server| server.figures().chunks);
        (chunks == [0, 0]).then_some(())
    });
    let (_, account) = one.compare(&started(&one_slot()), &tokens(37, 500));
    assert_eq!(account.from.store, 0, "{account:?}");
}

/// 700 tokens, of which the first is of this prompt alone: what two servers write for one place at the same
/// moment each of them knows alone.
fn prompt(nth: u64) -> Vec<u32> {
    let mut tokens = tokens(40 + nth, 700);
    tokens[0] = 300 + nth as u32;
    tokens
}

#[test]
fn the_budget_is_one() {
    const BUDGET: u64 = 1_000_000;
    let folder = folder();
    let plain = started(&one_slot());
    let start = || Stored::start_within(&one_slot(), folder.path(), "0.001");
    let mut servers = [start(), start()];
    let mut written = 0;
    for round in 0..6 {
        for (nth, server) in servers.iter_mut().enumerate() {
            server.compare(&plain, &prompt(2 * round + nth as u64));
            written += 700 * 512;
        }
    }
    assert!(written > 3 * BUDGET, "{written}");
    until("both agree, within the budget", || {
        let counted = [&servers[0], &servers[1]].map(|server| server.figures().bytes);
        let there = bytes(folder.path());
        (there > BUDGET / 3 && there <= BUDGET && counted == [there; 2]).then_some(())
    });
}
