//! What is kept leaves last, within a share of the budget.

use contextpilot_kv_store::{Fingerprint, KEPT_SHARE, MOST_KEPT, Name, Store, TAIL};

const MODEL: Fingerprint = Fingerprint([7; 16]);
const ROW: usize = 4096;
/// Bytes of a chunk of 100 tokens: a block for each, and one for the header and the tokens.
const COST: u64 = 101 * 4096;

/// Unrelated prompts of one chunk each.
fn prompt(nth: i32) -> Vec<i32> {
    (0..100).map(|at| nth * 1000 + at).collect()
}

/// Inserts what is missing. What has left for it.
fn save(store: &mut Store, prompt: &[i32]) -> Vec<Name> {
    let missing = store.missing(&MODEL, prompt, ROW);
    let left = missing
        .into_iter()
        .map(|chunk| store.insert(chunk).expect("it fits"));
    left.flatten().collect()
}

fn is_there(store: &Store, prompt: &[i32]) -> bool {
    store.find(&MODEL, prompt).tokens() == prompt.len()
}

#[test]
fn what_is_kept_stays_while_others_leave_and_until_its_time() {
    let mut store = Store::new(8 * COST);
    save(&mut store, &prompt(0));
    let (end, _) = store.keep(&MODEL, &prompt(0), 50).expect("it is kept");
    assert_eq!(store.kept().collect::<Vec<_>>(), [(&end, 50)]);
    assert_eq!(store.kept_bytes(), COST);
    for nth in 1..30 {
        save(&mut store, &prompt(nth));
        assert!(is_there(&store, &prompt(0)), "{nth}");
        assert!(store.bytes() <= 8 * COST);
    }
    // All others leave in their turn.
    for nth in 23..30 {
        assert!(is_there(&store, &prompt(nth)), "{nth}");
    }
    // Asked for again, for longer.
    assert_eq!(store.keep(&MODEL, &prompt(0), 60), Some((end, vec![])));
    assert_eq!(store.expire(59), []);
    assert_eq!(store.expire(60), [end]);
    assert_eq!((store.kept().count(), store.kept_bytes()), (0, 0));
    assert_eq!(save(&mut store, &prompt(30)), [end], "it is the oldest");
}

/// The turns of a conversation, each of which asks for it.
#[test]
fn a_longer_prompt_is_kept_in_place_of_its_beginning_and_released_with_it() {
    let mut store = Store::new(100 * COST);
    let turns = |count: i32| -> Vec<i32> { (0..count).flat_map(prompt).collect() };
    let mut ends = Vec::new();
    for (count, until) in [(1, 20), (2, 9), (3, 10)] {
        save(&mut store, &turns(count));
        let (end, instead) = store
            .keep(&MODEL, &turns(count), until)
            .expect("it is kept");
        let shorter = ends.last().copied();
        assert_eq!(
            instead,
            shorter
                .filter(|_| count == 3)
                .into_iter()
                .collect::<Vec<_>>()
        );
        ends.push(end);
    }
    let mut kept: Vec<_> = store.kept().map(|(end, until)| (until, *end)).collect();
    kept.sort_unstable();
    assert_eq!(
        kept,
        [(10, ends[2]), (20, ends[0])],
        "the first turn for longer"
    );
    let mut released = store.release(&MODEL, &turns(3));
    released.sort_unstable();
    let mut expected = vec![ends[0], ends[2]];
    expected.sort_unstable();
    assert_eq!(released, expected);
    assert_eq!(store.kept_bytes(), 0);
}

#[test]
fn what_was_released_leaves_in_its_turn() {
    let mut store = Store::new(4 * COST);
    save(&mut store, &prompt(0));
    let (end, _) = store.keep(&MODEL, &prompt(0), 9).expect("it is kept");
    assert_eq!(store.release(&MODEL, &prompt(0)), [end]);
    assert_eq!(store.release(&MODEL, &prompt(0)), []);
    for nth in 1..5 {
        save(&mut store, &prompt(nth));
    }
    assert!(!is_there(&store, &prompt(0)));
    assert_eq!(store.keep(&MODEL, &prompt(0), 9), None, "it is not there");
}

/// Prompts that begin alike are counted once, and their beginning stays as long as one of them.
#[test]
fn a_common_beginning_is_counted_once() {
    let mut store = Store::new(100 * COST);
    let branch = |nth: i32| [prompt(0), vec![nth; 100]].concat();
    for nth in [-1, -2] {
        save(&mut store, &prompt(0));
        save(&mut store, &branch(nth));
        store.keep(&MODEL, &branch(nth), 9).expect("it is kept");
    }
    assert_eq!(store.kept_bytes(), 3 * COST);
    assert_eq!(store.release(&MODEL, &branch(-1)).len(), 1);
    assert_eq!(store.kept_bytes(), 2 * COST);
    store.set_limit(2 * COST, [], 0);
    assert!(is_there(&store, &branch(-2)) && !is_there(&store, &branch(-1)));
}

