//! Digests of large files: how one is made, and how it is kept.
//!
//! A model of 30 GB is read by all processors at once ([`digest_of`]): BLAKE3 of each piece, and BLAKE3 of these. A core of an
//! EPYC of 2022, which has instructions for SHA-256, sums up 2.1 GB a second by it, and 0.9 by SHA-256; without such
//! instructions SHA-256 takes twelve times as long as BLAKE3. That may still take minutes, so digests are kept.
//!
//! A digest is kept under what makes a file that file: device, inode, size, and the times of the last write and of the last
//! change, to the nanosecond. No process can set the last one. Besides, some megabytes of the file are read at
//! places that follow from the digest, and must be what they were: a file system that does not keep its promises is found out.
//! What cannot be trusted is not kept, and not believed: files that changed a moment ago (the clock of a file system has
//! steps) or in the future (it was set back since), and those of file systems elsewhere, whose inodes may be given again.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contextpilot_admission::STACK;
use rustix::fs::{AtFlags, Dir};

use crate::flow::Readers;
use crate::folder::{Folder, NEW, STEP, open_to_read, put};

/// Bytes of a file that one thread sums up. It is part of what a digest means.
const PIECE: u64 = 4 << 20;
/// In front of what the last digest is made of. Another way to make it has another text here.
const MEANING: &[u8] = b"contextpilot files, pieces of 4 MiB, 1";
/// Where kept digests are.
const DIGESTS: &str = "digests";
/// So many are kept at most. A person has fewer models, adapters and engines.
const MOST: usize = 1000;
/// What changed within this time before it was read is not trusted.
const SETTLED: Duration = Duration::from_secs(2);
/// Places that are read again, and how much at each, bytes.
const PLACES: u64 = 32;
const PLACE: usize = 64 << 10;

/// A record: version, digest, and the digest of what is read again.
/// Version 1 had another digest.
const VERSION: u8 = 2;
const RECORD: usize = 1 + 16 + 16;

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

impl Folder {
    /// The digest of these files together, if it was kept and they are still what they were.
    pub fn kept_digest(&self, parts: &[File]) -> Option<[u8; 16]> {
        let identity = Identity::read(parts, SystemTime::now())?;
        let file = open_to_read(&*self.private(), &identity.path()).ok()?;
        let mut record = [0; RECORD];
        file.read_exact_at(&mut record, 0).ok()?;
        let is_whole = file.metadata().ok()?.len() == RECORD as u64;
        let [version, rest @ ..] = record;
        let digest: [u8; 16] = std::array::from_fn(|i| rest[i]);
        let is_good = is_whole && version == VERSION && sample(parts, &digest)?[..] == rest[16..];
        is_good.then_some(digest)
    }

    /// Keeps the digest of these files together, which began to be made at this time.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_digest(
        &self,
        parts: &[File],
        began: SystemTime,
        digest: [u8; 16],
    ) -> io::Result<()> {
        let identity = began
            .checked_sub(SETTLED)
            .and_then(|then| Identity::read(parts, then));
        let (Some(identity), Some(sample)) = (identity, sample(parts, &digest)) else {
            return Ok(());
        };
        let new = self.inner(NEW)?;
        let inner = self.inner(DIGESTS)?;
        let few = Dir::read_from(&inner)?.flatten().take(MOST + 2).count() < MOST + 2;
        if !few {
            self.forget_digests(&inner)?;
        }
        let record = [&[VERSION][..], &digest, &sample].concat();
        put(
            self,
            &mut 0,
            &new,
            |file| file.write_all(&record),
            &identity.path(),
        )
    }

    /// Removes all of them: they are made again.
    fn forget_digests(&self, inner: &impl std::os::fd::AsFd) -> io::Result<()> {
        for entry in Dir::read_from(inner)?.flatten() {
            let _ = rustix::fs::unlinkat(inner, entry.file_name(), AtFlags::empty());
        }
        Ok(())
    }
}

/// What makes files these files.
struct Identity(blake3::Hash);

impl Identity {
    /// `None`: they changed after this time, or it cannot be relied on.
    fn read(parts: &[File], before: SystemTime) -> Option<Self> {
        let before = before.duration_since(UNIX_EPOCH).ok()?;
        let before = (
            i64::try_from(before.as_secs()).ok()?,
            i64::from(before.subsec_nanos()),
        );
        let mut hash = blake3::Hasher::new();
        for part in parts {
            let found = part.metadata().ok()?;
            let written = (found.mtime(), found.mtime_nsec());
            let changed = (found.ctime(), found.ctime_nsec());
            if written > before || changed > before || is_elsewhere(part) {
                return None;
            }
            for number in [found.dev(), found.ino(), found.size()] {
                hash.update(&number.to_le_bytes());
            }
            for number in [written.0, written.1, changed.0, changed.1] {
                hash.update(&number.to_le_bytes());
            }
        }
        (!parts.is_empty()).then(|| Self(hash.finalize()))
    }

    fn path(&self) -> String {
        let name: String = self.0.as_bytes()[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{DIGESTS}/{name}")
    }
}

/// Whether a file is on a file system whose numbers and times may be those of another file later: of another machine or a
/// program, or one like FAT, which makes up numbers and has coarse times. These are known to keep them.
#[cfg(target_os = "linux")]
fn is_elsewhere(file: &File) -> bool {
    /// ext2 to ext4, XFS, Btrfs, tmpfs, ramfs, overlayfs, ZFS, F2FS, bcachefs, JFS, ReiserFS. Not EROFS and SquashFS, whose
    /// images say what the times are.
    const KEEP: [u32; 11] = [
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0x0102_1994,
        0x8584_58f6,
        0x794c_7630,
        0x2fc1_2fc1,
        0xf2f5_2010,
        0xca45_1a4e,
        0x3153_464a,
        0x5265_4973,
    ];
    let found = rustix::fs::fstatfs(file);
    !found.is_ok_and(|found| KEEP.contains(&(found.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
fn is_elsewhere(_: &File) -> bool {
    true
}

/// The digest of what stands at places that follow from a digest.
fn sample(parts: &[File], digest: &[u8; 16]) -> Option<[u8; 16]> {
    let mut hash = blake3::Hasher::new();
    // So a record whose digest is damaged is damaged, whatever the file is.
    hash.update(digest);
    let mut block = vec![0; PLACE];
    let sizes: Option<Vec<u64>> = parts
        .iter()
        .map(|part| Some(part.metadata().ok()?.len()))
        .collect();
    let sizes = sizes?;
    let whole: u64 = sizes.iter().sum();
    for nth in 0..PLACES {
        let drawn = blake3::hash(&[&digest[..], &nth.to_le_bytes()].concat());
        let place = u64::from_le_bytes(std::array::from_fn(|i| drawn.as_bytes()[i]));
        // The end, and the beginning, are always among them.
        let mut at = match nth {
            0 => 0,
            1 => whole.saturating_sub(PLACE as u64),
            _ => place % whole.max(1),
        };
        for (part, size) in parts.iter().zip(&sizes) {
            if at < *size {
                let most = usize::try_from(size - at).unwrap_or(PLACE).min(PLACE);
                part.read_exact_at(&mut block[..most], at).ok()?;
                hash.update(&block[..most]);
                break;
            }
            at -= size;
        }
    }
    let made = hash.finalize();
    Some(std::array::from_fn(|i| made.as_bytes()[i]))
}
