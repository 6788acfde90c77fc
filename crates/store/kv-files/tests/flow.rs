//! States whose rows come from the files while they are taken.

mod common;
#[path = "../../kv-store/tests/engine/mod.rs"]
mod engine;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::LONG;
use contextpilot_kv_files::{Flow, Folder, LeftOut, Lost, ReadError, Readers, Span};
use contextpilot_kv_store::{Chunk, Composer, Fingerprint, Layout, Piece, SequenceState, Store};
use contextpilot_testbed::{Random, private_folder};
use engine::Engine;
use tempfile::TempDir;

const THREADS: [usize; 3] = [0, 1, 3];

/// A prompt in a folder.
struct Stored {
    home: TempDir,
    folder: Folder,
    layout: Layout,
    whole: Vec<u8>,
    chunks: Vec<Chunk>,
}

impl Stored {
    fn new(engine: &Engine, tokens: usize) -> Self {
        let home = private_folder();
        let folder = Folder::open(home.path()).expect("it opens");
        let whole = engine.state(0, &(0..tokens).collect::<Vec<_>>());
        let layout = SequenceState::read(&whole)
            .expect("a state")
            .layout()
            .clone();
        let ids: Vec<i32> = (0..tokens as i32).collect();
        let row = layout.bytes_per_token();
        let chunks = Store::new(0).missing(&Fingerprint([7; 16]), &ids, row);
        let writer = common::writer(&folder);
        for chunk in &chunks {
            let from = chunk.start as usize;
            let rows = engine.chunk(from..from + chunk.tokens.len());
            writer.write(chunk, Arc::new(rows)).expect("it is taken");
        }
        assert!(writer.flush(LONG));
        Self {
            home,
            folder,
            layout,
            whole,
            chunks,
        }
    }

    fn path(&self, nth: usize) -> std::path::PathBuf {
        common::path(&self.folder, &self.chunks[nth].name)
    }

    /// The state, without the chunks that `is_left_out` names.
    fn outline(
        &self,
        is_left_out: impl Fn(usize) -> bool,
    ) -> Result<(Vec<u8>, LeftOut), ReadError> {
        let tokens = self.chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let mut state = vec![0; self.whole.len()];
        let mut left_out = LeftOut::new(&self.folder);
        let mut composer =
            Composer::within(&self.layout, 0, 0..tokens, &mut state).expect("it can be");
        let mut rows = Vec::new();
        for (nth, chunk) in self.chunks.iter().enumerate() {
            let count = chunk.tokens.len();
            let piece = Piece {
                name: chunk.name,
                start: chunk.start as usize,
                chunk_tokens: count,
                take: count,
            };
            if is_left_out(nth) {
                left_out.add(&mut composer, &piece)?;
            } else {
                self.folder.read(&chunk.name, chunk.bytes, &mut rows)?;
                let put = composer.put(piece.start, &rows, count, 0, count);
                put.expect("it fits");
            }
        }
        composer.finish().expect("all is there");
        Ok((state, left_out))
    }
}

/// Takes what stands there, in calls of the sizes that `size` says.
fn take(flow: &mut Flow, state: &[u8], mut size: impl FnMut() -> usize) -> Option<Vec<u8>> {
    let mut taken = Vec::new();
    while taken.len() < state.len() {
        let at = taken.len();
        match flow.next(at, size().min(state.len() - at))? {
            Span::Own(count) => taken.extend(&state[at..at + count]),
            Span::Read(bytes) => taken.extend(bytes),
        }
    }
    Some(taken)
}

fn run<T>(
    left_out: LeftOut,
    readers: Readers,
    take: impl FnOnce(&mut Flow) -> T,
) -> (T, Result<(), Lost>) {
    let mut flow = left_out.start(readers);
    let taken = take(&mut flow);
    (taken, flow.finish())
}

fn readers(threads: usize) -> Readers {
    Readers {
        threads,
        ..Readers::ALONE
    }
}

