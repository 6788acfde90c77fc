//! The store, case by case.

use contextpilot_kv_store::{Chunk, Fingerprint, GRID, Name, Refused, Store, TAIL, media};

const MODEL: Fingerprint = Fingerprint([7; 16]);
/// Bytes a token: a chunk of 100 tokens takes 100 blocks and one for header and tokens.
const ROW: usize = 4096;

/// Inserts what is missing; how many tokens that is.
fn save(store: &mut Store, prompt: &[i32]) -> usize {
    let found = store.find(&MODEL, prompt);
    store.used(found.pieces());
    let missing = store.missing(&MODEL, prompt, ROW);
    for chunk in &missing {
        store.insert(chunk.clone()).expect("it fits");
    }
    missing.iter().map(|chunk| chunk.tokens.len()).sum()
}

fn run(from: i32, count: i32) -> Vec<i32> {
    (from..from + count).collect()
}

fn with(mut prompt: Vec<i32>, more: &[i32]) -> Vec<i32> {
    prompt.extend(more);
    prompt
}

fn shapes(chunks: &[Chunk]) -> Vec<(u32, usize)> {
    chunks
        .iter()
        .map(|chunk| (chunk.start, chunk.tokens.len()))
        .collect()
}

#[test]
fn chunks_end_at_the_grid() {
    let mut store = Store::new(u64::MAX);
    let prompt = run(0, 600);
    let missing = store.missing(&MODEL, &prompt, ROW);
    assert_eq!(shapes(&missing), [(0, 256), (256, 256), (512, 88)]);
    assert_eq!(missing[0].parent, None);
    assert_eq!(missing[1].parent, Some((missing[0].name, 256)));
    assert_eq!(missing[2].parent, Some((missing[1].name, 256)));
    assert_eq!(missing[1].bytes, 256 * ROW as u64);
    // Nothing was inserted by asking.
    assert_eq!(store.chunks(), 0);
    assert_eq!(save(&mut store, &prompt), 600);
    assert_eq!(store.missing(&MODEL, &prompt, ROW), []);
}

#[test]
fn what_continues_a_short_chunk_is_another_chunk() {
    let mut store = Store::new(u64::MAX);
    save(&mut store, &run(0, 100));
    let missing = store.missing(&MODEL, &run(0, 600), ROW);
    assert_eq!(shapes(&missing), [(100, 156), (256, 256), (512, 88)]);
    assert_eq!(save(&mut store, &run(0, 600)), 500);
    let found = store.find(&MODEL, &run(0, 600));
    assert_eq!(found.tokens(), 600);
    let takes: Vec<_> = found
        .pieces()
        .iter()
        .map(|piece| (piece.start, piece.take))
        .collect();
    assert_eq!(takes, [(0, 100), (100, 156), (256, 256), (512, 88)]);
}

#[test]
fn a_branch_shares_the_beginning_of_a_chunk() {
    let mut store = Store::new(u64::MAX);
    save(&mut store, &run(0, 300));
    let other = with(run(0, 120), &[-1, -2, -3]);
    let missing = store.missing(&MODEL, &other, ROW);
    assert_eq!(shapes(&missing), [(120, 3)]);
    let whole = store.find(&MODEL, &run(0, 300)).pieces()[0];
    assert_eq!(missing[0].parent, Some((whole.name, 120)));
    assert_eq!(save(&mut store, &other), 3);
    let found = store.find(&MODEL, &other);
    assert_eq!(found.tokens(), 123);
    assert_eq!(
        (found.pieces()[0].take, found.pieces()[0].chunk_tokens),
        (120, 256)
    );
    // A third one, which leaves the second.
    assert_eq!(save(&mut store, &with(run(0, 120), &[-1, 5])), 1);
    assert_eq!(store.find(&MODEL, &run(0, 300)).tokens(), 300);
}

#[test]
fn models_share_nothing() {
    let mut store = Store::new(u64::MAX);
    save(&mut store, &run(0, 300));
    let other = Fingerprint([8; 16]);
    assert_eq!(store.find(&other, &run(0, 300)).tokens(), 0);
    let names = |fingerprint| -> Vec<Name> {
        let store = Store::new(0);
        let missing = store.missing(&fingerprint, &run(0, 300), ROW);
        missing.iter().map(|chunk| chunk.name).collect()
    };
    assert!(names(MODEL).iter().all(|name| !names(other).contains(name)));
}

