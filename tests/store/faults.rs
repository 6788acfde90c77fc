//! States that the engine does not take: what it lost is evaluated again, and the server does not notice.
#![cfg(debug_assertions)] // A release build has no errors on demand.

use contextpilot_testbed::Builder;

use super::{Stored, folder, one_slot, started, tokens};

/// From the nth load on, the engine gets half a state.
fn refusing(nth: u32) -> Builder {
    one_slot().env("CONTEXTPILOT_FAULT", format!("load:{nth}"))
}

#[test]
fn a_refused_state_is_evaluated() {
    let folder = folder();
    let mut stored = Stored::start(&refusing(1), folder.path());
    let plain = started(&one_slot());
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    for prompt in [&tea, &sea, &tea, &sea] {
        let account = stored.ask_as(&plain, prompt);
        assert_eq!((account.from.store, account.evaluated), (0, 600));
    }
    let figures = stored.figures();
    assert!(figures.failed_loads >= 2, "{figures:?}");
    assert_eq!((figures.loads, figures.loaded_tokens), (0, 0));
}

/// The server believes that the slot holds a part of the prompt, and the failed load took that away.
#[test]
fn what_the_slot_held_is_evaluated_again_after_a_refused_state() {
    let folder = folder();
    let mut stored = Stored::start(&refusing(1), folder.path());
    let plain = started(&one_slot());
    let tea = tokens(1, 900);
    let short: Vec<u32> = tea[..300].iter().copied().chain(tokens(3, 10)).collect();
    let longer: Vec<u32> = tea.iter().copied().chain(tokens(4, 20)).collect();
    for prompt in [&tea, &short, &longer, &tokens(2, 50), &tea] {
        let account = stored.ask_as(&plain, prompt);
        assert_eq!(account.from.store, 0);
    }
    let figures = stored.figures();
    assert!(figures.failed_loads >= 2, "{figures:?}");
    let said = stored.server.stderr();
    assert!(said.contains("300 tokens are evaluated again"), "{said}");
}

/// The first loads are taken, a later one is not: what was stored before stays right.
#[test]
fn a_later_refused_state_spoils_nothing() {
    let folder = folder();
    let mut stored = Stored::start(&refusing(2), folder.path());
    let plain = started(&one_slot());
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    for prompt in [&tea, &sea, &tea, &sea, &tea] {
        stored.ask_as(&plain, prompt);
    }
    let figures = stored.figures();
    assert_eq!((figures.loads, figures.loaded_tokens), (1, 599));
    drop(stored);
    let (mut next, plain) = (
        Stored::start(&one_slot(), folder.path()),
        started(&one_slot()),
    );
    for prompt in [&tea, &sea] {
        let account = next.ask_as(&plain, prompt);
        assert_eq!(account.from.store, 599, "{account:?}");
    }
}