#[test]
fn a_state_is_given_out_as_it_was() {
    let with_words = Engine {
        extra: 3,
        ..Engine::dense(3, 64)
    };
    // Rows of a chunk that are larger than a block, too.
    for engine in [Engine::dense(3, 64), with_words, Engine::dense(2, 3000)] {
        let stored = Stored::new(&engine, 700);
        assert_eq!(stored.chunks.len(), 3);
        let mut random = Random(11);
        for left_out in [&[0, 1, 2][..], &[0, 2], &[1], &[]] {
            for threads in THREADS {
                let outline = stored.outline(|nth| left_out.contains(&nth));
                let (state, missing) = outline.expect("it is there");
                let most = random.choose(&[1 << 30, 1000, 60_000]);
                let (taken, read) = run(missing, readers(threads), |flow| {
                    take(flow, &state, || 1 + random.index(most))
                });
                assert!(read.is_ok(), "{read:?}");
                assert!(taken.expect("it was read") == stored.whole, "{left_out:?}");
            }
        }
    }
}

/// None of them is given out, whatever the sums say: the engine would have them in its cache.
#[test]
fn rows_with_a_value_that_is_no_number_are_not_given_out() {
    let stored = Stored::new(&Engine::dense(3, 3000), 700);
    let writer = common::writer(&stored.folder);
    for (nth, chunk) in stored.chunks.iter().enumerate() {
        let mut rows = Vec::new();
        let read = stored.folder.read(&chunk.name, chunk.bytes, &mut rows);
        read.expect("it is there");
        let mut bad = rows.clone();
        let at = 3000 * (chunk.tokens.len() / 2);
        bad[at..at + 2].copy_from_slice(&[0x55, 0x7d]);
        writer.write(chunk, Arc::new(bad)).expect("it is taken");
        assert!(writer.flush(LONG));
        for threads in THREADS {
            let outline = stored.outline(|_| true);
            let (state, missing) = outline.expect("the head is good");
            let mut given = 0;
            let ((), read) = run(missing, readers(threads), |flow| {
                while let Some(span) = flow.next(given, state.len() - given) {
                    if let Span::Read(bytes) = &span {
                        assert!(stored.whole[given..].starts_with(bytes), "{nth} {threads}");
                    }
                    given += match span {
                        Span::Own(count) => count,
                        Span::Read(bytes) => bytes.len(),
                    };
                }
            });
            let of_it = |why: &Lost| match why {
                Lost::Unreadable(name, why) => *name == chunk.name && why.is_not_finite(),
                _ => false,
            };
            assert!(read.is_err_and(|why| of_it(&why)), "{nth} {threads}");
        }
        writer.write(chunk, Arc::new(rows)).expect("it is taken");
        assert!(writer.flush(LONG));
    }
}

#[test]
fn only_what_is_missing_need_be_asked_for() {
    let stored = Stored::new(&Engine::dense(3, 64), 700);
    let (state, left_out) = stored.outline(|nth| nth == 1).expect("it is there");
    let gaps: Vec<usize> = (0..state.len())
        .filter(|at| state[*at] != stored.whole[*at])
        .collect();
    let (first, last) = (gaps[0], gaps[gaps.len() - 1]);
    let (given, read) = run(left_out, readers(1), |flow| {
        let mut at = first - 10;
        while at <= last {
            at += match flow.next(at, 1 << 20).expect("in order") {
                Span::Own(count) => count,
                Span::Read(bytes) => {
                    assert!(bytes == &stored.whole[at..at + bytes.len()]);
                    bytes.len()
                }
            };
        }
        at
    });
    assert!(read.is_ok() && given > last);
}