/// What is kept of a prompt, and for how long: as long as any prompt that goes through it asks for.
#[test]
fn a_beginning_is_kept_as_long_as_the_last_of_those_that_it_begins() {
    let mut store = Store::new(100 * COST);
    let branch = |nth: i32| [prompt(0), vec![nth; 100]].concat();
    let kept = |store: &Store, prompt: &[i32]| store.kept_of(&store.find(&MODEL, prompt));
    for (nth, until) in [(-1, 20), (-2, 9), (-3, 0)] {
        save(&mut store, &prompt(0));
        save(&mut store, &branch(nth));
        if until > 0 {
            store.keep(&MODEL, &branch(nth), until).expect("it is kept");
        }
    }
    assert_eq!(kept(&store, &branch(-1)), Some((200, 20)));
    assert_eq!(kept(&store, &branch(-2)), Some((200, 9)));
    assert_eq!(kept(&store, &branch(-3)), Some((100, 20)));
    assert_eq!(kept(&store, &prompt(0)[..50]), Some((50, 20)));
    assert_eq!(kept(&store, &prompt(1)), None);
    let name = |store: &Store, nth| {
        let found = store.find(&MODEL, &branch(nth));
        found.pieces().last().expect("it is there").name
    };
    let names = [-1, -3].map(|nth| name(&store, nth));
    assert_eq!(names.map(|name| store.is_kept(&name)), [true, false]);
    // Sooner than it asked for first.
    store.keep(&MODEL, &branch(-1), 12).expect("it is kept");
    assert_eq!(kept(&store, &prompt(0)), Some((100, 12)));
    store.release(&MODEL, &branch(-1));
    assert_eq!(kept(&store, &branch(-1)), Some((100, 9)));
    assert_eq!(store.kept_bytes(), 2 * COST);
    assert_eq!(store.expire(9).len(), 1);
    assert_eq!(kept(&store, &branch(-2)), None);
    assert_eq!((store.kept_bytes(), store.kept_tokens()), (0, 0));
}

/// The attack: a client that keeps everything.
#[test]
fn who_keeps_everything_gets_a_share_and_others_have_the_rest() {
    let rooms = 16;
    let mut store = Store::new(rooms * COST);
    // Beside what is kept, there is room for what is used in each round: these, and four that are not used again.
    let others: Vec<i32> = (0..8).collect();
    let mut kept = 0;
    for round in 0..50 {
        for &nth in &others {
            let found = store.find(&MODEL, &prompt(nth));
            assert!(round == 0 || found.tokens() == 100, "{nth} has left");
            store.used(found.pieces());
            save(&mut store, &prompt(nth));
        }
        for greedy in 0..4 {
            let greedy = prompt(1000 + round * 4 + greedy);
            save(&mut store, &greedy);
            kept += usize::from(store.keep(&MODEL, &greedy, u64::MAX).is_some());
        }
        assert!(store.kept_bytes() <= rooms * COST / KEPT_SHARE);
    }
    assert_eq!(kept as u64, rooms / KEPT_SHARE);
}

#[test]
fn so_many_are_kept_and_no_more() {
    let mut store = Store::new(u64::MAX);
    let long: Vec<i32> = (0..MOST_KEPT as i32 + 1).map(|nth| nth * 7).collect();
    let kept = long.iter().filter(|nth| {
        let prompt = [**nth; 9];
        save(&mut store, &prompt);
        store.keep(&MODEL, &prompt, 9).is_some()
    });
    assert_eq!(kept.count(), MOST_KEPT);
}

/// The next start, with a smaller budget.
#[test]
fn of_what_was_loaded_what_is_kept_leaves_last() {
    let mut store = Store::new(3 * COST);
    let ends: Vec<Name> = (0..8)
        .map(|nth| {
            let chunk = store.missing(&MODEL, &prompt(nth), ROW).remove(0);
            let name = chunk.name;
            store.load(chunk, nth as u64);
            name
        })
        .collect();
    assert_eq!(store.orphans(u64::MAX), []);
    // The second one's time is over.
    let kept = [(ends[0], 50), (ends[1], 9)];
    assert_eq!(store.set_limit(6 * COST, kept, 9), ends[1..3]);
    assert_eq!(store.kept().collect::<Vec<_>>(), [(&ends[0], 50)]);
}

#[test]
fn if_nothing_else_is_left_what_is_kept_leaves_too() {
    let mut store = Store::new(8 * COST);
    for nth in 0..2 {
        save(&mut store, &prompt(nth));
        store.keep(&MODEL, &prompt(nth), 9).expect("it is kept");
    }
    assert_eq!(store.set_limit(COST, [], 0).len(), 1);
    assert_eq!((store.kept().count(), store.kept_bytes()), (1, COST));
    // A file that is gone.
    let end = *store.kept().next().expect("one is kept").0;
    store.remove(&end);
    assert_eq!((store.kept().count(), store.kept_bytes()), (0, 0));
    assert!(!store.release_to(&end) && !store.keep_to(&end, 9));
}

/// The state of a model that cannot go back stands behind its tokens.
#[test]
fn a_tail_is_kept_with_its_tokens() {
    let mut store = Store::new(100 * COST);
    save(&mut store, &prompt(0));
    let tail = store
        .missing_tail(&MODEL, &prompt(0), 4096)
        .expect("a tail");
    store.insert(tail.clone()).expect("it fits");
    assert_eq!(store.keep(&MODEL, &prompt(0), 9), Some((tail.name, vec![])));
    assert_eq!(tail.tokens[..], [TAIL]);
    // A longer prompt, whose own state is not there.
    let longer = [prompt(0), prompt(1)].concat();
    save(&mut store, &longer);
    assert_eq!(store.release(&MODEL, &longer), [tail.name]);
    assert_eq!(store.keep(&MODEL, &longer, 9), Some((tail.name, vec![])));
    store.set_limit(4 * COST, [], 0);
    save(&mut store, &prompt(2));
    save(&mut store, &prompt(3));
    let tails = store.tails(&store.find(&MODEL, &prompt(0)));
    assert_eq!(tails.len(), 1);
    assert!(!is_there(&store, &longer));
    store.set_limit(0, [], 0);
    assert_eq!(store.kept().count(), 0);
}
