//! What files cost.
//!
//!     cargo bench -p contextpilot-kv-files [-- --quick]
//!
//! All in the page cache: how fast the disk is, is not our doing. The sides of a comparison take
//! turns. Chunks are those of SmolLM2-135M: 256 tokens of 23,040 bytes.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_kv_files::{Folder, LeftOut, Readers, Span, Writer};
use contextpilot_kv_store::{Chunk, Composer, Fingerprint, Numbers, Piece, SequenceState, Store};
use engine::Engine;

#[path = "../../kv-store/tests/engine/mod.rs"]
mod engine;

const MODEL: Fingerprint = Fingerprint([1; 16]);
const TOKENS: usize = 3000;
const LONG: Duration = Duration::from_secs(600);

fn main() {
    let quick = std::env::args().any(|word| word == "--quick" || word == "--test");
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let many = |count: usize| if quick { count / 10 } else { count };
    loading(&home.path().join("loading"), many(210));
    for (count, bytes) in [(many(1000), 8 << 10), (many(100), 256 * 23_040)] {
        one_each(&home.path().join("each"), count, bytes);
        many_in_one(home.path(), count, bytes);
    }
    starting(&home.path().join("starting"), many(10_000));
}

fn chunks(prompt: i32, tokens: usize, bytes_per_token: usize) -> Vec<Chunk> {
    let tokens: Vec<i32> = (0..tokens as i32)
        .map(|token| token ^ prompt << 16)
        .collect();
    Store::new(0).missing(&MODEL, &tokens, bytes_per_token)
}

fn writer(folder: &Folder) -> Writer {
    Writer::start(folder.clone(), u64::MAX, || (), || false).expect("a thread")
}

/// A prompt from its files into a cache, by way of a state or past it, against reading the same files and copying them.
fn loading(home: &Path, rounds: usize) {
    let folder = Folder::open(home).expect("it opens");
    let engine = Engine::dense(30, 384);
    let bytes = engine.state(0, &(0..TOKENS).collect::<Vec<_>>());
    let state = SequenceState::read(&bytes).expect("it is understood");
    let chunks = chunks(0, TOKENS, state.layout().bytes_per_token());
    let writer = writer(&folder);
    for chunk in &chunks {
        let mut rows = Vec::new();
        let start = chunk.start as usize;
        assert!(state.extract(start..start + chunk.tokens.len(), &mut rows));
        writer.write(chunk, Arc::new(rows)).expect("it is taken");
    }
    assert!(writer.flush(LONG));

    let pieces = chunks.iter().map(|chunk| Piece {
        name: chunk.name,
        start: chunk.start as usize,
        chunk_tokens: chunk.tokens.len(),
        take: chunk.tokens.len(),
    });
    let pieces: Vec<Piece> = pieces.collect();
    let (mut rows, mut buffer) = (Vec::new(), Vec::new());
    // The engine's cache: memory that is there already.
    let mut cache = vec![1; bytes.len()];
    let mut compose = |buffer: &mut Vec<u8>, cache: &mut [u8]| {
        let mut composer = Composer::new(state.layout(), 0, 0..TOKENS, buffer).expect("it can be");
        for piece in &pieces {
            let bytes = composer.bytes_of(piece.chunk_tokens);
            let read = folder.read(&piece.name, bytes, &mut rows);
            read.expect("it is there");
            let put = composer.put(piece.start, &rows, piece.chunk_tokens, 0, piece.take);
            put.expect("it fits");
        }
        cache.copy_from_slice(composer.finish().expect("it is complete"));
    };
    let flow = |threads: usize, cache: &mut [u8]| {
        let mut outline = vec![0; bytes.len()];
        let mut left_out = LeftOut::new(&folder);
        let mut composer =
            Composer::within(state.layout(), 0, 0..TOKENS, &mut outline).expect("it can be");
        for piece in &pieces {
            left_out.add(&mut composer, piece).expect("it is there");
        }
        composer.finish().expect("it is complete");
        let readers = Readers {
            threads,
            ..Readers::ALONE
        };
        let mut flow = left_out.start(readers);
        let mut at = 0;
        while at < bytes.len() {
            let from = match flow.next(at, bytes.len() - at).expect("in order") {
                Span::Own(count) => &outline[at..at + count],
                Span::Read(bytes) => bytes,
            };
            cache[at..at + from.len()].copy_from_slice(from);
            at += from.len();
        }
        flow.finish().expect("all was taken");
    };
    let mut times: [Vec<Duration>; 8] = Default::default();
    let mut time = |nth: usize, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        times[nth].push(start.elapsed());
    };
    let mut read_rows = Vec::new();
    // Half of them of 16 bits, half in blocks.
    let numbers = state.layout().numbers();
    for _ in 0..rounds {
        time(0, &mut || compose(&mut Vec::new(), &mut cache));
        assert!(cache == bytes);
        time(1, &mut || compose(&mut buffer, &mut cache));
        cache.fill(1);
        time(2, &mut || flow(0, &mut cache));
        time(3, &mut || flow(1, &mut cache));
        assert!(cache == bytes);
        time(4, &mut || {
            for chunk in &chunks {
                read(home, chunk, &mut read_rows);
                let at = chunk.start as usize * state.layout().bytes_per_token();
                cache[at..at + read_rows.len()].copy_from_slice(&read_rows);
            }
        });
        black_box(&cache);
        time(5, &mut || {
            for chunk in &chunks {
                read(home, chunk, &mut read_rows);
            }
        });
        for (nth, numbers) in [(6, Numbers::ANY), (7, &numbers)] {
            time(nth, &mut || {
                for chunk in &chunks {
                    let read =
                        folder.read_finite(&chunk.name, chunk.bytes, numbers, &mut read_rows);
                    read.expect("it is there");
                }
            });
        }
    }
    println!(
        "{TOKENS} tokens, {} MB: median and least, ms",
        bytes.len() / 1_000_000
    );
    let names = [
        "verified, a state in fresh memory, copied",
        "verified, a state in used memory, copied",
        "verified, straight, by the caller",
        "verified, straight, read ahead",
        "read, copied",
        "read",
        "read, summed up",
        "read, summed up, finite numbers",
    ];
    for (name, times) in names.iter().zip(&mut times) {
        times.sort_unstable();
        let (median, least) = (milliseconds(times[times.len() / 2]), milliseconds(times[0]));
        println!("{name:42} {median:>8.2} {least:>8.2}");
    }
}

