//! Files that are not what was written.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use common::*;
use contextpilot_kv_files::{Folder, ReadError};
use contextpilot_kv_store::Chunk;
use contextpilot_testbed::private_folder;
use tempfile::TempDir;

struct Kept {
    _home: TempDir,
    folder: Folder,
    chunk: Chunk,
    path: PathBuf,
    bytes: Vec<u8>,
}

/// A chunk of so many tokens that has a parent, and its file.
fn kept(tokens: i32) -> Kept {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let mut chunk = chunks(1, 256 + tokens).remove(1);
    chunk.bytes = 50 * tokens as u64;
    write(&folder, std::slice::from_ref(&chunk));
    let path = path(&folder, &chunk.name);
    let bytes = fs::read(&path).expect("it is there");
    Kept {
        _home: home,
        folder,
        chunk,
        path,
        bytes,
    }
}

impl Kept {
    fn put(&self, bytes: &[u8]) {
        fs::write(&self.path, bytes).expect("it is ours");
    }

    fn read(&self) -> Result<Vec<u8>, ReadError> {
        let mut out = vec![9; 7];
        let read = self
            .folder
            .read(&self.chunk.name, self.chunk.bytes, &mut out);
        assert!(
            read.is_ok() || out.is_empty(),
            "nothing of a bad file is given out"
        );
        read.map(|()| out)
    }

    /// The rows are not given out. The header is not, either, if the damage is there; and the file
    /// is removed, unless it may be another version's.
    fn is_refused(&self, at: usize, foreign: bool) {
        assert!(
            matches!(self.read(), Err(ReadError::Damaged(_))),
            "byte {at}"
        );
        let head = 128 + 4 * self.chunk.tokens.len();
        let mut headers = self.folder.headers().expect("it can be read");
        let seen: Vec<_> = headers.by_ref().map(|header| header.chunk).collect();
        if at >= head {
            assert_eq!(seen, std::slice::from_ref(&self.chunk));
            return;
        }
        assert_eq!(seen, [], "byte {at}");
        let counts = (headers.damaged, headers.foreign, headers.unreadable);
        assert_eq!(
            counts,
            if foreign { (0, 1, 0) } else { (1, 0, 0) },
            "byte {at}"
        );
        assert_eq!(self.path.exists(), foreign);
    }
}

#[test]
fn every_flipped_bit_is_seen() {
    let kept = kept(3);
    for at in 0..kept.bytes.len() {
        for bit in 0..8 {
            let mut bytes = kept.bytes.clone();
            bytes[at] ^= 1 << bit;
            kept.put(&bytes);
            let version = bytes[8..12] != [0; 4] && (8..12).contains(&at);
            kept.is_refused(at, version);
        }
    }
    kept.put(&kept.bytes);
    assert_eq!(kept.read().expect("it is whole"), rows(&kept.chunk));
}

#[test]
fn every_other_length_is_seen() {
    let kept = kept(30);
    for length in 0..kept.bytes.len() {
        kept.put(&kept.bytes[..length]);
        kept.is_refused(0, false);
        // What a power cut leaves: the length is right, the end was never written.
        let mut bytes = kept.bytes[..length].to_vec();
        bytes.resize(kept.bytes.len(), 0);
        let differs = bytes.iter().zip(&kept.bytes).position(|(a, b)| a != b);
        if let Some(at) = differs {
            kept.put(&bytes);
            kept.is_refused(at, false);
        }
    }
    for more in [1, 4, 4096] {
        let mut bytes = kept.bytes.clone();
        bytes.resize(kept.bytes.len() + more, 0);
        kept.put(&bytes);
        kept.is_refused(0, false);
    }
}

#[test]
fn the_file_of_another_chunk_is_seen() {
    let kept = kept(20);
    let mut other = chunks(2, 20).remove(0);
    other.bytes = kept.chunk.bytes;
    write(&kept.folder, std::slice::from_ref(&other));
    let theirs = path(&kept.folder, &other.name);
    let bytes = fs::read(&theirs).expect("it is there");
    fs::remove_file(theirs).expect("it is there");
    kept.put(&bytes);
    kept.is_refused(0, false);
    // Their rows below our header.
    let head = 128 + 4 * kept.chunk.tokens.len();
    kept.put(&[&kept.bytes[..head], &bytes[head..]].concat());
    kept.is_refused(head, false);
}

#[test]
fn another_size_than_the_tree_has_is_refused() {
    let kept = kept(20);
    let mut out = Vec::new();
    for bytes in [0, 1, kept.chunk.bytes - 1, kept.chunk.bytes + 1, u64::MAX] {
        let read = kept.folder.read(&kept.chunk.name, bytes, &mut out);
        assert!(matches!(read, Err(ReadError::Damaged(_))), "{bytes}");
    }
}

#[test]
fn what_is_no_file_is_not_read() {
    let kept = kept(2);
    let other = kept.folder.path().join("other");
    fs::write(&other, &kept.bytes).expect("a file");
    fs::remove_file(&kept.path).expect("it is there");
    symlink(&other, &kept.path).expect("a link");
    assert!(matches!(kept.read(), Err(ReadError::Damaged(_))));
    fs::remove_file(&kept.path).expect("it is there");
    fs::create_dir(&kept.path).expect("a folder");
    assert!(kept.read().is_err());
    fs::remove_dir(&kept.path).expect("it is there");
    // Nothing writes to it: reading must not wait for that.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &kept.path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("a pipe");
    assert!(matches!(kept.read(), Err(ReadError::Damaged(_))));
    let mut headers = kept.folder.headers().expect("it can be read");
    assert_eq!(headers.next(), None);
    assert_eq!((headers.damaged, headers.foreign), (0, 1));
}

#[test]
fn files_of_others_stay() {
    let kept = kept(2);
    let folder = kept.path.parent().expect("it has one");
    let root = kept.folder.path().join("v1");
    let others = [
        folder.join("README"),
        folder.join("0123.kv"),
        folder.join(format!("{}.kv.bak", kept.chunk.name)),
        root.join("notes"),
        root.join("v9"),
    ];
    for other in &others {
        fs::write(other, "something").expect("a file");
    }
    let mut headers = kept.folder.headers().expect("it can be read");
    assert_eq!(headers.by_ref().count(), 1);
    assert_eq!((headers.damaged, headers.foreign), (0, 3));
    assert!(others.iter().all(|other| other.exists()));
}