/// Whole chunks have the same names wherever a prompt was cut before.
#[test]
fn names_of_whole_chunks_do_not_depend_on_how_a_prompt_grew() {
    let prompt = run(0, 3 * GRID as i32);
    let at_once = Store::new(0).missing(&MODEL, &prompt, ROW);
    let mut grown = Store::new(u64::MAX);
    for end in [1, 10, 255, 256, 300, 511] {
        save(&mut grown, &prompt[..end]);
    }
    let rest = grown.missing(&MODEL, &prompt, ROW);
    assert_eq!(shapes(&rest), [(511, 1), (512, 256)]);
    assert_eq!(rest[1].name, at_once[2].name);
    assert_ne!(
        rest[0].name, at_once[1].name,
        "it ends there, but has fewer tokens"
    );
}

#[test]
fn the_least_recently_used_leaves_first_and_children_before_parents() {
    // Three prompts of 300 tokens: 257 and 45 blocks each.
    let each = (257 + 45) * 4096;
    let mut store = Store::new(3 * each);
    for prompt in 0..3 {
        save(&mut store, &run(1000 * prompt, 300));
    }
    assert_eq!(store.bytes(), 3 * each);
    store.used(store.find(&MODEL, &run(0, 300)).pieces());
    let chunk = store.missing(&MODEL, &run(5000, 50), ROW).remove(0);
    let tail = store.find(&MODEL, &run(1000, 300)).pieces()[1];
    let head = store.find(&MODEL, &run(1000, 300)).pieces()[0];
    assert_eq!(store.insert(chunk), Ok(vec![tail.name, head.name]));
    assert_eq!(store.find(&MODEL, &run(0, 300)).tokens(), 300);
    assert_eq!(store.find(&MODEL, &run(1000, 300)).tokens(), 0);
    assert_eq!(store.find(&MODEL, &run(2000, 300)).tokens(), 300);
}

#[test]
fn nothing_leaves_for_what_does_not_fit() {
    let mut store = Store::new(300 * 4096);
    save(&mut store, &run(1000, 20));
    save(&mut store, &run(0, 256));
    let missing = store.missing(&MODEL, &run(0, 400), ROW);
    assert_eq!(store.insert(missing[0].clone()), Err(Refused::Full));
    assert_eq!(store.chunks(), 2);
    // A budget of nothing.
    let mut none = Store::new(0);
    assert_eq!(none.insert(missing[0].clone()), Err(Refused::NoParent));
    let first = none.missing(&MODEL, &[1], 0).remove(0);
    assert_eq!(none.insert(first), Err(Refused::Full));
}

#[test]
fn memory_is_bounded() {
    let mut store = Store::with_memory(u64::MAX, 1 << 20);
    for prompt in 0..5000 {
        save(&mut store, &[prompt, 1, 2]);
    }
    assert_eq!(store.chunks(), (1 << 20) / (300 + 12));
    assert_eq!(store.find(&MODEL, &[4999, 1, 2]).tokens(), 3);
    assert_eq!(store.find(&MODEL, &[0, 1, 2]).tokens(), 0);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut store = Store::new(u64::MAX);
    save(&mut store, &run(0, 100));
    let good = store.missing(&MODEL, &run(0, 200), ROW).remove(0);
    let bad = |change: &dyn Fn(&mut Chunk)| {
        let mut chunk = good.clone();
        change(&mut chunk);
        chunk
    };
    for (chunk, why) in [
        (bad(&|chunk| chunk.tokens = [].into()), Refused::Malformed),
        (
            bad(&|chunk| chunk.tokens = run(0, 157).into()),
            Refused::Malformed,
        ),
        (bad(&|chunk| chunk.start += 1), Refused::Malformed),
        (bad(&|chunk| chunk.parent = None), Refused::Malformed),
        (
            bad(&|chunk| chunk.parent.as_mut().expect("it has").1 = 0),
            Refused::Malformed,
        ),
        (
            bad(&|chunk| chunk.fingerprint.0[0] += 1),
            Refused::Malformed,
        ),
        // No prompt leads to a tail at position 0, or has its token.
        (
            bad(&|chunk| (chunk.parent, chunk.start, chunk.tokens) = (None, 0, [TAIL].into())),
            Refused::Malformed,
        ),
        (
            bad(&|chunk| chunk.tokens = [1, TAIL].into()),
            Refused::Malformed,
        ),
        // What the parent has there itself.
        (
            bad(&|chunk| {
                chunk.parent.as_mut().expect("it has").1 = 50;
                (chunk.start, chunk.tokens) = (50, run(50, 10).into());
            }),
            Refused::Malformed,
        ),
        (
            bad(&|chunk| chunk.parent.as_mut().expect("it has").0.0[0] += 1),
            Refused::NoParent,
        ),
    ] {
        assert_eq!(store.insert(chunk.clone()), Err(why), "{chunk:?}");
        // Nor from a file.
        store.load(chunk.clone(), 1);
        assert_eq!(store.orphans(u64::MAX), [chunk.name]);
    }
    let tail = store.missing_tail(&MODEL, &run(0, 100), 1).expect("none");
    assert_eq!(store.insert(tail.clone()), Ok(vec![]));
    let mut behind = bad(&|chunk| chunk.parent = Some((tail.name, 1)));
    (behind.start, behind.tokens) = (tail.start + 1, [1].into());
    assert_eq!(store.insert(behind), Err(Refused::Malformed));
    assert_eq!(store.insert(good.clone()), Ok(vec![]));
    assert_eq!(store.insert(good.clone()), Err(Refused::Known));
    // A file that is there twice is no orphan.
    store.load(good, 1);
    assert_eq!(store.orphans(u64::MAX), []);
}

