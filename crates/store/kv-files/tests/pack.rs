//! Packs: chunks in one file, of which nothing is taken unless all of it is as it was written.

mod common;

use std::io::Cursor;

use common::{chunks, rows};
use contextpilot_kv_files::{Pack, PackError, PackWriter};
use contextpilot_kv_store::{Chunk, Facts, Fingerprint, Origin, Store, What};

fn origin() -> Origin {
    let mut facts = Facts::default();
    facts.push(What::Model, vec![7; 16]);
    Origin::new("tea.gguf".to_owned(), &facts, None)
}

fn chunks_of(fingerprint: &Fingerprint, tokens: i32, bytes: usize) -> Vec<Chunk> {
    let tokens: Vec<i32> = (0..tokens).collect();
    Store::new(0).missing(fingerprint, &tokens, bytes)
}

fn pack(chunks: &[Chunk]) -> Vec<u8> {
    let mut pack = PackWriter::begin(Vec::new(), &[origin()], chunks).expect("it is written");
    for chunk in chunks {
        pack.chunk(chunk, &rows(chunk)).expect("it is written");
    }
    pack.finish().expect("it is whole")
}

#[test]
fn a_pack_is_read_as_it_was_written() {
    let chunks = chunks_of(&origin().fingerprint, 600, 10);
    let bytes = pack(&chunks);
    let mut pack = Pack::open(Cursor::new(&bytes)).expect("it is good");
    assert_eq!(pack.origins, [origin()]);
    assert_eq!(pack.chunks, chunks);
    // As often as one likes.
    for most in [3, 3, 1] {
        let mut seen = Vec::new();
        let read = pack.each(|chunk, bytes| {
            assert_eq!(bytes, rows(chunk));
            seen.push(chunk.clone());
            seen.len() < most
        });
        read.expect("it is good");
        assert_eq!(seen, chunks[..most]);
    }
}

#[test]
fn damage_of_every_byte_is_noticed() {
    let bytes = pack(&chunks_of(&origin().fingerprint, 20, 8));
    for at in 0..bytes.len() {
        for bit in [1, 0x80] {
            let mut damaged = bytes.clone();
            damaged[at] ^= bit;
            assert!(Pack::open(Cursor::new(&damaged)).is_err(), "byte {at}");
        }
        assert!(Pack::open(Cursor::new(&bytes[..at])).is_err(), "{at} bytes");
    }
    let longer = [&*bytes, &[0]].concat();
    assert!(Pack::open(Cursor::new(&longer)).is_err());
}

#[test]
fn other_files_and_versions_are_named() {
    let mut bytes = pack(&chunks_of(&origin().fingerprint, 5, 8));
    bytes[8] = 4;
    let why = Pack::open(Cursor::new(&bytes)).map(drop);
    assert!(matches!(why, Err(PackError::Version(4))), "{why:?}");
    let letter = [b'a'; 200];
    let why = Pack::open(Cursor::new(&letter)).map(drop);
    assert!(matches!(why, Err(PackError::Foreign)), "{why:?}");
}

/// A prompt's KV and its hidden states. Each of these is what it says, and stands behind chunks of its own kind.
#[test]
fn a_pack_of_two_kinds_is_read_as_it_was_written() {
    let mut facts = Facts::default();
    facts.push(What::Model, vec![7; 16]);
    facts.push(What::Rows, contextpilot_kv_store::HIDDEN_STATES.to_vec());
    let origins = [origin(), Origin::new("tea.gguf".to_owned(), &facts, None)];
    assert!(origins[1].is_hidden_of(&origins[0]));
    assert!(!origins[0].is_hidden_of(&origins[1]) && !origins[0].is_hidden_of(&origins[0]));
    let [kv, hidden] =
        [(0, 10), (1, 4)].map(|(nth, size)| chunks_of(&origins[nth].fingerprint, 600, size));
    let written = |origins: &[Origin], chunks: &[Chunk]| {
        let mut pack = PackWriter::begin(Vec::new(), origins, chunks).expect("it is written");
        for chunk in chunks {
            pack.chunk(chunk, &rows(chunk)).expect("it is written");
        }
        pack.finish().expect("it is whole")
    };
    let chunks = [&kv[..], &hidden].concat();
    let bytes = written(&origins, &chunks);
    let mut pack = Pack::open(Cursor::new(&bytes)).expect("it is good");
    assert_eq!((&pack.origins[..], &pack.chunks), (&origins[..], &chunks));
    let mut seen = 0;
    let each = pack.each(|chunk, bytes| {
        seen += 1;
        bytes == rows(chunk)
    });
    each.expect("it is good");
    assert_eq!(seen, chunks.len());

    let of_another = Chunk {
        parent: Some((kv[0].name, 256)),
        ..hidden[1].clone()
    };
    let not_its_own = [&kv[..], &[of_another]].concat();
    for (origins, chunks) in [(&origins[..], &not_its_own), (&origins[..1], &chunks)] {
        let why = Pack::open(Cursor::new(written(origins, chunks))).map(drop);
        assert!(matches!(why, Err(PackError::Damaged(_))), "{why:?}");
    }
    for at in 32..bytes.len().min(400) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(Pack::open(Cursor::new(&damaged)).is_err(), "byte {at}");
    }
}

/// Also if the sums are right: a pack may come from a stranger.
#[test]
fn chunks_that_do_not_belong_together_are_refused() {
    let good = chunks_of(&origin().fingerprint, 600, 8);
    let backwards: Vec<Chunk> = good.iter().rev().cloned().collect();
    let without_the_first = good[1..].to_vec();
    let twice = [&good[..], &good[..1]].concat();
    for chunks in [backwards, without_the_first, twice, chunks(1, 20)] {
        let why = Pack::open(Cursor::new(pack(&chunks))).map(drop);
        assert!(matches!(why, Err(PackError::Damaged(_))), "{why:?}");
    }
}

#[test]
fn what_was_announced_must_follow() {
    let chunks = chunks_of(&origin().fingerprint, 300, 8);
    let begin = || PackWriter::begin(Vec::new(), &[origin()], &chunks).expect("it is written");
    assert!(begin().finish().is_err());
    let mut pack = begin();
    for chunk in chunks.iter().rev() {
        pack.chunk(chunk, &rows(chunk)).expect("it is announced");
    }
    assert!(pack.chunk(&chunks[0], &rows(&chunks[0])).is_err());
}

/// A file that says that it has much more than it has.
#[test]
fn impossible_numbers_take_no_memory() {
    let bytes = pack(&chunks_of(&origin().fingerprint, 5, 8));
    for (at, width) in [(12, 4), (16, 8), (24, 8)] {
        let mut large = bytes.clone();
        large[at..at + width].fill(0xff);
        assert!(Pack::open(Cursor::new(&large)).is_err());
    }
}
