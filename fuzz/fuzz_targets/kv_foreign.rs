//! Whatever chunks other processes, other machines and packs bring, with checksums that are right: nothing panics, what
//! is found is the prompt, everything that is counted is there, and nothing is counted that has left.
//!
//! The first byte of an input says of how many chunks the checksums are put right. A chunk is nine bytes and some tokens;
//! what is no chunk says how the pack is damaged. Chunks are short here (see `GRID`).
#![no_main]

use std::collections::BTreeMap;
use std::io::Cursor;

use contextpilot_kv_files::{Pack, PackError, PackWriter, read_whole};
use contextpilot_kv_store::{
    Chunk, Facts, Fingerprint, GRID, HEADER_BYTES, Name, Origin, Store, TAIL, What,
};
use libfuzzer_sys::fuzz_target;

/// Different names. Few, so that chunks meet.
const NAMES: u8 = 24;
/// Where the checksums of a head are, and where its tokens begin (`crates/store/kv-files/src/format.rs`).
const ROWS_CHECK: usize = 112;
const HEAD_CHECK: usize = 124;
const HEAD: usize = HEADER_BYTES as usize;
/// Of a pack.
const START: usize = 32;
const SUM: usize = 32;

fuzz_target!(|input: &[u8]| {
    let Some((&[damage], mut rest)) = input.split_first_chunk::<1>() else {
        return;
    };
    let mut chunks = Vec::new();
    while let Some(chunk) = next(&mut rest) {
        chunks.push(chunk);
    }
    loaded(&chunks);
    packed(&chunks, damage, rest);
});

fn origin() -> Origin {
    let mut facts = Facts::default();
    facts.push(What::Model, vec![7; 16]);
    Origin::new("tea".to_owned(), &facts, None)
}

/// A chunk, and when it was used last. Its rows are as many bytes, all of one kind.
fn next(rest: &mut &[u8]) -> Option<(Chunk, u64)> {
    let (&[name, link, parent, offset, start, count, bytes, used, kind], after) =
        rest.split_first_chunk()?;
    let count = usize::from(count) % (GRID + 1);
    let (tokens, after) = after.split_at_checked(count)?;
    *rest = after;
    let mut fingerprint = origin().fingerprint;
    if kind & 1 != 0 {
        fingerprint = Fingerprint([1; 16]);
    }
    let token = |byte: &u8| match byte % 32 {
        31 => TAIL,
        other => i32::from(other % 4),
    };
    let mut tokens: Vec<i32> = tokens.iter().map(token).collect();
    if kind & 2 != 0 {
        tokens = vec![TAIL];
    }
    let chunk = Chunk {
        name: Name([name % NAMES; 16]),
        // 0 is not to be written: it says that there is no parent.
        parent: (kind & 4 != 0).then_some((Name([parent % NAMES; 16]), 1 + u32::from(offset) % 12)),
        fingerprint,
        link: Name([link; 16]),
        start: u32::from(start) % 40,
        tokens: tokens.into(),
        bytes: u64::from(bytes),
    };
    Some((chunk, u64::from(used)))
}

/// Another process has written them.
fn loaded(chunks: &[(Chunk, u64)]) {
    let mut store = Store::new(u64::MAX);
    store.changes();
    for (chunk, used) in chunks {
        store.load(chunk.clone(), *used);
        counts(&store);
        prompts(&store, chunks);
    }
    // In half of the budget, and then nothing.
    for limit in [store.bytes() / 2, 0] {
        for name in store.set_limit(limit, [], 0) {
            assert!(!store.knows(&name), "{name} has left, and is there");
        }
        assert!(store.bytes() <= limit);
        counts(&store);
        prompts(&store, chunks);
    }
    store.orphans(u64::MAX);
    assert_eq!((store.bytes(), store.chunks(), store.tokens()), (0, 0, 0));
    assert_eq!(store.models().count(), 0);

    // Others write and remove them, in turn, while this process has a budget and writes, too.
    let mut store = Store::new(5 * 4096);
    for (nth, (chunk, used)) in chunks.iter().enumerate() {
        match nth % 4 {
            3 => drop(store.share([], &[chunk.name])),
            2 => drop(store.insert(chunk.clone())),
            _ => drop(store.share([(chunk.clone(), *used)], &[])),
        }
        assert!(store.bytes() <= store.limit());
        counts(&store);
        prompts(&store, chunks);
    }
    let names: Vec<Name> = store.names_after(None).copied().collect();
    for name in names {
        store.remove(&name);
        assert!(!store.has(&name));
    }
    store.orphans(u64::MAX);
    assert_eq!((store.bytes(), store.chunks(), store.tokens()), (0, 0, 0));
}