#[test]
fn a_lost_file_takes_along_what_continues_it() {
    let mut store = Store::new(u64::MAX);
    save(&mut store, &run(0, 600));
    save(&mut store, &with(run(0, 400), &[-1]));
    save(&mut store, &run(9000, 10));
    let names: Vec<Name> = store
        .find(&MODEL, &run(0, 600))
        .pieces()
        .iter()
        .map(|piece| piece.name)
        .collect();
    let gone = store.remove(&names[1]);
    assert_eq!(gone.len(), 3);
    assert_eq!(gone.last(), Some(&names[1]));
    assert_eq!(store.remove(&names[1]), []);
    assert_eq!(store.find(&MODEL, &run(0, 600)).tokens(), 256);
    // It can come back.
    assert_eq!(save(&mut store, &run(0, 600)), 344);
}

#[test]
fn the_continuation_is_what_was_used_last() {
    let mut store = Store::new(u64::MAX);
    let (trunk, branch) = (run(0, 700), with(run(0, 400), &run(-300, 100)));
    save(&mut store, &trunk);
    save(&mut store, &branch);
    let ahead = |store: &Store, begin: usize, most: usize| {
        let found = store.find(&MODEL, &trunk[..begin]);
        let (tokens, whole) = store.continuation(&found, most);
        assert_eq!(whole.tokens(), begin + tokens.len());
        // The pieces are those of the prompt.
        let prompt = with(trunk[..begin].to_vec(), &tokens);
        assert_eq!(store.find(&MODEL, &prompt), whole);
        prompt
    };
    for begin in [1, 100, 256, 300, 400] {
        assert_eq!(ahead(&store, begin, usize::MAX), branch, "{begin}");
    }
    // Behind the branch, and after the first prompt was used again.
    assert_eq!(ahead(&store, 401, usize::MAX), trunk);
    store.used(store.find(&MODEL, &trunk).pieces());
    for begin in [1, 256, 300, 400, 512, 699] {
        assert_eq!(ahead(&store, begin, usize::MAX), trunk, "{begin}");
        assert_eq!(ahead(&store, begin, 150), trunk[..(begin + 150).min(700)]);
        assert_eq!(ahead(&store, begin, 0), trunk[..begin]);
    }
    assert_eq!(ahead(&store, 700, 9), trunk);
    store.used(store.find(&MODEL, &branch).pieces());
    assert_eq!(ahead(&store, 100, usize::MAX), branch);
    // Nothing was found: nothing continues it.
    assert_eq!(store.continuation(&store.find(&MODEL, &[77]), 9).0, []);
}

#[test]
fn files_are_loaded_in_any_order() {
    let mut store = Store::new(u64::MAX);
    let chunks = store.missing(&MODEL, &run(0, 1000), ROW);
    for chunk in chunks.iter().rev() {
        store.load(chunk.clone(), 5);
    }
    assert_eq!(store.orphans(u64::MAX), []);
    assert_eq!(store.find(&MODEL, &run(0, 1000)).tokens(), 1000);

    let mut store = Store::new(u64::MAX);
    for chunk in chunks.iter().filter(|chunk| chunk.start != 256).rev() {
        store.load(chunk.clone(), 5);
    }
    assert_eq!(store.orphans(u64::MAX).len(), 2);
    assert_eq!(store.chunks(), 1);
}

