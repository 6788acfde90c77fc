use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use contextpilot_kv_store::SequenceState;
use contextpilot_testbed::private_folder;
use engine::Engine;

use super::*;

#[path = "../../../../crates/store/kv-store/tests/engine/mod.rs"]
mod engine;

const LONG: Duration = Duration::from_secs(60);

/// The watch reads a folder, then tells the index what is there. In between this process may have written more, and
/// not be about to write it any more. All of that was taken for removed, and was removed, with what continues it.
#[test]
fn what_was_written_after_the_folder_was_read_stays() {
    let home = private_folder();
    let mut index = empty_index(home.path());
    let tokens: Vec<i32> = (0..1000).collect();
    let chunks = index.tree.missing(&Fingerprint([5; 16]), &tokens, 8);
    assert!(chunks.len() > 2);
    let folders_were_read: Vec<Listing> = chunks.iter().map(|chunk| empty(&chunk.name)).collect();
    for chunk in &chunks {
        index.tree.insert(chunk.clone()).expect("it is new");
        let rows = Arc::new(vec![7; usize::try_from(chunk.bytes).expect("small")]);
        index.writer.write(chunk, rows).expect("it is taken");
    }
    index.flush(LONG);
    for there in &folders_were_read {
        index.lose(there);
    }
    for chunk in &chunks {
        assert!(index.tree.has(&chunk.name) && !index.folder.lacks(&chunk.name));
    }
    // What another process removed is gone, and so is what continues it.
    let removed = index.folder.remove(&chunks[1].name);
    removed.expect("it may be removed");
    index.lose(&empty(&chunks[1].name));
    assert!(index.tree.has(&chunks[0].name));
    assert!(!index.tree.has(&chunks[1].name) && !index.tree.has(&chunks[2].name));
    index.flush(LONG);
    assert!(index.folder.lacks(&chunks[2].name));
}

/// The watch reads headers, then tells the index some at a time. What left by the first of them was taken for there by the later ones:
/// then a prompt was to be loaded from files that were gone.
#[test]
fn what_is_being_removed_is_not_there_by_what_was_read_before() {
    let home = private_folder();
    let mut index = empty_index(home.path());
    let (model, tokens) = (Fingerprint([5; 16]), (0..700).collect::<Vec<i32>>());
    let bytes = Engine::dense(2, 64).state(0, &(0..700).collect::<Vec<_>>());
    let state = SequenceState::read(&bytes).expect("a state");
    index.insert(&model, &tokens, &state, None);
    index.flush(LONG);
    let mut read = Vec::new();
    let watched = Watch::new(index.folder.clone()).look(|header| read.push(header));
    watched.expect("it can be read");
    read.sort_by_key(|header| header.chunk.start);
    for is_done in [false, true] {
        index.drop_chunk(read[0].chunk.name);
        if is_done {
            index.flush(LONG);
        }
        index.share(&read[1..]);
        assert_eq!(index.tree.bytes(), 0, "none of them waits");
        // It is evaluated again, and all of it is kept.
        index.insert(&model, &tokens, &state, None);
        index.flush(LONG);
        let there = |header: &Header| !index.folder.lacks(&header.chunk.name);
        assert!(read.iter().all(there), "{is_done}");
        assert_eq!(index.length_of(&model, &tokens), 700);
    }
}

/// Between the decision to copy only what is new and the copy, what was there may have left.
#[test]
fn rows_that_were_not_copied_are_not_kept() {
    let home = private_folder();
    let mut index = empty_index(home.path());
    let bytes = Engine::dense(2, 64).state(0, &(0..600).collect::<Vec<_>>());
    let ours = Arc::new(bytes.clone());
    let whole = SequenceState::read(&bytes).expect("a state");
    let tokens: Vec<i32> = (0..600).collect();
    let model = Fingerprint([5; 16]);
    for rows_from in [1, 256, 300, 600] {
        let lacking = whole.clone().with_rows_from(rows_from);
        for ours in [None, Some(&ours)] {
            index.insert(&model, &tokens, &lacking, ours);
            index.insert_bounded(&model, (&tokens, &[]), Some(&lacking), &[1, 2, 3], ours);
            assert_eq!(index.length_of(&model, &tokens), 0, "{rows_from}");
        }
    }
    // What is there up to where the rows begin is gone on with.
    let first = SequenceState::read(&bytes).expect("a state");
    index.insert(&model, &tokens[..256], &first, None);
    assert_eq!(index.length_of(&model, &tokens), 256);
    let lacking = whole.clone().with_rows_from(257);
    index.insert(&model, &tokens, &lacking, None);
    assert_eq!(index.length_of(&model, &tokens), 256);
    index.insert(&model, &tokens, &whole.with_rows_from(256), Some(&ours));
    assert_eq!(index.length_of(&model, &tokens), 600);
    index.flush(LONG);
}