/// What the store says of itself is the sum of its chunks.
fn counts(store: &Store) {
    let there: BTreeMap<Name, &Chunk> = store
        .names_after(None)
        .filter_map(|name| Some((*name, store.chunk(name)?.0)))
        .collect();
    assert_eq!(store.chunks(), there.len());
    let tokens: usize = there.values().map(|chunk| chunk.tokens.len()).sum();
    assert_eq!(store.tokens(), tokens);
    let bytes: u64 = there.values().map(|chunk| chunk.cost()).sum();
    assert!(store.bytes() >= bytes);
    let waiting = (0..=u8::MAX)
        .flat_map(|first| store.known(first))
        .any(|name| !store.has(name));
    assert!(waiting || store.bytes() == bytes);
    let models: u64 = store.models().map(|(_, model)| model.bytes).sum();
    assert_eq!(models, bytes);
    for (name, chunk) in &there {
        assert_eq!(*name, chunk.name);
        if let Some((parent, offset)) = chunk.parent {
            let parent = there.get(&parent).expect("what a chunk continues is there");
            assert_eq!(parent.start + offset, chunk.start);
            assert!(offset as usize <= parent.tokens.len() && !parent.is_tail());
        }
    }
}

/// Each way through the chunks is a prompt.
fn prompts(store: &Store, chunks: &[(Chunk, u64)]) {
    for (chunk, _) in chunks.iter().take(8) {
        let Some((there, _)) = store.chunk(&chunk.name) else {
            continue;
        };
        let prompt = tokens_before(store, there);
        let whole = [&prompt[..], &there.tokens].concat();
        if there.is_tail() {
            let found = store.find(&there.fingerprint, &prompt);
            assert_eq!(found.tokens(), prompt.len());
            assert!(
                store
                    .tails(&found)
                    .iter()
                    .any(|tail| tail.piece.name == there.name)
            );
            continue;
        }
        let found = store.find(&there.fingerprint, &whole);
        assert_eq!(found.tokens(), whole.len(), "{there:?}");
        assert_eq!(store.missing(&there.fingerprint, &whole, 1), []);
        let mut at = 0;
        for piece in found.pieces() {
            let (of, _) = store.chunk(&piece.name).expect("it is there");
            assert_eq!((piece.start, piece.chunk_tokens), (at, of.tokens.len()));
            assert_eq!(of.tokens[..piece.take], whole[at..at + piece.take]);
            at += piece.take;
        }
        let (further, all) = store.continuation(&found, 64);
        assert_eq!(all.tokens(), whole.len() + further.len());
    }
}

/// The tokens from position 0 to where a chunk begins.
fn tokens_before(store: &Store, chunk: &Chunk) -> Vec<i32> {
    let Some((parent, offset)) = chunk.parent else {
        return Vec::new();
    };
    let (parent, _) = store
        .chunk(&parent)
        .expect("what a chunk continues is there");
    let mut tokens = tokens_before(store, parent);
    tokens.extend(&parent.tokens[..offset as usize]);
    tokens
}

fn rows(chunk: &Chunk) -> Vec<u8> {
    vec![chunk.name.0[0]; chunk.bytes as usize]
}

/// They stand in a pack, in this order. Then some bytes of the pack are others, and its sums are right again.
fn packed(chunks: &[(Chunk, u64)], damage: u8, changes: &[u8]) {
    let chunks: Vec<Chunk> = chunks.iter().map(|(chunk, _)| chunk.clone()).collect();
    let mut pack = PackWriter::begin(Vec::new(), &[origin()], &chunks).expect("in memory");
    for chunk in &chunks {
        pack.chunk(chunk, &rows(chunk)).expect("it was announced");
    }
    let bytes = pack.finish().expect("all are there");
    if let Ok(mut pack) = Pack::open(Cursor::new(&bytes)) {
        assert_eq!(pack.chunks, chunks);
        let mut seen = 0;
        let each = pack.each(|chunk, bytes| {
            assert_eq!((chunk, bytes), (&chunks[seen], &rows(chunk)[..]));
            seen += 1;
            true
        });
        each.expect("it was read before");
        assert_eq!(seen, chunks.len());
    }

    let begin = START + origin().encode().len();
    let mut other = bytes.clone();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % other.len();
        other[at] ^= change[2];
    }
    let mut at = begin;
    for chunk in chunks.iter().take(damage.into()) {
        let tokens = at + HEAD + 4 * chunk.tokens.len();
        let end = tokens + chunk.bytes as usize;
        let rows = crc32fast::hash(&other[tokens..end]);
        other[at + ROWS_CHECK..][..4].copy_from_slice(&rows.to_le_bytes());
        let mut head = crc32fast::Hasher::new();
        head.update(&other[at..at + HEAD_CHECK]);
        head.update(&other[at + HEAD..tokens]);
        other[at + HEAD_CHECK..][..4].copy_from_slice(&head.finalize().to_le_bytes());
        // As a remote has it.
        if let Ok((chunk, rows)) = read_whole(other[at..end].to_vec()) {
            assert_eq!(rows.len() as u64, chunk.bytes);
            assert!((1..=GRID).contains(&chunk.tokens.len()));
        }
        at = end;
    }
    let sum = other.len() - SUM;
    let right = <sha2::Sha256 as sha2::Digest>::digest(&other[..sum]);
    other[sum..].copy_from_slice(&right);
    match Pack::open(Cursor::new(&other)) {
        Ok(pack) => {
            let size: u64 = pack.chunks.iter().map(|chunk| chunk.bytes).sum();
            assert!(size <= other.len() as u64);
        }
        Err(PackError::System(error)) => panic!("in memory: {error}"),
        Err(_) => {}
    }
}