/// A neighbour may be about to write what they continue.
#[test]
fn young_chunks_wait_for_what_they_continue() {
    let mut store = Store::new(u64::MAX);
    let chunks = store.missing(&MODEL, &run(0, 700), ROW);
    store.load(chunks[2].clone(), 20);
    store.load(chunks[1].clone(), 30);
    assert_eq!(store.orphans(20), [chunks[2].name]);
    assert_eq!(store.share([(chunks[0].clone(), 40)], &[]), []);
    assert_eq!(store.find(&MODEL, &run(0, 700)).tokens(), 512);
}

/// The chunks of a prompt that grew to these lengths, as a process wrote them that knew of no other.
fn grown(prompt: &[i32], lengths: &[usize]) -> Vec<Chunk> {
    let mut store = Store::new(u64::MAX);
    let mut all = Vec::new();
    for &length in lengths {
        all.extend(store.missing(&MODEL, &prompt[..length], ROW));
        save(&mut store, &prompt[..length]);
    }
    all
}

/// Two processes wrote for prompts that part within one chunk. Of both all is found, whatever was seen first: also where
/// the other one's chunk has more of a prompt than its own, which goes on behind that.
#[test]
fn prompts_of_several_processes_that_part_within_a_chunk_are_all_found() {
    let short = with(run(0, 100), &run(-900, 500));
    let long = with(run(0, 120), &run(-100, 50));
    let other = with(run(0, 1), &run(-2000, 300));
    let both = with(run(0, 120), &run(-900, 9));
    let written = [
        grown(&short, &[100, 600]),
        grown(&long, &[170]),
        grown(&other, &[301]),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]] {
        let mut store = Store::new(u64::MAX);
        for chunk in order.iter().flat_map(|&nth| written[nth].iter().rev()) {
            assert_eq!(store.share([(chunk.clone(), 7)], &[]), []);
        }
        for prompt in [&short, &long, &other] {
            let found = store.find(&MODEL, prompt);
            assert_eq!(found.tokens(), prompt.len(), "{order:?}");
            assert_eq!(store.missing(&MODEL, prompt, ROW), []);
        }
        let found = store.find(&MODEL, &both);
        assert_eq!(found.tokens(), 120);
        assert_eq!(found.pieces()[0].name, written[1][0].name);
        // One leaves, and the others are there.
        assert_eq!(store.remove(&written[0][0].name).len(), written[0].len());
        assert_eq!(store.find(&MODEL, &short).tokens(), 100);
        assert_eq!(store.find(&MODEL, &long).tokens(), long.len());
        assert_eq!(store.find(&MODEL, &other).tokens(), other.len());
    }
}

/// There are only so many chunks for one place, and all processes keep the same, whatever they saw first.
#[test]
fn of_many_chunks_for_one_place_all_processes_keep_the_same() {
    let prompts: Vec<_> = (1..8)
        .map(|parts| with(run(0, 10 * parts), &run(-1000 * parts, 300)))
        .collect();
    let mut written: Vec<_> = prompts
        .iter()
        .map(|prompt| grown(prompt, &[prompt.len()]))
        .collect();
    written.sort_by_key(|chunks| chunks[0].name);
    let names = |processes: &[Vec<Chunk>]| -> Vec<Name> {
        let mut names: Vec<Name> = processes.iter().flatten().map(|chunk| chunk.name).collect();
        names.sort_unstable();
        names
    };
    let (stay, leave) = written.split_at(4);
    for turned in 0..written.len() {
        for order in 0..4 {
            let mut processes = written.clone();
            processes.rotate_left(turned);
            let mut all: Vec<Chunk> = processes.into_iter().flatten().collect();
            match order {
                0 => {}
                1 => all.reverse(),
                2 => all.sort_by_key(|chunk| chunk.start),
                _ => all.sort_by_key(|chunk| std::cmp::Reverse(chunk.start)),
            }
            let mut store = Store::new(u64::MAX);
            let mut left = Vec::new();
            for chunk in &all {
                left.extend(store.share([(chunk.clone(), 7)], &[]));
            }
            // What continues one that left waits for it, if it came later. Its writer removes it.
            for chunk in leave.iter().flatten() {
                if store.knows(&chunk.name) {
                    assert_eq!(store.share([], &[chunk.name]), []);
                    left.push(chunk.name);
                }
            }
            left.sort_unstable();
            assert_eq!(left, names(leave), "{turned} {order}");
            let there: Vec<Name> = store.names_after(None).copied().collect();
            assert_eq!(there, names(stay));
            let bytes: u64 = stay.iter().flatten().map(Chunk::cost).sum();
            assert_eq!(store.bytes(), bytes);
        }
    }
}

