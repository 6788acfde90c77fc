//! llama-server's own mistakes with states that cannot go back: a checkpoint that stays although the prompt that it is of
//! is gone, and one from which it goes back by a token more than the checkpoint is made for.

use contextpilot_testbed::{Arch, Builder, Completion, Model, Request, Server};

use super::{Stored, asking, chunk_files, folder, started, tokens};

/// One slot, and a physical batch that is smaller than the second prompt: else the server takes the checkpoint that it
/// has to go back to anew, and finds that first.
fn one_slot(arch: Arch) -> Builder {
    Server::builder()
        .model(&Model::tiny(arch))
        .bare_slots(1)
        .args(["-c", "1024", "-b", "256", "-ub", "32"])
}

/// The prompts of the trace, in order. The server takes a checkpoint before the last four tokens of the second one, whose
/// last token is 301, and another one token before. The third goes back to the latter, and has another token there. The
/// last goes on along the third.
fn prompts() -> [Vec<u32>; 4] {
    let third = [&[300, 302][..], &tokens(70, 100)].concat();
    let last = [&third[..5], &tokens(71, 60)].concat();
    [vec![300], vec![300, 301, 310, 311, 312, 313], third, last]
}

/// What the server takes the last prompt for.
fn mistaken() -> Vec<u32> {
    let mut last = prompts()[3].clone();
    last[1] = 301;
    last
}

/// The first two end with the prompt: then the slot holds nothing behind it.
fn request(prompt: &[u32]) -> Request {
    match prompt.len() {
        ..10 => asking(prompt).predict(1),
        _ => asking(prompt),
    }
}

/// The generated tokens, and the logarithms of their probabilities.
fn said(answer: &Completion) -> Vec<(u64, f64)> {
    let steps = answer.raw["completion_probabilities"].as_array();
    let step = |one: &serde_json::Value| Some((one["id"].as_u64()?, one["logprob"].as_f64()?));
    steps.expect("asked for").iter().filter_map(step).collect()
}

fn are_equal(one: &[(u64, f64)], other: &[(u64, f64)]) -> bool {
    let mut both = one.iter().zip(other);
    one.len() == other.len() && both.all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 0.01)
}

#[test]
fn what_follows_the_servers_stale_checkpoint_is_answered_as_ever_and_not_stored() {
    for arch in [Arch::Mamba, Arch::Jamba] {
        let plain = started(&one_slot(arch));
        let answers = prompts().map(|prompt| plain.complete(&request(&prompt)).unwrap());
        let theirs = said(&answers[3]);
        let alone = |prompt: &[u32]| {
            let request = asking(prompt).with("cache_prompt", false);
            said(&plain.complete(&request).unwrap())
        };
        let (right, mistaken_for) = (alone(&prompts()[3]), alone(&mistaken()));
        assert!(
            !are_equal(&right, &mistaken_for),
            "{arch}: it shows nothing"
        );
        // Of other servers it is not known.
        if std::env::var_os("LLAMA_SERVER_BIN").is_none() {
            assert!(
                !are_equal(&theirs, &right),
                "{arch}: the server answers rightly now: docs/store.md, random.rs"
            );
        }

        let folder = folder();
        let mut stored = Stored::start(&one_slot(arch), folder.path());
        for (prompt, theirs) in prompts().iter().zip(&answers) {
            let (ours, account) = stored.send(request(prompt));
            assert!(
                are_equal(&said(&ours), &said(theirs)),
                "{arch}: {account:?}"
            );
        }
        let refused = stored.figures().refused;
        let is_named = |why: &String| why.contains("not all seen");
        assert!(refused.iter().any(is_named), "{arch}: {refused:?}");
        stored.end();
        assert!(!chunk_files(folder.path()).is_empty());

        // The store has the third prompt, and not the last one: the server went back to a state of something else.
        let mut next = Stored::start(&one_slot(arch), folder.path());
        let (ours, account) = next.ask(&prompts()[3]);
        assert!(are_equal(&said(&ours), &right), "{arch}: {account:?}");
        let (_, account) = next.ask(&prompts()[2]);
        assert!(account.from.store >= 60, "{arch}: {account:?}");
    }
}

/// Two clients in turn on one slot with sliding windows of 64 tokens: one asks the same, the other goes on along 90 tokens in another
/// way each time. Its prompts are given back by the host cache with the last window alone, so the server goes back to its checkpoint at
/// 90 tokens: to the last token before, where it takes another one. That has what token 89 looks at, and the next return evaluates
/// token 88 again, without the first row of its window; and so on.
fn in_turn() -> Vec<Vec<u32>> {
    let (shared, other) = (tokens(72, 90), tokens(73, 90));
    let turn = |seed| [[&shared[..], &tokens(seed, 30)].concat(), other.clone()];
    let turns = (80..100).flat_map(turn);
    [shared.clone()].into_iter().chain(turns).collect()
}

#[test]
fn what_a_checkpoint_of_the_servers_lacks_is_answered_as_ever_and_not_stored() {
    let builder = Server::builder()
        .model(&Model::tiny(Arch::Gemma2))
        .bare_slots(1)
        .args(["-c", "1024", "-b", "2048", "-ub", "2048"])
        .args(["--cache-ram", "16"]);
    let (plain, fresh) = (started(&builder), started(&builder));
    let right = |prompt: &[u32]| {
        let request = asking(prompt).with("cache_prompt", false);
        said(&fresh.complete(&request).unwrap())
    };
    let answers: Vec<_> = in_turn()
        .iter()
        .map(|prompt| plain.complete(&asking(prompt)).unwrap())
        .collect();
    // Of other servers it is not known.
    if std::env::var_os("LLAMA_SERVER_BIN").is_none() {
        let reused: Vec<_> = answers.iter().map(|one| one.cache_n).collect();
        let of_turns: Vec<_> = reused[1..].iter().step_by(2).copied().collect();
        assert_eq!(of_turns, (71..=90).rev().collect::<Vec<_>>());
        let mut both = in_turn().into_iter().zip(&answers);
        let is_wrong = both.any(|(prompt, one)| !are_equal(&said(one), &right(&prompt)));
        assert!(is_wrong, "the server answers rightly now: docs/store.md");
    }

    let folder = folder();
    let mut stored = Stored::start(&builder, folder.path());
    for (prompt, theirs) in in_turn().iter().zip(&answers) {
        let (ours, account) = stored.send(asking(prompt));
        assert!(are_equal(&said(&ours), &said(theirs)), "{account:?}");
    }
    let refused = stored.figures().refused;
    assert_eq!(
        refused,
        ["a slot that went back farther than the rows of its windows reach"]
    );
    stored.end();

    // Nothing that was stored is wrong. What comes first in this life is loaded, so the server has no checkpoint to go back to.
    let mut next = Stored::start(&builder, folder.path());
    let mut loaded = 0;
    for prompt in in_turn().iter().rev() {
        let (ours, account) = next.ask(prompt);
        assert!(are_equal(&said(&ours), &right(prompt)), "{account:?}");
        loaded += account.from.store;
    }
    assert!(loaded >= 20 * 86, "{loaded}");
}
