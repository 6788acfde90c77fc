//! Digests of large files: how they are made, and how they are kept beside the store.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use contextpilot_kv_files::{Folder, Readers};
use contextpilot_testbed::{Random, private_folder};
use tempfile::TempDir;

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
    let expected = of(0);
    for threads in [1, 3, 64] {
        assert_eq!(of(threads), expected);
    }
    assert_eq!(
        u128::from_be_bytes(expected),
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

const DIGEST: [u8; 16] = [7; 16];

/// A store, and a file of some megabytes beside it.
fn stored() -> (TempDir, Folder, PathBuf) {
    let home = private_folder();
    let folder = Folder::open(home.path()).unwrap();
    let path = home.path().join("model.gguf");
    let mut random = Random(5);
    let bytes: Vec<u8> = (0..3 << 20).map(|_| random.draw() as u8).collect();
    fs::write(&path, bytes).unwrap();
    (home, folder, path)
}

fn open(path: &Path) -> [File; 1] {
    [File::options().read(true).write(true).open(path).unwrap()]
}

/// When it was written long ago.
fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

#[test]
fn a_digest_is_there_again_while_the_file_is_what_it_was() {
    let (home, folder, path) = stored();
    let parts = open(&path);
    assert_eq!(folder.kept_digest(&parts), None);
    folder.keep_digest(&parts, later(), DIGEST).unwrap();
    // Another process, by another name of the file.
    let again = Folder::open(home.path()).unwrap();
    assert_eq!(again.kept_digest(&open(&path)), Some(DIGEST));
    // Another file, and two of them.
    let other = path.with_extension("other");
    fs::copy(&path, &other).unwrap();
    assert_eq!(again.kept_digest(&open(&other)), None);
    let [first] = open(&path);
    let [second] = open(&other);
    assert_eq!(again.kept_digest(&[first, second]), None);
    // What was written by another version, or is cut off.
    let kept = fs::read_dir(home.path().join("v1/digests")).unwrap();
    for entry in kept {
        let record = entry.unwrap().path();
        let bytes = fs::read(&record).unwrap();
        for bad in [&bytes[1..], &[&[9], &bytes[1..]].concat(), &bytes[..0]] {
            fs::write(&record, bad).unwrap();
            assert_eq!(again.kept_digest(&open(&path)), None);
        }
        fs::write(&record, bytes).unwrap();
        assert_eq!(again.kept_digest(&open(&path)), Some(DIGEST));
    }
}

#[test]
fn a_file_that_was_written_into_is_hashed_again_though_size_and_time_are_the_same() {
    let (_home, folder, path) = stored();
    let [file] = open(&path);
    folder.keep_digest(&open(&path), later(), DIGEST).unwrap();
    let written = file.metadata().unwrap().modified().unwrap();
    let changed =
        |file: &File| std::os::unix::fs::MetadataExt::ctime_nsec(&file.metadata().unwrap());
    let before = changed(&file);
    while changed(&file) == before {
        file.write_all_at(b"other", 1 << 20).unwrap();
        file.set_modified(written).unwrap();
    }
    assert_eq!(folder.kept_digest(&[file]), None);
}

/// Nothing else in such a file would say so.
#[test]
fn a_record_that_is_damaged_anywhere_is_not_believed() {
    let (home, folder, path) = stored();
    fs::write(&path, [0]).unwrap();
    let parts = open(&path);
    folder.keep_digest(&parts, later(), DIGEST).unwrap();
    let kept = fs::read_dir(home.path().join("v1/digests")).unwrap();
    let record = kept.map(|entry| entry.unwrap().path()).next().unwrap();
    let bytes = fs::read(&record).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&record, damaged).unwrap();
        assert_eq!(folder.kept_digest(&parts), None, "byte {at}");
    }
    fs::write(&record, bytes).unwrap();
    assert_eq!(folder.kept_digest(&parts), Some(DIGEST));
}

#[test]
fn only_file_systems_that_keep_numbers_and_times_are_trusted() {
    let (home, folder, _) = stored();
    let parts = [File::open("/proc/version").unwrap()];
    folder.keep_digest(&parts, later(), DIGEST).unwrap();
    assert_eq!(folder.kept_digest(&parts), None);
    assert!(!home.path().join("v1/digests").exists());
}

/// A file system that gives the numbers of one file to another one, with its times.
#[test]
fn some_of_what_is_in_the_file_must_be_what_it_was() {
    let (home, folder, path) = stored();
    let mut bytes = fs::read(&path).unwrap();
    folder.keep_digest(&open(&path), later(), DIGEST).unwrap();
    let kept = fs::read_dir(home.path().join("v1/digests")).unwrap();
    let record = kept.map(|entry| entry.unwrap().path()).next().unwrap();
    // The end of a file is always looked at.
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    folder.keep_digest(&open(&path), later(), [8; 16]).unwrap();
    let kept = fs::read_dir(home.path().join("v1/digests")).unwrap();
    let other = kept
        .map(|entry| entry.unwrap().path())
        .find(|path| *path != record)
        .unwrap();
    assert_eq!(folder.kept_digest(&open(&path)), Some([8; 16]));
    fs::copy(&record, &other).unwrap();
    assert_eq!(folder.kept_digest(&open(&path)), None);
}

#[test]
fn what_changed_a_moment_ago_or_in_the_future_is_not_trusted() {
    let (home, folder, path) = stored();
    folder
        .keep_digest(&open(&path), SystemTime::now(), DIGEST)
        .unwrap();
    assert_eq!(folder.kept_digest(&open(&path)), None);
    assert!(!home.path().join("v1/digests").exists());
    // The clock was set back since.
    let [file] = open(&path);
    file.set_modified(SystemTime::now() + Duration::from_secs(600))
        .unwrap();
    folder.keep_digest(&open(&path), later(), DIGEST).unwrap();
    assert_eq!(folder.kept_digest(&open(&path)), None);
    folder.keep_digest(&[], later(), DIGEST).unwrap();
    assert_eq!(folder.kept_digest(&[]), None);
}