/// However many ways there are, only some are followed.
#[test]
fn a_prompt_with_many_ways_is_found_soon() {
    // At each of these positions four processes parted, and each of them went on by itself.
    let mut store = Store::new(u64::MAX);
    let prompt = run(0, 2000);
    let mut parent: Option<Chunk> = None;
    for at in (0..2000).step_by(GRID) {
        let mut whole = None;
        for wrong in 1..=4 {
            let end = (at + GRID).min(2000);
            let tokens = match wrong {
                4 => prompt[at..end].to_vec(),
                _ => with(prompt[at..end - wrong].to_vec(), &[-1]),
            };
            let before = with(prompt[..at].to_vec(), &tokens);
            let mut chunk = Store::new(0)
                .missing(&MODEL, &before, ROW)
                .pop()
                .expect("the last");
            chunk.parent = parent.as_ref().map(|parent| (parent.name, GRID as u32));
            assert_eq!(store.share([(chunk.clone(), 7)], &[]), []);
            whole = Some(chunk);
        }
        parent = whole;
    }
    assert_eq!(store.chunks(), 4 * 8);
    assert_eq!(store.find(&MODEL, &prompt).tokens(), 2000);
    let other = with(prompt[..1999].to_vec(), &[-7]);
    assert_eq!(store.find(&MODEL, &other).tokens(), 1999);
}

/// Their files take room.
#[test]
fn what_waits_for_its_parent_counts_and_leaves_in_turn() {
    let all = Store::new(0).missing(&MODEL, &run(0, 600), ROW);
    let other = Store::new(0)
        .missing(&MODEL, &run(5000, 256), ROW)
        .remove(0);
    let mut store = Store::new(2 * 257 * 4096);
    assert_eq!(
        store.share([(all[2].clone(), 20), (all[1].clone(), 30)], &[]),
        []
    );
    assert_eq!(
        (store.chunks(), store.bytes()),
        (0, all[1].cost() + all[2].cost())
    );
    // A second look at the same files.
    assert_eq!(store.share([(all[2].clone(), 20)], &[]), []);
    assert_eq!(store.bytes(), all[1].cost() + all[2].cost());
    // One has to leave, and it is the one that was used least recently.
    assert_eq!(store.share([(other.clone(), 25)], &[]), [all[2].name]);
    assert!(store.knows(&all[1].name) && !store.has(&all[1].name));
    assert!(!store.knows(&all[2].name));
    // This process evaluates what the other one waits for: nothing counts twice.
    store.now(50);
    assert_eq!(store.insert(all[0].clone()), Ok(vec![other.name]));
    assert!(store.has(&all[1].name));
    assert_eq!(store.bytes(), 2 * 257 * 4096);
    // A file that is gone does not wait.
    assert_eq!(store.remove(&all[0].name), [all[1].name, all[0].name]);
    assert_eq!(store.share([(all[1].clone(), 60)], &[]), []);
    assert_eq!(store.share([], &[all[1].name]), []);
    assert_eq!((store.bytes(), store.orphans(u64::MAX)), (0, vec![]));
}

#[test]
fn neighbours_write_and_remove_and_the_budget_holds() {
    let mut store = Store::new(4 * 51 * 4096);
    let prompt = |seed: i32| {
        Store::new(0)
            .missing(&MODEL, &run(seed * 1000, 50), ROW)
            .remove(0)
    };
    for (seed, used) in [(1, 10), (2, 20), (3, 30)] {
        assert_eq!(store.share([(prompt(seed), used)], &[]), []);
    }
    // What others removed is gone, and is not to be removed again.
    assert_eq!(store.share([], &[prompt(2).name]), []);
    assert_eq!(store.chunks(), 2);
    // Too much: what was used least recently leaves, no matter who wrote it.
    store.now(40);
    let own = store.insert(prompt(4));
    assert_eq!(own, Ok(vec![]));
    let more = [(prompt(5), 50), (prompt(6), 60)];
    assert_eq!(store.share(more, &[]), [prompt(1).name]);
    assert!(
        store
            .known(prompt(4).name.0[0])
            .any(|name| *name == prompt(4).name)
    );
    // What no tree can have is the neighbour's business.
    let mut other = prompt(7);
    other.start = 1;
    assert_eq!(store.share([(other, 70)], &[]), []);
    assert_eq!(store.orphans(u64::MAX), []);
}