#[test]
fn whoever_does_not_take_all_of_it_in_order_has_nothing() {
    let stored = Stored::new(&Engine::dense(3, 64), 700);
    let ask = |threads, asked: &[(usize, usize)]| {
        let (_, left_out) = stored.outline(|_| true).expect("it is there");
        let (_, read) = run(left_out, readers(threads), |flow| {
            for (at, most) in asked {
                let mut at = *at;
                let end = at + most;
                while at < end {
                    match flow.next(at, end - at) {
                        Some(Span::Own(count)) => at += count,
                        Some(Span::Read(bytes)) => at += bytes.len(),
                        None => return,
                    }
                }
            }
        });
        read
    };
    let all = stored.whole.len();
    for threads in THREADS {
        assert!(ask(threads, &[(0, all)]).is_ok());
        for wrong in [
            &[][..],
            &[(0, all - 1)],
            // The last row of the last layer is its last byte.
            &[(0, all / 2)],
            &[(all / 2, all - all / 2)],
            &[(0, all / 2), (all / 2 + 1, all - all / 2 - 1)],
            &[(0, all / 2), (all / 2 - 1, all - all / 2 + 1)],
            &[(0, all), (0, all)],
        ] {
            let read = ask(threads, wrong);
            assert!(matches!(read, Err(Lost::NotTaken)), "{wrong:?}: {read:?}");
        }
    }
}

#[test]
fn damage_of_any_byte_is_found() {
    let words = Engine {
        extra: 2,
        ..Engine::dense(3, 64)
    };
    let stored = Stored::new(&words, 700);
    let file = stored.path(1);
    let good = fs::read(&file).expect("it is there");
    let places = (0..good.len()).step_by(997).chain([good.len() - 1]);
    for (nth, at) in places.enumerate() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&file, &bad).expect("it is written");
        // Shown by its header, or at the end.
        let Ok((state, left_out)) = stored.outline(|_| true) else {
            continue;
        };
        let threads = THREADS[nth % THREADS.len()];
        let (_, read) = run(left_out, readers(threads), |flow| {
            take(flow, &state, || 5000)
        });
        let damaged = matches!(
            &read, Err(Lost::Unreadable(name, ReadError::Damaged(_))) if *name == stored.chunks[1].name
        );
        assert!(damaged, "{at}: {read:?}");
    }
    for size in [0, 100, good.len() / 2, good.len() - 1, good.len() + 1] {
        let mut bad = good.clone();
        bad.resize(size, 0);
        fs::write(&file, &bad).expect("it is written");
        let outline = stored.outline(|_| true);
        assert!(matches!(outline, Err(ReadError::Damaged(_))), "{size}");
    }
    fs::remove_file(&file).expect("it is there");
    assert!(matches!(stored.outline(|_| true), Err(ReadError::Gone)));
}

/// Of a long prompt not all files stay open. Those that do not may be gone when their turn comes, or cut off; those that do
/// are read, whatever becomes of their names.
#[test]
fn files_that_are_opened_again_may_be_gone() {
    let stored = Stored::new(&Engine::dense(2, 16), 256 * 140);
    let home = fs::canonicalize(stored.home.path()).expect("it is there");
    // Other tests have files open, too.
    let is_ours = |entry: &fs::DirEntry| {
        let file = fs::read_link(entry.path());
        let path = file.as_ref().map(|file| file.to_string_lossy());
        path.is_ok_and(|path| path.starts_with(&*home.to_string_lossy()) && path.ends_with(".kv"))
    };
    let open = || {
        let all = fs::read_dir("/proc/self/fd").expect("on Linux").flatten();
        all.filter(is_ours).count()
    };
    for threads in THREADS {
        let (state, left_out) = stored.outline(|_| true).expect("it is there");
        assert_eq!(open(), 64);
        let (taken, read) = run(left_out, readers(threads), |flow| {
            take(flow, &state, || 5000)
        });
        assert!(read.is_ok() && taken.expect("it was read") == stored.whole);
    }
    let last = stored.chunks.len() - 1;
    for (nth, is_fatal) in [(0, false), (last, true)] {
        let (state, left_out) = stored.outline(|_| true).expect("it is there");
        let file = fs::read(stored.path(nth)).expect("it is there");
        fs::remove_file(stored.path(nth)).expect("it is there");
        let (_, read) = run(left_out, readers(1), |flow| take(flow, &state, || 5000));
        assert_eq!(read.is_err(), is_fatal, "{nth}");
        if is_fatal {
            assert!(matches!(read, Err(Lost::Unreadable(name, ReadError::Gone))
                if name == stored.chunks[nth].name));
        }
        fs::write(stored.path(nth), file).expect("it is written");
    }
}

