//! `POST /match` for prompts that begin like those of earlier requests: what the engine would reuse, and what would be loaded.

use std::process::Command;
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_control::{Like, Match, RequestState};
use contextpilot_testbed::until;

use super::{Stored, asking, exact, folder, one_slot, tokens};

fn like(control: &Control, id: &str, common: usize, tokens: usize) -> Match {
    let like = Like {
        id: id.to_owned(),
        common: common as u32,
        tokens: tokens as u32,
    };
    let found = control.matching_like(&like, Duration::from_secs(10));
    found.unwrap()
}

fn await_eviction(control: &Control, id: &str) {
    until("it is evicted", || {
        let state = control.request(id).unwrap();
        matches!(state, RequestState::Evicted { .. }).then_some(())
    });
}

/// The first tokens of one prompt, and others behind them.
fn parting(prompt: &[u32], common: usize, seed: u64) -> Vec<u32> {
    let mut all = prompt[..common].to_vec();
    // Not by chance the same token.
    all.push(299);
    all.extend(tokens(seed, 200));
    all
}

#[test]
fn what_an_evicted_request_left_in_the_store_is_told_and_then_loaded() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    stored.ask(&tea);
    stored.ask(&sea);
    await_eviction(&stored.control, "req-1");
    for (common, seed) in [(400, 11), (256, 12), (599, 13)] {
        let prompt = parting(&tea, common, seed);
        let found = like(&stored.control, "req-1", common, prompt.len());
        assert_eq!(found.tokens, prompt.len() as u64);
        assert_eq!(found.stored, Some(common as u64), "{found:?}");
        let (_, account) = stored.ask(&prompt);
        assert_eq!(
            (account.reused, account.from.store),
            (found.reused + found.loaded.unwrap(), found.loaded.unwrap()),
            "{found:?} {account:?}"
        );
        assert!(account.from.store > 200, "{account:?}");
        stored.ask(&sea);
    }
    // By its id and by its tokens, the same prompt has the same.
    let ids: Vec<i32> = tea.iter().map(|&token| token as i32).collect();
    let by_tokens = stored.control.matching(&ids).unwrap();
    assert_eq!(like(&stored.control, "req-1", 600, 600), by_tokens);
    assert_eq!(
        (by_tokens.stored, by_tokens.loaded),
        (Some(600), Some(599 - by_tokens.reused)),
        "the last token is evaluated"
    );

    // What is written only afterwards would stay.
    stored.await_written();
    let clear = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"))
        .args(["store", "clear", "--folder"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(clear.status.success(), "{clear:?}");
    until("the server has seen that the folder is empty", || {
        let found = like(&stored.control, "req-1", 400, 700);
        (found.stored == Some(0)).then_some(())
    });
    let prompt = parting(&tea, 400, 14);
    let found = like(&stored.control, "req-1", 400, prompt.len());
    assert_eq!(found.loaded, Some(0), "{found:?}");
    let (_, account) = stored.ask(&prompt);
    assert_eq!(account.from.store, 0, "{account:?}");
}

/// A server that warms up knows the layout of its states before the first prompt.
#[test]
fn what_an_earlier_server_left_is_told_before_the_first_prompt() {
    let folder = folder();
    let tea = tokens(1, 600);
    let mut earlier = Stored::start(&one_slot(), folder.path());
    earlier.ask(&tea);
    earlier.end();

    let mut later = Stored::start(&one_slot(), folder.path());
    let ids: Vec<i32> = tea.iter().map(|&token| token as i32).collect();
    let found = until("the store is told", || {
        let found = later.control.matching(&ids).unwrap();
        found.stored.is_some().then_some(found)
    });
    assert_eq!((found.stored, found.loaded), (Some(600), Some(599)));
    let (_, account) = later.ask(&tea);
    assert_eq!(account.from.store, 599, "{account:?}");
}

#[test]
fn of_a_prompt_whose_end_left_the_store_the_beginning_is_told() {
    let folder = folder();
    // Two chunks.
    let mut stored = Stored::start_within(&one_slot(), folder.path(), "0.0003");
    let tea = tokens(3, 900);
    stored.ask(&tea);
    stored.ask(&[301, 302]);
    await_eviction(&stored.control, "req-1");
    let found = like(&stored.control, "req-1", 800, 1000);
    assert_eq!((found.stored, found.loaded), (Some(512), Some(512)));
    let (_, account) = stored.ask(&parting(&tea, 800, 5));
    assert_eq!(account.from.store, 512, "{account:?}");
}

#[test]
fn what_another_slot_holds_is_told_as_loaded() {
    let folder = folder();
    let two = one_slot().args(["--parallel", "2", "--no-kv-unified"]);
    let mut stored = Stored::start(&two, folder.path());
    let tea = tokens(6, 600);
    stored.ask_slot(1, &tokens(7, 600));
    stored.ask_slot(0, &tea);
    // Less than a tenth of the prompt: the server does not choose the slot for that.
    let mut prompt = tea[..60].to_vec();
    prompt.push(299);
    prompt.extend(tokens(8, 700));
    let found = like(&stored.control, "req-2", 60, prompt.len());
    assert_eq!((found.slot, found.reused), (Some(1), 0), "{found:?}");
    assert_eq!(found.loaded, Some(60), "{found:?}");
    let (_, account) = stored.ask(&prompt);
    assert_eq!(account.from.store, 60, "{account:?}");
}

/// There a prompt is loaded up to a state that lies on its way.
#[test]
fn of_a_model_that_cannot_go_back_it_is_told_as_far_as_there_is_a_state() {
    for arch in exact::ALL {
        let folder = folder();
        let mut stored = Stored::start(&exact::one_slot(arch), folder.path());
        let (tea, sea) = (tokens(1, 600), tokens(2, 600));
        let longer = [&tea[..], &tokens(3, 300)].concat();
        let turned_off = [&tea[..400], &tokens(4, 300)].concat();
        stored.ask(&tea);
        let mut loads = Vec::new();
        for prompt in [&tea, &longer, &longer, &turned_off, &tea] {
            stored.ask(&sea);
            let ids: Vec<i32> = prompt.iter().map(|&token| token as i32).collect();
            let found = stored.control.matching(&ids).unwrap();
            let (_, account) = stored.ask(prompt);
            assert_eq!(
                (Some(account.from.store), account.reused),
                (found.loaded, found.reused + found.loaded.unwrap_or(0)),
                "{arch}: {found:?} {account:?}"
            );
            assert!(found.stored >= found.loaded, "{arch}: {found:?}");
            loads.push(account.from.store);
        }
        assert!(
            loads[..3].iter().all(|&tokens| tokens > 500),
            "{arch}: {loads:?}"
        );
        assert!(loads[3] <= 400, "{arch}: {loads:?}");
    }
}

#[test]
fn without_a_store_an_evicted_request_is_like_nothing() {
    let mut server = one_slot()
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .observed()
        .start()
        .unwrap();
    let control = server.await_control().unwrap();
    server.await_ready().unwrap();
    let control = Control::new(&control.to_string()).unwrap();
    for (id, seed) in [("a", 1), ("b", 2)] {
        let request = asking(&tokens(seed, 300)).id(id);
        server.complete(&request).unwrap();
    }
    await_eviction(&control, "a");
    assert_eq!(like(&control, "a", 200, 300), Match::default());
    let found = like(&control, "b", 200, 300);
    assert_eq!(
        (found.reused, found.stored, found.loaded),
        (200, None, None)
    );
}