/// What was used last before the restart stays, and a budget that has become smaller is kept.
#[test]
fn loaded_chunks_leave_in_the_order_of_their_use() {
    let empty = Store::new(0);
    let mut store = Store::new(2 * 51 * 4096);
    for (prompt, used) in [(1, u64::MAX), (2, 10), (3, 30)] {
        let chunk = empty
            .missing(&MODEL, &run(prompt * 1000, 50), ROW)
            .remove(0);
        store.load(chunk, used);
    }
    let second = empty.missing(&MODEL, &run(2000, 50), ROW).remove(0).name;
    assert_eq!(store.orphans(u64::MAX), []);
    assert_eq!(store.set_limit(store.limit(), [], 0), [second]);
    // New uses are later than loaded ones.
    let third = store.find(&MODEL, &run(3000, 50));
    store.used(third.pieces());
    let new = store.missing(&MODEL, &run(0, 50), ROW).remove(0);
    let first = store.find(&MODEL, &run(1000, 50)).pieces()[0].name;
    assert_eq!(store.insert(new), Ok(vec![first]));
}

/// What is used is later than what was used before, by any clock.
#[test]
fn when_the_clock_is_set_back_the_order_stays() {
    let mut store = Store::new(3 * 51 * 4096);
    let prompt = |seed: i32| {
        Store::new(0)
            .missing(&MODEL, &run(seed * 1000, 50), ROW)
            .remove(0)
    };
    store.now(1_000_000);
    for seed in [1, 2] {
        assert_eq!(store.insert(prompt(seed)), Ok(vec![]));
    }
    // What is written by the new time, here or by a neighbour, is later. So is what is written later.
    store.now(500);
    assert_eq!(store.share([(prompt(3), 510)], &[]), []);
    store.now(600);
    assert_eq!(store.insert(prompt(4)), Ok(vec![prompt(1).name]));
    store.now(800);
    assert_eq!(store.share([(prompt(5), 700)], &[]), [prompt(2).name]);
    store.now(900);
    assert_eq!(store.insert(prompt(6)), Ok(vec![prompt(3).name]));
    assert_eq!(store.insert(prompt(7)), Ok(vec![prompt(4).name]));
    assert_eq!(store.insert(prompt(8)), Ok(vec![prompt(5).name]));
}

/// Tokens of rows have 30 bits: those of two images may be equal by chance.
#[test]
fn of_an_image_nothing_is_taken_for_another_one() {
    let image = media::run(&[1; 32], 20).unwrap();
    let text = run(0, 50);
    let tea = with(with(text.clone(), &image), &[7; 30]);
    for equal in 0..4 {
        let mut store = Store::new(u64::MAX);
        save(&mut store, &tea);
        let mut other = media::run(&[2; 32], 20).unwrap();
        other[..equal].copy_from_slice(&image[..equal]);
        let sea = with(with(text.clone(), &other), &[7; 30]);
        assert_eq!(store.find(&MODEL, &sea).tokens(), 50, "{equal}");
        // In the place of a row that seems to be another one's, nothing is kept.
        let missing = store.missing(&MODEL, &sea, ROW);
        assert_eq!(shapes(&missing), [(50, 50)]);
        let kept = store.insert(missing[0].clone());
        assert_eq!(kept.is_ok(), equal == 0, "{equal}");
        assert_eq!(store.find(&MODEL, &tea).tokens(), 100);
    }
}

#[test]
fn a_part_of_an_image_is_not_kept() {
    let image = media::run(&[1; 32], 300).unwrap();
    let tea = with(with(run(0, 50), &image), &[7; 30]);
    let mut store = Store::new(u64::MAX);
    assert_eq!(save(&mut store, &tea[..200]), 50);
    assert_eq!(save(&mut store, &tea), 330);
    // The end of an image may leave before its beginning does, and is kept again.
    let second = store.find(&MODEL, &tea).pieces()[2].name;
    store.remove(&second);
    assert_eq!(store.find(&MODEL, &tea).tokens(), 256);
    assert_eq!(save(&mut store, &tea), 124);
    assert_eq!(store.find(&MODEL, &tea).tokens(), 380);
}