#[test]
fn threads_read_ahead_and_end() {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let stored = Stored::new(&Engine::dense(8, 512), 3000);
    let readers = Readers {
        threads: 3,
        on_start: || {
            STARTED.fetch_add(1, Ordering::Relaxed);
        },
    };
    let (state, left_out) = stored.outline(|_| true).expect("it is there");
    let (taken, read) = run(left_out, readers, |flow| take(flow, &state, || 1 << 20));
    assert!(read.is_ok() && taken.expect("it was read") == stored.whole);
    assert_eq!(STARTED.load(Ordering::Relaxed), 3);
    // Also if nothing is taken, or a little before an error.
    let (_, left_out) = stored.outline(|_| true).expect("it is there");
    let ((), read) = run(left_out, readers, |_| ());
    assert!(matches!(read, Err(Lost::NotTaken)));
    let (state, left_out) = stored.outline(|_| true).expect("it is there");
    let (_, read) = run(left_out, readers, |flow| {
        take(flow, &state[..state.len() / 3], || 1 << 20);
        flow.next(0, 1).is_none()
    });
    assert!(matches!(read, Err(Lost::NotTaken)));
    // If some of them panic the others read, and if all do, the thread that takes the state.
    for panicking in [1, 3] {
        static LEFT: AtomicUsize = AtomicUsize::new(0);
        LEFT.store(panicking, Ordering::Relaxed);
        let panics = Readers {
            threads: 3,
            on_start: || {
                let take = |left: usize| left.checked_sub(1);
                let taken = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
                assert!(taken.is_err(), "on demand");
            },
        };
        let (state, left_out) = stored.outline(|_| true).expect("it is there");
        let (taken, read) = run(left_out, panics, |flow| take(flow, &state, || 1 << 20));
        assert!(read.is_ok() && taken.expect("it was read") == stored.whole);
    }
}

/// Some engines take whole rows only.
#[test]
fn no_row_is_divided() {
    for row in [48, 1088, 6144, 300_000] {
        let tokens = if row > 100_000 { 20 } else { 500 };
        let stored = Stored::new(&Engine::dense(2, row), tokens);
        for threads in THREADS {
            let (state, left_out) = stored.outline(|_| true).expect("it is there");
            let (taken, read) = run(left_out, readers(threads), |flow| {
                let mut taken: Vec<u8> = Vec::new();
                while taken.len() < state.len() {
                    let at = taken.len();
                    match flow.next(at, state.len() - at)? {
                        Span::Own(count) => taken.extend(&state[at..at + count]),
                        Span::Read(bytes) => {
                            assert_eq!((bytes.len() % row, bytes.is_empty()), (0, false));
                            taken.extend(bytes);
                        }
                    }
                }
                Some(taken)
            });
            assert!(read.is_ok() && taken.expect("it was read") == stored.whole);
        }
    }
}

/// Whatever is asked for, what is said to be good is.
#[test]
fn random_questions_get_no_wrong_answers() {
    let stored = Stored::new(&Engine::dense(3, 64), 700);
    let mut random = Random(5);
    let mut good = 0;
    for _ in 0..300 {
        let chosen: BTreeSet<usize> = (0..3).filter(|_| random.below(2) == 0).collect();
        let (state, left_out) = stored.outline(|nth| chosen.contains(&nth)).expect("there");
        let threads = random.choose(&THREADS);
        let ((), read) = run(left_out, readers(threads), |flow| {
            let mut at = 0;
            while at < state.len() {
                // Now and then somewhere else.
                match random.below(200) {
                    0 => at = random.index(state.len()),
                    1 => at += 1,
                    _ => {}
                }
                let most = (1 + random.index(20_000)).min(state.len() - at);
                match flow.next(at, most) {
                    Some(Span::Own(count)) => at += count.max(usize::from(most == 0)),
                    Some(Span::Read(bytes)) => {
                        assert!(bytes == &stored.whole[at..at + bytes.len()]);
                        at += bytes.len();
                    }
                    None => return,
                }
            }
        });
        good += usize::from(read.is_ok());
    }
    assert!((50..290).contains(&good), "{good}");
}
