//! What the engine says of every id, without the hook.
//!
//! The prompts of a conversation are all beginnings of the longest, and two conversations have nothing in common
//! that counts. So it is known of all of them when it is known how many tokens of each longest one are still there, in
//! one piece. What slots hold is in the files that the server saves of them. Then the slots are erased, and the longest
//! prompts are sent: what is reused then comes from the host cache. The server takes one entry out of it for that,
//! and not always the best, so it is asked until nothing comes.

use std::fs;

use contextpilot_testbed::{Request, Server};
use serde_json::json;

use super::SLOTS;
use super::clients::{Asked, Chain};

/// Two conversations may begin with so many equal tokens by chance.
const CHANCE: usize = 8;
/// So many of a prompt's last tokens may be there although a shorter prompt was evaluated.
const BY_CHANCE: usize = 3;

/// What the engine says of an id.
pub(crate) struct Found<'a> {
    pub(crate) asked: &'a Asked,
    /// All requests of its conversation.
    pub(crate) chain: &'a [Asked],
    /// How many tokens of the conversation are in slots, and what came from the host cache, one entry after the other.
    pub(crate) there: (usize, Vec<usize>),
    /// The engine would reuse all of its prompt but the last token, which it always evaluates.
    pub(crate) is_cached: bool,
    /// A later request with this beginning reused less of it: it may have been gone then, and is there again.
    pub(crate) was_gone: bool,
}

pub(crate) fn of<'a>(server: &Server, chains: &'a [Chain]) -> Vec<Found<'a>> {
    let slots: Vec<Vec<u32>> = (0..SLOTS).map(|slot| held(server, slot)).collect();
    for slot in 0..SLOTS {
        erase(server, slot);
    }
    let mut all = Vec::new();
    for chain in chains {
        let in_slots = slots.iter().map(|slot| common(slot, &chain.tokens)).max();
        let there = (in_slots.unwrap_or(0), in_host_cache(server, chain));
        let most = there.0.max(there.1.iter().copied().max().unwrap_or(0));
        for (number, asked) in chain.asked.iter().enumerate() {
            let later = &chain.asked[number + 1..];
            // The last token of a prompt does not count, and by chance an answer goes on as the conversation does.
            let evaluates_it = |later: &Asked| {
                later.tokens + BY_CHANCE >= asked.tokens && later.reused + 1 < asked.tokens
            };
            all.push(Found {
                asked,
                chain: &chain.asked,
                there: there.clone(),
                is_cached: most + 1 >= asked.tokens,
                was_gone: later.iter().any(evaluates_it),
            });
        }
    }
    all
}

/// The tokens that a slot holds.
fn held(server: &Server, slot: u32) -> Vec<u32> {
    let (path, name) = (format!("/slots/{slot}?action=save"), format!("slot-{slot}"));
    let saved = server.post(&path, &json!({ "filename": name })).unwrap();
    assert_eq!(saved.status, 200, "{}", saved.text());
    let file = fs::read(server.folder().join(&name)).unwrap();
    let words = file.chunks_exact(4);
    let words: Vec<u32> = words
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    // A magic number, a version, the length of what follows: the tokens, or (0.7.0) -1, a version, the number of
    // tokens, the tokens, and what there is of media.
    let rest = match words[3] {
        u32::MAX => &words[5..],
        _ => &words[2..],
    };
    let count = rest[0] as usize;
    assert_eq!(saved.json().unwrap()["n_saved"], count);
    rest[1..=count].to_vec()
}

/// How many tokens of the conversation come from the host cache, entry by entry.
fn in_host_cache(server: &Server, chain: &Chain) -> Vec<usize> {
    let mut all = Vec::new();
    loop {
        // It looks into its host cache only for a slot that it has chosen itself.
        let question = Request::completion(&chain.tokens[..]).predict(1);
        let answer = server.complete(&question).unwrap();
        let found = answer.cache_n;
        erase(server, answer.slot.unwrap());
        if found < CHANCE {
            return all;
        }
        all.push(found);
    }
}

fn erase(server: &Server, slot: u32) {
    let erased = server.post(&format!("/slots/{slot}?action=erase"), &json!({}));
    assert_eq!(erased.unwrap().status, 200);
}

fn common(one: &[u32], other: &[u32]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}