/// Its memory is there anyway until the last of it is written. Of a large prompt only the beginning was kept.
#[test]
fn a_sequence_that_is_larger_than_the_queue_is_kept_as_a_whole() {
    static GO: Mutex<()> = Mutex::new(());
    let home = private_folder();
    let mut index = empty_index(home.path());
    let bytes = Engine::dense(2, 64).state(0, &(0..1000).collect::<Vec<_>>());
    let ours = Arc::new(bytes);
    let state = SequenceState::read(&ours).expect("a state");
    let tokens: Vec<i32> = (0..1000).collect();
    let queue = 300 * state.layout().bytes_per_token() as u64;
    let stop = GO.lock().expect("a lock");
    let stopped = || drop(GO.lock());
    index.writer = Writer::start(index.folder.clone(), queue, stopped, || false).expect("a thread");
    let [first, second, third] = [5, 6, 7].map(|n| Fingerprint([n; 16]));
    index.insert_bounded(
        &first,
        (&tokens, &[]),
        Some(&state),
        &[1, 2, 3],
        Some(&ours),
    );
    assert_eq!(index.length_of(&first, &tokens), 1000);
    assert_eq!(index.last_state_in(&first, &tokens), 1000);
    // While that waits, there is room for no other.
    index.insert(&second, &tokens, &state, Some(&ours));
    assert_eq!(index.length_of(&second, &tokens), 0);
    drop(stop);
    index.flush(LONG);
    // What another process has takes memory beside it.
    let stop = GO.lock().expect("a lock");
    index.writer = Writer::start(index.folder.clone(), queue, stopped, || false).expect("a thread");
    index.insert(&third, &tokens, &state, None);
    assert_eq!(index.length_of(&third, &tokens), 256);
    drop(stop);
    index.flush(LONG);
    index.insert(&second, &tokens, &state, Some(&ours));
    index.flush(LONG);
    let again = empty_index(home.path());
    assert_eq!(again.length_of(&first, &tokens), 1000);
    assert_eq!(again.length_of(&second, &tokens), 1000);
}

/// A prompt that comes while the folder is being read is looked up by the index; what is kept meanwhile is there afterwards,
/// and so is the budget.
#[test]
fn by_an_index_a_prompt_is_found_before_the_folder_has_been_read() {
    let home = private_folder();
    let mut before = empty_index(home.path());
    let bytes = Engine::dense(2, 64).state(0, &(0..600).collect::<Vec<_>>());
    let state = SequenceState::read(&bytes).expect("a state");
    let tokens: Vec<i32> = (0..600).collect();
    let model = Fingerprint([5; 16]);
    before.insert(
        &model,
        &tokens[..300],
        &SequenceState::read(&Engine::dense(2, 64).state(0, &(0..300).collect::<Vec<_>>()))
            .expect("a state"),
        None,
    );
    before.flush(LONG);
    let (children, last) = before.children_after(None, 9);
    assert_eq!(last, before.tree.names_after(None).last().copied());
    before.folder.write_index(children).expect("it is written");

    let folder = Folder::open(home.path()).expect("a folder");
    let mut watch = Watch::new(folder.clone());
    let index = folder.index();
    let mut index = StoreIndex::new(folder, None, index).expect("an index");
    assert_eq!(index.length_of(&model, &tokens), 0);
    index.look_up(&model, &tokens);
    assert_eq!(index.length_of(&model, &tokens), 300);
    let offer = index.offer(&model, &tokens, 0);
    let mut composed = Vec::new();
    assert!(index.compose(&offer, 300, state.layout(), 0, &mut composed));
    index.insert(&model, &tokens, &state, None);
    assert_eq!(index.length_of(&model, &tokens), 600);
    // It ends before all was read: nothing that is there is left out.
    assert_eq!(index.must_write_index(), None);
    index.flush(LONG);
    let mut read = Vec::new();
    watch
        .look(|header| read.push(header))
        .expect("it can be read");
    let chunks = read.len();
    index.load_some(read.into_iter());
    index.end_reading(Vec::new(), Some(1 << 30));
    assert_eq!((index.tree.chunks(), index.tree.limit()), (chunks, 1 << 30));
    let changed = index
        .must_write_index()
        .expect("there is more than in the index");
    // A process that ends before it has written it writes it then.
    assert_eq!(index.must_write_index(), Some(changed));
    index.has_written_index(changed);
    assert_eq!(index.must_write_index(), None);
    assert_eq!(empty_index(home.path()).length_of(&model, &tokens), 600);
}

fn empty_index(at: &Path) -> StoreIndex {
    let folder = Folder::open(at).expect("a folder");
    let mut watch = Watch::new(folder.clone());
    StoreIndex::load(folder, Some(u64::MAX), &mut watch).expect("an index")
}

/// Nothing is there.
fn empty(of: &Name) -> Listing {
    Listing {
        first: of.0[0],
        names: Vec::new(),
    }
}
