//! States that are handed over whole: the writer's thread cuts the rows of each chunk out of them.

mod common;
#[path = "../../kv-store/tests/engine/mod.rs"]
mod engine;

use std::sync::{Arc, Mutex};

use common::LONG;
use contextpilot_kv_files::{Done, Folder, Writer};
use contextpilot_kv_store::{Chunk, Fingerprint, SequenceState, StateMap, Store};
use contextpilot_testbed::private_folder;
use engine::Engine;

const TOKENS: usize = 700;

fn engine() -> Engine {
    Engine::dense(3, 64)
}

fn state() -> Arc<Vec<u8>> {
    Arc::new(engine().state(0, &(0..TOKENS).collect::<Vec<_>>()))
}

fn map(state: &[u8]) -> Arc<StateMap> {
    Arc::new(SequenceState::read(state).expect("a state").map().clone())
}

fn chunks(tokens: usize) -> Vec<Chunk> {
    chunks_of(7, tokens)
}

fn chunks_of(model: u8, tokens: usize) -> Vec<Chunk> {
    let state = state();
    let row = SequenceState::read(&state)
        .expect("a state")
        .layout()
        .bytes_per_token();
    let tokens: Vec<i32> = (0..tokens as i32).collect();
    Store::new(0).missing(&Fingerprint([model; 16]), &tokens, row)
}

fn rows(chunk: &Chunk) -> Vec<u8> {
    let from = chunk.start as usize;
    engine().chunk(from..from + chunk.tokens.len())
}

#[test]
fn chunks_of_a_state_are_what_was_cut_out_of_it() {
    static GO: Mutex<()> = Mutex::new(());
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let stop = GO.lock().expect("a lock");
    let writer =
        Writer::start(folder.clone(), u64::MAX, || drop(GO.lock()), || false).expect("a thread");
    let (state, chunks) = (state(), chunks(TOKENS));
    let map = map(&state);
    assert_eq!(chunks.len(), 3);
    for chunk in &chunks {
        assert_eq!(writer.write_from(chunk, &state, &map), Ok(()));
    }
    // Before they are written.
    for chunk in &chunks {
        let kept = writer.pending(&chunk.name).expect("it waits");
        assert_eq!(*kept, rows(chunk));
    }
    assert_eq!(
        writer.queued(),
        chunks.iter().map(|chunk| chunk.bytes).sum::<u64>()
    );
    drop(stop);
    assert!(writer.flush(LONG));
    assert_eq!(writer.queued(), 0);
    let mut out = Vec::new();
    for chunk in &chunks {
        folder
            .read(&chunk.name, chunk.bytes, &mut out)
            .expect("it is written");
        assert_eq!(out, rows(chunk));
    }
    // The memory of the state is given back, though it is larger than what is kept of small ones.
    assert!(writer.done().all(|done| matches!(done, Done::Written(_))));
    drop(state);
    assert!(writer.pending(&chunks[0].name).is_none());
}

#[test]
fn chunks_of_several_states_are_not_mixed_up() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let writer = common::writer(&folder);
    // As large as each other, and all stands elsewhere.
    let backwards: Vec<usize> = (0..TOKENS).rev().collect();
    let states = [state(), Arc::new(engine().state(0, &backwards))];
    assert_eq!(states[0].len(), states[1].len());
    let maps = [map(&states[0]), map(&states[1])];
    let both = [chunks_of(1, TOKENS), chunks_of(2, TOKENS)];
    for nth in 0..both[0].len() {
        for ((chunks, state), map) in both.iter().zip(&states).zip(&maps) {
            assert_eq!(writer.write_from(&chunks[nth], state, map), Ok(()));
        }
    }
    assert!(writer.flush(LONG));
    let mut out = Vec::new();
    for chunk in both.iter().flatten() {
        let read = folder.read(&chunk.name, chunk.bytes, &mut out);
        read.expect("it is written");
        assert_eq!(out, rows(chunk));
    }
}

#[test]
fn a_state_that_lacks_the_tokens_stops_nothing_else() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let writer = common::writer(&folder);
    let (state, chunks) = (state(), chunks(TOKENS + 300));
    let (has, lacks) = (&chunks[0], &chunks[3]);
    let (map, nonsense) = (map(&state), Arc::new(vec![7; 5000]));
    assert_eq!(writer.write_from(lacks, &state, &map), Ok(()));
    assert_eq!(writer.pending(&chunks[2].name), None);
    assert_eq!(writer.write_from(&chunks[1], &nonsense, &map), Ok(()));
    assert_eq!(writer.write_from(has, &state, &map), Ok(()));
    assert!(writer.flush(LONG));
    let done: Vec<_> = writer.done().collect();
    assert!(
        matches!(&done[0], Done::Failed(name, why) if *name == lacks.name && why.text.contains("lacks"))
    );
    assert!(matches!(&done[1], Done::Failed(name, _) if *name == chunks[1].name));
    assert_eq!(done[2], Done::Written(has.name));
    assert_eq!((writer.queued(), writer.accepts(1)), (0, Ok(())));
}

/// A device has made something else of them.
#[test]
fn rows_with_a_value_that_is_no_number_are_neither_written_nor_read() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let writer = common::writer(&folder);
    let (good, chunks) = (state(), chunks(TOKENS));
    let map = map(&good);
    let numbers = map.layout().numbers();
    let mut out = Vec::new();
    for (nth, chunk) in chunks.iter().enumerate() {
        let mut bad = rows(chunk);
        let at = (bad.len() / 2) & !63;
        bad[at..at + 2].copy_from_slice(&[0x00, 0x7e]);
        // A process that does not know of what they consist writes them.
        writer.write(chunk, Arc::new(bad.clone())).expect("taken");
        assert!(writer.flush(LONG));
        let read = |out: &mut _| folder.read_finite(&chunk.name, chunk.bytes, &numbers, out);
        assert!(folder.read(&chunk.name, chunk.bytes, &mut out).is_ok());
        assert!(
            read(&mut out).is_err_and(|why| why.is_not_finite()),
            "{nth}"
        );
        assert!(out.is_empty());
        writer.remove(chunk.name);
        let known = Some(Arc::new(numbers.clone()));
        let taken = writer.write_accepted(chunk, Arc::new(bad.clone()), known);
        taken.expect("taken");
        // The same in a state, of which only one chunk has it.
        let mut whole = good.to_vec();
        let whole_row = rows(chunk);
        let row = &whole_row[..64];
        let first = whole
            .windows(64)
            .position(|window| window == row)
            .expect("it is there");
        whole[first..first + 2].copy_from_slice(&[0x00, 0xfc]);
        let whole = Arc::new(whole);
        for other in &chunks {
            assert_eq!(writer.write_from(other, &whole, &map), Ok(()));
        }
        assert!(writer.flush(LONG));
        let mut done = writer.done().skip(1);
        assert_eq!(done.next(), Some(Done::NotFinite(chunk.name)), "{nth}");
        for (other, done) in chunks.iter().zip(done) {
            let expected = if other == chunk {
                Done::NotFinite(other.name)
            } else {
                Done::Written(other.name)
            };
            assert_eq!(done, expected, "{nth}");
        }
        assert!(folder.lacks(&chunk.name));
        assert_eq!(
            writer.accepts(u64::MAX),
            Ok(()),
            "nothing is wrong with the disk"
        );
    }
}
