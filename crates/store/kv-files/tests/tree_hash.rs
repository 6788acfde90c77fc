//! The digest of what is in large files.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;

use contextpilot_kv_files::Readers;
use contextpilot_testbed::Random;

const PIECE: usize = 4 << 20;

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

fn with(threads: usize) -> Readers {
    Readers {
        threads,
        on_start: || (),
    }
}

fn digest_of(parts: &[File], readers: Readers) -> Option<[u8; 16]> {
    contextpilot_kv_files::digest_of(parts, readers, &AtomicU64::new(0))
}

fn bytes(count: usize) -> Vec<u8> {
    let mut random = Random(7);
    (0..count).map(|_| random.draw() as u8).collect()
}

/// Digests are in the names of all chunks: they stay what they are.
#[test]
fn it_is_the_same_with_any_number_of_threads_and_in_years() {
    let bytes = bytes(3 * PIECE + 5);
    let of = |threads| digest_of(&[file(&bytes)], with(threads)).unwrap();
    let one = of(0);
    for threads in [1, 3, 64] {
        assert_eq!(of(threads), one);
    }
    assert_eq!(
        u128::from_be_bytes(one),
        78819473990542319357745123897094083021
    );
    let empty = digest_of(&[file(b"")], with(2)).unwrap();
    assert_eq!(
        u128::from_be_bytes(empty),
        171011144906297845469676218520435362249
    );
}

#[test]
fn each_byte_each_size_and_each_division_counts() {
    let bytes = bytes(2 * PIECE + 1);
    let whole = file(&bytes);
    let mut seen = vec![digest_of(std::slice::from_ref(&whole), with(1))];
    for at in [0, 1, PIECE - 1, PIECE, 2 * PIECE - 1, 2 * PIECE] {
        whole.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
        seen.push(digest_of(std::slice::from_ref(&whole), with(1)));
        whole.write_all_at(&bytes[at..=at], at as u64).unwrap();
    }
    assert_eq!(digest_of(std::slice::from_ref(&whole), with(1)), seen[0]);
    for shorter in [2 * PIECE, PIECE] {
        seen.push(digest_of(&[file(&bytes[..shorter])], with(1)));
    }
    let (first, second) = bytes.split_at(PIECE);
    seen.push(digest_of(&[file(first), file(second)], with(1)));
    seen.push(digest_of(&[file(second), file(first)], with(1)));
    seen.push(digest_of(&[file(first), file(b""), file(second)], with(1)));
    assert!(seen.iter().all(Option::is_some));
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all);
}

#[test]
fn what_cannot_be_read_has_none() {
    assert_eq!(digest_of(&[], with(1)), None);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("write-only");
    let file = File::create(&path).unwrap();
    file.set_len(3 * PIECE as u64).unwrap();
    assert_eq!(digest_of(&[file], with(1)), None);
}

#[test]
fn how_much_was_read_is_counted() {
    let parts = [file(&bytes(2 * PIECE + 5)), file(&bytes(7))];
    let read = AtomicU64::new(0);
    contextpilot_kv_files::digest_of(&parts, with(2), &read).unwrap();
    assert_eq!(read.into_inner(), 2 * PIECE as u64 + 12);
}
