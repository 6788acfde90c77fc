//! What the next server has of conversations that were in slots.

use contextpilot_testbed::{Arch, Builder, Model, Server};

use super::{SIGKILL, SIGTERM, Stored, folder, tokens};

const SIGINT: i32 = 2;

fn two_slots() -> Builder {
    Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2)
        .args(["-c", "8192"])
}

/// The conversations of two slots go on after a server's end. How many tokens of their next prompts, which
/// have 700 and 500, then come from the store.
fn loaded_after(signal: i32) -> [u64; 2] {
    let folder = folder();
    let (tea, sea) = (tokens(30, 650), tokens(31, 450));
    let mut first = Stored::start(&two_slots(), folder.path());
    first.ask_slot(0, &tea);
    first.ask_slot(1, &sea);
    first.server.stop(signal).unwrap();

    let mut next = Stored::start(&two_slots(), folder.path());
    [(0, tea, 32), (1, sea, 33)].map(|(slot, mut prompt, seed)| {
        prompt.extend(tokens(seed, 50));
        let (_, account) = next.ask_slot(slot, &prompt);
        assert_eq!(
            account.from.store + account.evaluated,
            prompt.len() as u64,
            "{account:?}"
        );
        account.from.store
    })
}

#[test]
fn what_slots_hold_is_stored_at_an_orderly_end() {
    for signal in [SIGTERM, SIGINT] {
        let [tea, sea] = loaded_after(signal);
        // The answer is stored as well, and may begin as the next prompt goes on.
        assert!((650..=654).contains(&tea), "signal {signal}: {tea}");
        assert!((450..=454).contains(&sea), "signal {signal}: {sea}");
    }
}

/// The limit that docs/store.md states: nothing copies a slot's tokens before they are about to be lost.
#[test]
fn what_only_slots_hold_is_gone_after_a_kill() {
    assert_eq!(loaded_after(SIGKILL), [0, 0]);
}
