//! The store goes on keeping after something that it cannot follow, and says what it does not keep.

use contextpilot_testbed::Request;
use serde_json::{Value, json};

use super::{Stored, asking, folder, one_slot, started, tokens};

/// Prompts of one program begin alike.
fn prompt(seed: u64, count: usize) -> Vec<u32> {
    [&[301, 302][..], &tokens(seed, count)].concat()
}

/// Asks for these prompts in a next life, and returns how many tokens of each were loaded.
fn loaded_next(folder: &std::path::Path, prompts: &[&[u32]]) -> Vec<u64> {
    let mut next = Stored::start(&one_slot(), folder);
    let plain = started(&one_slot());
    let loaded = prompts.iter().map(|prompt| {
        let (_, account) = next.compare(&plain, prompt);
        account.from.store
    });
    loaded.collect()
}

#[test]
fn prompts_are_kept_again_after_a_part_of_one_was_moved() {
    let folder = folder();
    let builder = one_slot().args(["--cache-reuse", "32"]);
    let mut stored = Stored::start(&builder, folder.path());
    let (head, body) = (prompt(330, 60), tokens(331, 200));
    let whole = [&head[..], &tokens(332, 50), &body].concat();
    stored.ask(&whole);
    // The same without its oldest turn.
    let shorter = [&head[..], &body, &tokens(333, 40)].concat();
    let (_, account) = stored.ask(&shorter);
    assert!(account.from.moved >= 190, "{account:?}");
    let is_named = |stored: &Stored| {
        let refused = stored.figures().refused;
        refused.iter().any(|why| why.contains("were moved"))
    };
    assert!(is_named(&stored), "{:?}", stored.figures());
    let chats: Vec<Vec<u32>> = (0..4).map(|seed| prompt(340 + seed, 120)).collect();
    for chat in &chats {
        stored.ask(chat);
    }
    stored.end();
    let all: Vec<&[u32]> = [&whole]
        .into_iter()
        .chain(&chats)
        .map(|one| &one[..])
        .collect();
    let loaded = loaded_next(folder.path(), &all);
    assert_eq!(loaded[0], 311, "{loaded:?}");
    // What they begin with may be in the slot.
    assert!(
        loaded[1..].iter().all(|&loaded| loaded >= 117),
        "{loaded:?}"
    );
}

#[test]
fn prompts_are_kept_again_after_the_context_was_shifted() {
    let folder = folder();
    let builder = one_slot().args(["-c", "512", "--context-shift"]);
    let mut stored = Stored::start(&builder, folder.path());
    let request = Request::completion(Value::from(prompt(350, 300))).predict(400);
    let answer = stored.server.complete(&request).unwrap();
    assert_eq!(answer.raw["truncated"], true, "{:?}", answer.raw);
    let refused = stored.figures().refused;
    let is_named = |why: &String| why.contains("context shift");
    assert!(refused.iter().any(is_named), "{refused:?}");
    let chats: Vec<Vec<u32>> = (0..3).map(|seed| prompt(351 + seed, 200)).collect();
    for chat in &chats {
        stored.ask(chat);
    }
    stored.end();
    let all: Vec<&[u32]> = chats.iter().map(|one| &one[..]).collect();
    let loaded = loaded_next(folder.path(), &all);
    assert!(loaded.iter().all(|&loaded| loaded >= 197), "{loaded:?}");
}

/// The slot's file has the ids, so the few that the next prompt begins with are evaluated again.
#[test]
fn prompts_are_kept_again_after_a_slot_was_restored() {
    let (folder, slots) = (folder(), folder_of_slots());
    let builder = one_slot().args([
        "--slot-save-path".into(),
        slots.path().as_os_str().to_owned(),
    ]);
    let mut stored = Stored::start(&builder, folder.path());
    let plain = started(&builder);
    let (tea, sea) = (prompt(360, 300), prompt(361, 250));
    for server in [&stored.server, &plain] {
        server.complete(&asking(&tea)).unwrap();
        for action in ["save", "restore"] {
            let path = format!("/slots/0?action={action}");
            let answer = server.post(&path, &json!({ "filename": "tea" })).unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    // It goes on, and is not kept; that is said.
    let longer = [&tea[..], &tokens(362, 60)].concat();
    stored.compare(&plain, &longer);
    let refused = stored.figures().refused;
    assert!(
        refused.iter().any(|why| why.contains("restored")),
        "{refused:?}"
    );
    for prompt in [&sea, &tea, &sea] {
        stored.compare(&plain, prompt);
    }
    let (_, account) = stored.ask(&tea);
    assert!(account.from.store >= 298, "{account:?}");
    stored.end();
    let loaded = loaded_next(folder.path(), &[&sea, &tea]);
    assert!(loaded[0] >= 250 && loaded[1] >= 298, "{loaded:?}");
}

fn folder_of_slots() -> tempfile::TempDir {
    folder()
}

/// People set it for clean measurements.
#[test]
fn a_request_that_forbids_the_cache_is_evaluated_whole_and_kept() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let tea = prompt(370, 400);
    let uncached = |prompt: &[u32]| asking(prompt).with("cache_prompt", false);
    let (first, _) = stored.send(uncached(&tea));
    stored.ask(&prompt(371, 300));
    let (second, account) = stored.send(uncached(&tea));
    assert_eq!(
        (account.from.store, account.evaluated),
        (0, 402),
        "{account:?}"
    );
    assert_eq!(first.content, second.content);
    // Also without an id, and where its account is not asked for.
    stored.ask(&prompt(371, 300));
    let before = stored.figures().loaded_tokens;
    stored.server.complete(&uncached(&tea)).unwrap();
    assert_eq!(stored.figures().loaded_tokens, before);
    stored.ask(&prompt(371, 300));
    let (_, account) = stored.ask(&tea);
    assert_eq!(account.from.store + account.from.slot, 401, "{account:?}");
    assert!(account.from.store >= 399, "{account:?}");
}
