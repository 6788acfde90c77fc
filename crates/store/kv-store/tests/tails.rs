//! Tails: what a state holds besides the rows of its tokens.

use contextpilot_kv_store::{Chunk, Fingerprint, GRID, Store, TAIL};

const PRINT: Fingerprint = Fingerprint([7; 16]);

fn tokens(count: usize) -> Vec<i32> {
    (0..count).map(|n| (n * n % 97) as i32).collect()
}

fn insert(store: &mut Store, chunk: Chunk) {
    assert_eq!(store.insert(chunk), Ok(vec![]));
}

fn keep(store: &mut Store, tokens: &[i32]) {
    for chunk in store.missing(&PRINT, tokens, 10) {
        insert(store, chunk);
    }
}

fn positions(store: &Store, tokens: &[i32]) -> Vec<usize> {
    let found = store.find(&PRINT, tokens);
    let tails = store.tails(&found);
    tails.iter().map(|tail| tail.piece.start).collect()
}

#[test]
fn tails_are_found_along_the_way_of_a_prompt_and_on_no_other() {
    let mut store = Store::new(u64::MAX);
    let all = tokens(3 * GRID + 40);
    keep(&mut store, &all);
    // In the middle of a chunk, at its end, and at the end of all.
    let at = [5, GRID, GRID + 1, 3 * GRID, all.len()];
    for position in at {
        let chunk = store.missing_tail(&PRINT, &all[..position], 1000).unwrap();
        assert_eq!((&chunk.tokens[..], chunk.bytes), (&[TAIL][..], 1000));
        assert_eq!(chunk.start as usize, position);
        insert(&mut store, chunk);
        assert_eq!(store.missing_tail(&PRINT, &all[..position], 1000), None);
    }
    assert_eq!(positions(&store, &all), at);
    for kept in [4, 5, GRID - 1, GRID, GRID + 1, all.len() - 1] {
        let expected: Vec<usize> = at.into_iter().filter(|at| *at <= kept).collect();
        assert_eq!(positions(&store, &all[..kept]), expected);
        let mut branch = all[..kept].to_vec();
        branch.extend([200; 20]);
        assert_eq!(positions(&store, &branch), expected);
        keep(&mut store, &branch);
        assert_eq!(positions(&store, &branch), expected);
    }
    // Tokens behind a tail are no obstacle, and a tail is none for tokens.
    let found = store.find(&PRINT, &all);
    assert_eq!(found.tokens(), all.len());
}

#[test]
fn a_way_leads_to_a_tail_or_does_not() {
    let mut store = Store::new(u64::MAX);
    let all = tokens(2 * GRID);
    let leads = |store: &Store, kept: usize| {
        let found = store.find(&PRINT, &all[..kept]);
        store.leads_to_tail(&found)
    };
    keep(&mut store, &all);
    assert!(!leads(&store, 10));
    let tail = store.missing_tail(&PRINT, &all[..GRID + 7], 1);
    insert(&mut store, tail.unwrap());
    for (kept, expected) in [
        (1, true),
        (GRID, true),
        (GRID + 7, true),
        (GRID + 8, false),
        (2 * GRID, false),
    ] {
        assert_eq!(leads(&store, kept), expected, "{kept}");
    }
    assert!(!leads(&store, 0));
}

#[test]
fn a_tail_needs_its_tokens_and_leaves_with_them() {
    let mut store = Store::new(u64::MAX);
    let all = tokens(GRID + 20);
    assert_eq!(store.missing_tail(&PRINT, &all, 1), None);
    keep(&mut store, &all[..GRID]);
    assert_eq!(store.missing_tail(&PRINT, &all, 1), None);
    keep(&mut store, &all);
    let tail = store.missing_tail(&PRINT, &all, 1).unwrap();
    let (parent, name) = (tail.parent.unwrap().0, tail.name);
    insert(&mut store, tail);
    assert_eq!(store.remove(&parent), [name, parent]);
    assert_eq!(positions(&store, &all), [0; 0]);
}
