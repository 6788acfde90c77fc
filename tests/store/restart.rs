//! What the next server has of conversations that were in slots.

use contextpilot_testbed::{Arch, Builder, Model, Server, until};

use super::{SIGKILL, SIGTERM, Stored, folder, tokens};

const SIGINT: i32 = 2;

fn two_slots() -> Builder {
    Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2)
        .args(["-c", "8192"])
}

/// The conversations of two slots go on after a server's end, once what is stored before it is on disk. How many tokens
/// of their next prompts, which have 700 and 500, then come from the store.
fn loaded_after(signal: i32) -> [u64; 2] {
    let folder = folder();
    let (tea, sea) = (tokens(30, 650), tokens(31, 450));
    let mut first = Stored::start(&two_slots(), folder.path());
    first.ask_slot(0, &tea);
    first.ask_slot(1, &sea);
    until("both are stored", || {
        (first.figures().chunks >= 2).then_some(())
    });
    first.await_written();
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

/// What is stored of an answer may begin as the next prompt goes on: an orderly end saves all of it, a kill leaves
/// what was saved when the answer began.
#[test]
fn what_slots_hold_is_stored_at_any_end() {
    for (signal, answer) in [(SIGTERM, 4), (SIGINT, 4), (SIGKILL, 1)] {
        let [tea, sea] = loaded_after(signal);
        assert!(
            (650..=650 + answer).contains(&tea),
            "signal {signal}: {tea}"
        );
        assert!(
            (450..=450 + answer).contains(&sea),
            "signal {signal}: {sea}"
        );
    }
}

/// A few tokens more than what is stored are not worth a copy of all until they are about to be lost.
#[test]
fn what_a_conversation_grew_by_may_be_gone_after_a_kill() {
    let folder = folder();
    let tea = tokens(34, 3000);
    let longer: Vec<u32> = tea.iter().copied().chain(tokens(35, 20)).collect();
    let mut first = Stored::start(&two_slots(), folder.path());
    first.ask_slot(0, &tea);
    let saves = first.figures().saves;
    assert_eq!(saves, 1);
    first.ask_slot(0, &longer);
    assert_eq!(first.figures().saves, saves, "20 of 3,020 tokens");
    // Now they are about to be lost. Whether they are worth it depends on what was measured.
    first.ask_slot(0, &tokens(36, 500));
    first.end();
    let mut next = Stored::start(&two_slots(), folder.path());
    let (_, account) = next.ask_slot(0, &longer);
    assert!(account.from.store >= 3000, "{account:?}");
}
