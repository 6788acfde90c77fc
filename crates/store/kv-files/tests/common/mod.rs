//! Folders and chunks for the tests.

#![allow(dead_code)] // Each test program uses a part of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_kv_files::{Done, Folder, Header, Writer};
use contextpilot_kv_store::{Chunk, Fingerprint, Name, Store};
use contextpilot_testbed::Random;

pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Bytes a token.
pub(crate) const ROW: usize = 1000;

pub(crate) fn writer(folder: &Folder) -> Writer {
    Writer::start(folder.clone(), u64::MAX, || (), || false).expect("a thread")
}

/// The chunks of a prompt of so many tokens; prompts share nothing.
pub(crate) fn chunks(prompt: i32, tokens: i32) -> Vec<Chunk> {
    let tokens: Vec<i32> = (0..tokens)
        .map(|token| prompt * 1_000_000 + token)
        .collect();
    Store::new(0).missing(&Fingerprint([5; 16]), &tokens, ROW)
}

/// Rows that belong to this chunk only.
pub(crate) fn rows(chunk: &Chunk) -> Vec<u8> {
    let mut random = Random(u64::from_le_bytes(
        *chunk.name.0.first_chunk().expect("eight"),
    ));
    (0..chunk.bytes).map(|_| random.draw() as u8).collect()
}

/// Writes the chunks and waits for them.
pub(crate) fn write(folder: &Folder, chunks: &[Chunk]) -> Vec<Done> {
    let writer = writer(folder);
    for chunk in chunks {
        writer
            .write(chunk, Arc::new(rows(chunk)))
            .expect("it is taken");
    }
    assert!(writer.flush(LONG));
    writer.done().collect()
}

pub(crate) fn all_written(chunks: &[Chunk]) -> Vec<Done> {
    chunks
        .iter()
        .map(|chunk| Done::Written(chunk.name))
        .collect()
}

pub(crate) fn path(folder: &Folder, name: &Name) -> PathBuf {
    let name = name.to_string();
    folder
        .path()
        .join("v1")
        .join(&name[..2])
        .join(format!("{name}.kv"))
}

pub(crate) fn headers(folder: &Folder) -> Vec<Header> {
    let mut headers: Vec<Header> = folder.headers().expect("it can be read").collect();
    headers.sort_by_key(|header| (header.chunk.tokens[0], header.chunk.start));
    headers
}

pub(crate) fn found(folder: &Folder) -> Vec<Chunk> {
    headers(folder)
        .into_iter()
        .map(|header| header.chunk)
        .collect()
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path)
        .expect("it is there")
        .permissions()
        .mode()
        & 0o7777
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG, "{what}: it took too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}
