//! What a prompt asks for is looked up, before the folder has been read.

mod common;

use std::fs;
use std::sync::Arc;

use common::{LONG, rows, writer};
use contextpilot_kv_files::{Child, Folder, Index};
use contextpilot_kv_store::{Chunk, Fingerprint, Store};
use contextpilot_testbed::private_folder;

const MODEL: Fingerprint = Fingerprint([5; 16]);

fn tokens(prompt: i32, count: i32) -> Vec<i32> {
    (0..count).map(|token| prompt * 1_000_000 + token).collect()
}

/// A store with prompts that grew and branched, and tails.
fn stored(folder: &Folder) -> Store {
    let mut all = Store::new(u64::MAX);
    let writer = writer(folder);
    let put = |all: &mut Store, chunks: Vec<Chunk>| {
        for chunk in chunks {
            writer.write(&chunk, Arc::new(rows(&chunk))).unwrap();
            all.insert(chunk).unwrap();
        }
    };
    let branch = [tokens(1, 300), tokens(9, 400)].concat();
    let prompts = [
        tokens(1, 700),
        tokens(2, 700),
        tokens(3, 700),
        tokens(4, 300),
        branch,
        tokens(4, 800),
    ];
    for tokens in prompts {
        let missing = all.missing(&MODEL, &tokens, common::ROW);
        put(&mut all, missing);
    }
    for (prompt, count) in [(1, 280), (1, 700), (4, 300)] {
        let tail = all.missing_tail(&MODEL, &tokens(prompt, count), 50);
        put(&mut all, vec![tail.unwrap()]);
    }
    assert!(writer.flush(LONG));
    all
}

fn children(all: &Store) -> Vec<Child> {
    let names = all.names_after(None);
    names
        .map(|name| Child::from_chunk(all.chunk(name).unwrap().0))
        .collect()
}

/// What a fresh tree finds of these tokens by the index: how many, and where tails are.
fn found(folder: &Folder, index: &Index, tokens: &[i32]) -> (usize, Vec<usize>) {
    let mut tree = Store::new(u64::MAX);
    index.look_up(folder, &mut tree, &MODEL, tokens, u64::MAX);
    place(&tree, tokens)
}

fn place(tree: &Store, tokens: &[i32]) -> (usize, Vec<usize>) {
    let found = tree.find(&MODEL, tokens);
    let tails = tree.tails(&found);
    let starts = tails.iter().map(|tail| tail.piece.start).collect();
    (found.tokens(), starts)
}

fn prompts() -> Vec<Vec<i32>> {
    let mut prompts: Vec<_> = (1..6).map(|prompt| tokens(prompt, 900)).collect();
    prompts.push([tokens(1, 300), tokens(9, 500)].concat());
    prompts.push([tokens(1, 290), tokens(7, 20)].concat());
    prompts.push(Vec::new());
    prompts
}

#[test]
fn a_prompt_is_found_as_if_all_of_the_folder_had_been_read() {
    let home = private_folder();
    let folder = Folder::open(home.path()).unwrap();
    let all = stored(&folder);
    assert!(folder.index().is_none());
    folder.write_index(children(&all)).unwrap();
    let again = Folder::open(home.path()).unwrap();
    let index = again.index().unwrap();
    assert_eq!(index.len(), all.chunks());
    let mut tree = Store::new(u64::MAX);
    for prompt in prompts() {
        let expected = place(&all, &prompt);
        assert_eq!(found(&again, &index, &prompt), expected);
        // In a tree that has something already.
        index.look_up(&again, &mut tree, &MODEL, &prompt, u64::MAX);
        assert_eq!(place(&tree, &prompt), expected);
    }
    assert_eq!(place(&all, &prompts()[0]), (700, vec![280, 700]));
    assert_eq!(place(&all, &prompts()[3]), (800, vec![300]));
    let other = Fingerprint([6; 16]);
    index.look_up(&again, &mut tree, &other, &prompts()[0], u64::MAX);
    assert_eq!(tree.find(&other, &prompts()[0]).tokens(), 0);
}

/// Processes that wrote at the same time for prompts that part within a chunk.
#[test]
fn of_several_chunks_for_one_place_all_are_looked_up() {
    let home = private_folder();
    let folder = Folder::open(home.path()).unwrap();
    let writer = writer(&folder);
    let parted: Vec<Vec<i32>> = [1, 100, 120]
        .map(|at| [tokens(1, at), tokens(at, 400)].concat())
        .into();
    let mut all = Store::new(u64::MAX);
    for (prompt, first) in parted.iter().zip([300, 100, 200]) {
        let mut own = Store::new(u64::MAX);
        for length in [first, prompt.len()] {
            for chunk in own.missing(&MODEL, &prompt[..length], common::ROW) {
                writer.write(&chunk, Arc::new(rows(&chunk))).unwrap();
                own.insert(chunk.clone()).unwrap();
                all.load(chunk, 1);
            }
        }
    }
    assert!(writer.flush(LONG));
    folder.write_index(children(&all)).unwrap();
    let index = folder.index().unwrap();
    for prompt in &parted {
        assert_eq!(found(&folder, &index, prompt).0, prompt.len());
    }
    let other = [tokens(1, 120), tokens(7, 9)].concat();
    assert_eq!(found(&folder, &index, &other).0, 120);
}

#[test]
fn what_is_gone_is_not_found_and_what_is_new_is_not_missed_for_long() {
    let home = private_folder();
    let folder = Folder::open(home.path()).unwrap();
    let all = stored(&folder);
    folder.write_index(children(&all)).unwrap();
    let index = folder.index().unwrap();
    let second = all.find(&MODEL, &tokens(2, 700)).pieces()[1].name;
    folder.remove(&second).unwrap();
    assert_eq!(found(&folder, &index, &tokens(2, 700)).0, 256);
    let damaged = all.find(&MODEL, &tokens(3, 700)).pieces()[0].name;
    fs::write(common::path(&folder, &damaged), "other").unwrap();
    assert_eq!(found(&folder, &index, &tokens(3, 700)).0, 0);
    assert_eq!(found(&folder, &index, &tokens(1, 700)).0, 700);
}

#[test]
fn an_index_that_is_damaged_or_cut_off_is_none() {
    let home = private_folder();
    let folder = Folder::open(home.path()).unwrap();
    let all = stored(&folder);
    folder.write_index(children(&all)).unwrap();
    let path = home.path().join("v1/index");
    let bytes = fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert!(folder.index().is_none(), "byte {at}");
        fs::write(&path, &bytes[..at]).unwrap();
        assert!(folder.index().is_none(), "{at} bytes");
    }
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    assert!(folder.index().is_none());
    // It is replaced.
    folder.write_index(children(&all)).unwrap();
    assert_eq!(folder.index().unwrap().len(), all.chunks());
    // There is none of so few chunks.
    folder.keep_index(children(&all)).unwrap();
    assert!(!path.exists());
    folder.keep_index(children(&all)).unwrap();
}