fn read(home: &Path, chunk: &Chunk, rows: &mut Vec<u8>) {
    let name = chunk.name.to_string();
    let path = home.join("v1").join(&name[..2]).join(format!("{name}.kv"));
    let mut file = File::open(path).expect("it is there");
    rows.resize(chunk.bytes as usize, 0);
    file.read_exact(rows).expect("it is long enough");
}

/// A file for each chunk, as it is.
fn one_each(home: &Path, count: usize, bytes: usize) {
    let folder = Folder::open(home).expect("it opens");
    let chunks: Vec<Chunk> = (0..count)
        .map(|prompt| {
            let mut chunk = chunks(prompt as i32, 256, 1).remove(0);
            chunk.bytes = bytes as u64;
            chunk
        })
        .collect();
    let rows = Arc::new(vec![7; bytes]);
    let writer = writer(&folder);
    assert!(writer.flush(LONG));
    let start = Instant::now();
    for chunk in &chunks {
        writer.write(chunk, rows.clone()).expect("it is taken");
    }
    assert!(writer.flush(LONG));
    report(
        &format!("{count} files of {bytes} bytes: written"),
        start,
        count,
    );
    let mut out = Vec::new();
    let start = Instant::now();
    for chunk in &chunks {
        folder
            .read(&chunk.name, chunk.bytes, &mut out)
            .expect("it is there");
    }
    report("    read", start, count);
    let start = Instant::now();
    for chunk in &chunks {
        writer.remove(chunk.name);
    }
    assert!(writer.flush(LONG));
    report("    removed", start, count);
}

/// One file for all, to compare with: appended to and read, with the same checksums.
fn many_in_one(home: &Path, count: usize, bytes: usize) {
    let path = home.join("all");
    let mut file = File::options()
        .create_new(true)
        .read(true)
        .append(true)
        .open(&path)
        .expect("a file");
    let (head, rows) = ([1; 1152], vec![7; bytes]);
    let start = Instant::now();
    for _ in 0..count {
        black_box(crc32fast::hash(&rows));
        file.write_all(&head)
            .and_then(|()| file.write_all(&rows))
            .expect("there is room");
    }
    report(
        &format!("{count} chunks of {bytes} bytes in one file: written"),
        start,
        count,
    );
    let mut out = vec![0; head.len() + bytes];
    let start = Instant::now();
    for at in 0..count {
        file.read_exact_at(&mut out, (at * (head.len() + bytes)) as u64)
            .expect("it is there");
        black_box(crc32fast::hash(&out));
    }
    report("    read", start, count);
    fs::remove_file(path).expect("it is there");
}

/// What a start reads.
fn starting(home: &Path, count: usize) {
    let folder = Folder::open(home).expect("it opens");
    let writer = writer(&folder);
    let rows = Arc::new(vec![7; 256]);
    for prompt in 0..count {
        writer
            .write(&chunks(prompt as i32, 256, 1).remove(0), rows.clone())
            .expect("it is taken");
    }
    assert!(writer.flush(LONG));
    let start = Instant::now();
    let mut store = Store::new(u64::MAX);
    for header in folder.headers().expect("it can be read") {
        store.load(header.chunk, header.last_used);
    }
    assert_eq!((store.chunks(), store.orphans(u64::MAX)), (count, vec![]));
    report(&format!("start with {count} files"), start, count);
}

fn report(what: &str, start: Instant, count: usize) {
    let each = start.elapsed().as_secs_f64() * 1e6 / count as f64;
    println!("{what}: {each:.1} µs each");
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
