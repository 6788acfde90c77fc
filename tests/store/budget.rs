//! Budgets that nothing fits, or almost nothing.

use contextpilot_testbed::until;

use super::{SIGTERM, Stored, chunk_files, folder, one_slot, started, tokens};

/// A chunk of 256 tokens of the tiny model takes 132 kB. 0.000004: less than the smallest file.
const TOO_SMALL: [(&str, u64); 3] = [("0", 0), ("0.000004", 4_000), ("0.0001", 100_000)];

#[test]
fn a_budget_that_no_chunk_fits_keeps_nothing_and_costs_no_copy() {
    let plain = started(&one_slot());
    for (budget, bytes) in TOO_SMALL {
        let folder = folder();
        let mut stored = Stored::start_within(&one_slot(), folder.path(), budget);
        let (tea, sea) = (tokens(1, 600), tokens(2, 600));
        for prompt in [&tea, &sea, &tea, &sea] {
            let account = stored.ask_as(&plain, prompt);
            assert_eq!(account.from.store, 0, "{budget}: {account:?}");
        }
        let figures = stored.figures();
        assert_eq!(figures.limit_bytes, bytes);
        assert_eq!((figures.chunks, figures.bytes), (0, 0), "{figures:?}");
        assert_eq!((figures.loads, figures.saves), (0, 0), "{figures:?}");
        // Nothing was copied out of the engine.
        assert!(figures.save_seconds == 0.0, "{figures:?}");
        assert_eq!(figures.refused, [""; 0]);
        assert_eq!(figures.problem, None);
        stored.server.stop(SIGTERM).unwrap();
        assert!(chunk_files(folder.path()).is_empty(), "{budget}");
    }
}

/// What fits of a prompt is kept: its beginning. Another prompt takes its place.
#[test]
fn of_a_prompt_that_is_larger_than_the_budget_the_beginning_is_kept() {
    let folder = folder();
    let plain = started(&one_slot());
    // Two chunks.
    let mut stored = Stored::start_within(&one_slot(), folder.path(), "0.0003");
    let (tea, sea) = (tokens(3, 900), tokens(4, 900));
    for prompt in [&tea, &sea, &tea] {
        let account = stored.ask_as(&plain, prompt);
        assert_eq!(account.from.store, 0, "{account:?}");
        // So few that they are not kept.
        stored.ask_as(&plain, &[301, 302]);
        let account = stored.ask_as(&plain, prompt);
        assert_eq!(account.from.store, 512, "{account:?}");
        let figures = stored.figures();
        assert_eq!(figures.chunks, 2, "{figures:?}");
        assert!(figures.bytes <= 300_000, "{figures:?}");
    }
}

#[test]
fn what_is_there_goes_at_a_start_with_a_budget_of_nothing() {
    let folder = folder();
    let mut first = Stored::start(&one_slot(), folder.path());
    first.ask(&tokens(1, 600));
    first.server.stop(SIGTERM).unwrap();
    assert!(!chunk_files(folder.path()).is_empty());
    let mut second = Stored::start_within(&one_slot(), folder.path(), "0");
    until("the files are gone", || {
        chunk_files(folder.path()).is_empty().then_some(())
    });
    let account = second.ask_as(&started(&one_slot()), &tokens(1, 600));
    assert_eq!(account.from.store, 0, "{account:?}");
    assert_eq!(second.figures().problem, None);
}
