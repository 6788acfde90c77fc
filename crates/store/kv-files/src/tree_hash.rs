//! What is in large files, as one digest, which is soon made: a model of 30 GB is read by all processors at once.
//!
//! BLAKE3 of each piece, and BLAKE3 of these. A core of an EPYC of 2022, which has instructions for SHA-256, sums up 2.1 GB a
//! second by it, and 0.9 by SHA-256; without such instructions SHA-256 takes twelve times as long as BLAKE3.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use contextpilot_admission::STACK;

use crate::flow::Readers;
use crate::folder::STEP;

/// Bytes of a file that one thread sums up. It is part of what a digest means.
const PIECE: u64 = 4 << 20;
/// In front of what the last digest is made of. Another way to make it has another text here.
const MEANING: &[u8] = b"contextpilot files, pieces of 4 MiB, 1";

/// The digest of these files together, in this order. `None`: there is none, or one cannot be read.
/// `read` grows by the bytes that have been read.
pub fn digest_of(parts: &[File], readers: Readers, read: &AtomicU64) -> Option<[u8; 16]> {
    let sizes: Option<Vec<u64>> = parts
        .iter()
        .map(|part| Some(part.metadata().ok()?.len()))
        .collect();
    let sizes = sizes.filter(|sizes| !sizes.is_empty())?;
    let pieces: Vec<Piece<'_>> = parts
        .iter()
        .zip(&sizes)
        .flat_map(|(file, size)| {
            let places = (0..size.div_ceil(PIECE)).map(|nth| nth * PIECE);
            places.map(move |at| Piece {
                file,
                at,
                size: PIECE.min(size - at),
            })
        })
        .collect();
    let sums = sums_of(&pieces, readers, read)?;
    let mut whole = blake3::Hasher::new();
    whole.update(MEANING);
    for size in &sizes {
        whole.update(&size.to_le_bytes());
    }
    for sum in &sums {
        whole.update(sum);
    }
    let whole = whole.finalize();
    Some(std::array::from_fn(|i| whole.as_bytes()[i]))
}

struct Piece<'a> {
    file: &'a File,
    at: u64,
    size: u64,
}

impl Piece<'_> {
    /// `None`: it cannot be read, or the file is shorter now.
    fn sum(&self, block: &mut [u8], read: &AtomicU64) -> Option<Sum> {
        let mut hash = blake3::Hasher::new();
        let mut done = 0;
        while done < self.size {
            let left = usize::try_from(self.size - done).unwrap_or(usize::MAX);
            let block = &mut block[..left.min(STEP)];
            self.file.read_exact_at(block, self.at + done).ok()?;
            hash.update(block);
            done += block.len() as u64;
            read.fetch_add(block.len() as u64, Ordering::Relaxed);
        }
        Some(hash.finalize().into())
    }
}

type Sum = [u8; 32];

/// Those of all pieces, in order: on the caller's thread and others.
fn sums_of(pieces: &[Piece<'_>], readers: Readers, read: &AtomicU64) -> Option<Vec<Sum>> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let all = Mutex::new(vec![Sum::default(); pieces.len()]);
    let work = || {
        let mut block = vec![0; STEP];
        while !failed.load(Ordering::Relaxed) {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(nth) else {
                return;
            };
            match piece.sum(&mut block, read) {
                Some(sum) => all.lock().unwrap_or_else(PoisonError::into_inner)[nth] = sum,
                None => failed.store(true, Ordering::Relaxed),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..readers.threads.min(pieces.len().saturating_sub(1)) {
            let thread = thread::Builder::new()
                .name("contextpilot-digest".to_owned())
                .stack_size(STACK);
            let started = thread.spawn_scoped(scope, || {
                (readers.on_start)();
                work();
            });
            if started.is_err() {
                break;
            }
        }
        work();
    });
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    (!failed.into_inner()).then_some(all)
}
