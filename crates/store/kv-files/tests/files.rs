//! What is written is read again.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::*;
use contextpilot_kv_files::{Done, Folder, Header, ReadError, Refusal, Writer};
use contextpilot_kv_store::{Chunk, Facts, Fingerprint, Origin, What};
use contextpilot_testbed::private_folder;

#[test]
fn chunks_are_read_as_they_were_written() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let mut chunks = chunks(1, 600);
    chunks.extend(common::chunks(2, 1));
    assert_eq!(write(&folder, &chunks), all_written(&chunks));
    let mut out = Vec::new();
    for chunk in &chunks {
        folder
            .read(&chunk.name, chunk.bytes, &mut out)
            .expect("it is there");
        assert_eq!(out, rows(chunk));
        let size = fs::metadata(path(&folder, &chunk.name))
            .expect("it is there")
            .len();
        assert_eq!(size, 128 + 4 * chunk.tokens.len() as u64 + chunk.bytes);
    }
    // Another process, too.
    let again = Folder::open(home.path()).expect("it opens");
    assert_eq!(found(&again), chunks);
}

#[test]
fn only_this_user_can_read_it() {
    let home = private_folder();
    let base = home.path().join("some/where");
    let folder = Folder::open(&base).expect("it is made");
    let chunk = &chunks(1, 10)[0];
    write(&folder, std::slice::from_ref(chunk));
    let file = path(&folder, &chunk.name);
    assert_eq!(mode(&file), 0o600);
    for folder in [
        file.parent().expect("one"),
        &base.join("v1"),
        &base.join("v1/new"),
        &base,
    ] {
        assert_eq!(mode(folder), 0o700, "{folder:?}");
    }
}

#[test]
fn a_folder_that_others_may_change_is_refused() {
    let home = private_folder();
    let base = home.path().join("open");
    fs::create_dir(&base).expect("a folder");
    fs::set_permissions(&base, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let error = Folder::open(&base).expect_err("it is refused").to_string();
    assert!(error.contains("everybody may write to it"), "{error}");
    fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).expect("it is ours");
    assert!(Folder::open(&base).is_ok());
    let error = Folder::open(&home.path().join("open/v1/new/x\0y")).expect_err("it is refused");
    assert!(!error.to_string().is_empty());
}

#[test]
fn what_is_not_there_is_gone() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let chunk = &chunks(1, 10)[0];
    let mut out = vec![1, 2, 3];
    let read = folder.read(&chunk.name, chunk.bytes, &mut out);
    assert!(matches!(read, Err(ReadError::Gone)));
    assert!(out.is_empty(), "{out:?}");
    write(&folder, std::slice::from_ref(chunk));
    let writer = writer(&folder);
    writer.remove(chunk.name);
    writer.remove(chunk.name);
    assert!(writer.flush(LONG));
    let read = folder.read(&chunk.name, chunk.bytes, &mut out);
    assert!(matches!(read, Err(ReadError::Gone)));
    assert_eq!(found(&folder), []);
}

/// A prompt may want a chunk that was to leave a moment ago.
#[test]
fn a_file_that_is_to_be_removed_stays_if_it_is_wanted_before_that() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let chunk = &chunks(1, 10)[0];
    let writer = writer(&folder);
    for _ in 0..100 {
        write(&folder, std::slice::from_ref(chunk));
        assert!(!writer.keep(&chunk.name), "it is not to be removed");
        writer.remove(chunk.name);
        let stays = writer.keep(&chunk.name);
        assert!(!stays || !writer.is_leaving(&chunk.name));
        assert!(writer.flush(LONG));
        writer.done().for_each(drop);
        assert_eq!(folder.lacks(&chunk.name), !stays);
        assert!(!writer.keep(&chunk.name), "it is too late");
    }
}

#[test]
fn rows_are_read_from_memory_until_they_are_written() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let writer = writer(&folder);
    let chunks = chunks(1, 5000);
    for chunk in &chunks {
        writer
            .write(chunk, Arc::new(rows(chunk)))
            .expect("it is taken");
    }
    // At any moment at least one of the two has them. A file that is there is whole.
    let mut out = Vec::new();
    for chunk in chunks.iter().rev() {
        match writer.pending(&chunk.name) {
            Some(kept) => assert_eq!(*kept, rows(chunk)),
            None => {
                folder
                    .read(&chunk.name, chunk.bytes, &mut out)
                    .expect("it is written");
                assert_eq!(out, rows(chunk));
            }
        }
    }
    assert!(writer.flush(LONG));
    assert_eq!(writer.queued(), 0);
    assert!(
        chunks
            .iter()
            .all(|chunk| writer.pending(&chunk.name).is_none())
    );
    assert_eq!(writer.done().collect::<Vec<_>>(), all_written(&chunks));
    assert_eq!(writer.done().next(), None);
}

/// The queue stands still while its thread waits in `on_start`.
#[test]
fn the_queue_is_bounded_and_nobody_waits() {
    static GO: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let stop = GO.lock().expect("a lock");
    let writer =
        Writer::start(folder.clone(), 2500, || drop(GO.lock()), || false).expect("a thread");
    let chunks: Vec<_> = (1..5)
        .map(|prompt| common::chunks(prompt, 1).remove(0))
        .collect();
    let rows: Vec<_> = chunks.iter().map(|chunk| Arc::new(rows(chunk))).collect();
    assert_eq!(writer.write(&chunks[0], rows[0].clone()), Ok(()));
    assert_eq!(writer.write(&chunks[1], rows[1].clone()), Ok(()));
    assert_eq!(writer.queued(), 2000);
    assert_eq!(writer.accepts(500), Ok(()));
    assert_eq!(
        writer.write(&chunks[2], rows[2].clone()),
        Err(Refusal::Full)
    );
    assert_eq!(writer.pending(&chunks[2].name), None);
    // What is removed before it is written is not there afterwards, nor is it found meanwhile.
    writer.remove(chunks[0].name);
    assert_eq!(writer.pending(&chunks[0].name), None);
    assert_eq!(writer.pending(&chunks[1].name), Some(rows[1].clone()));
    assert!(!writer.flush(Duration::from_millis(1)));
    drop(stop);
    assert!(writer.flush(LONG));
    assert_eq!(found(&folder), chunks[1..2]);
    // There is room again, and one chunk is taken however large it is.
    let large = common::chunks(9, 100).remove(0);
    let bytes = common::rows(&large);
    assert_eq!(writer.write(&large, Arc::new(bytes)), Ok(()));
    assert!(writer.flush(LONG));
    assert_eq!(found(&folder), [chunks[1].clone(), large]);
}

#[test]
fn memory_of_written_rows_is_used_again() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let writer = writer(&folder);
    assert_eq!(writer.buffer(1).capacity(), 0);
    let chunk = chunks(1, 100).remove(0);
    let rows = rows(&chunk);
    let mut places: Vec<_> = (0..3)
        .map(|_| {
            let copy = rows.clone();
            let place = copy.as_ptr();
            writer.write(&chunk, Arc::new(copy)).expect("it is taken");
            place
        })
        .collect();
    let ours = Arc::new(rows);
    writer.write(&chunk, ours.clone()).expect("it is taken");
    assert!(writer.flush(LONG));
    let buffers: Vec<_> = places.iter().map(|_| writer.buffer(1)).collect();
    let mut again: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    again.sort_unstable();
    places.sort_unstable();
    assert_eq!(again, places);
    assert_eq!(
        writer.buffer(1).capacity(),
        0,
        "somebody else has the last ones"
    );

    // And bounded.
    let large = common::chunks(2, 1).remove(0);
    for _ in 0..5 {
        let rows = Arc::new(vec![0; 20 << 20]);
        writer.write(&large, rows).expect("it is taken");
    }
    assert!(writer.flush(LONG));
    let all = std::iter::from_fn(|| Some(writer.buffer(20 << 20)));
    let kept = all.take_while(|buffer| buffer.capacity() > 0);
    assert_eq!(kept.count(), 3);
}

/// How many pages the system has found for this thread so far.
fn page_faults() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").expect("Linux says so");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let faults = fields.split_whitespace().nth(7).expect("minor faults");
    faults.parse().expect("a number")
}

/// So many bytes of it are written to.
fn fill(buffer: &mut Vec<u8>, bytes: usize) -> u64 {
    let before = page_faults();
    buffer.clear();
    buffer.resize(bytes, 7);
    page_faults() - before
}

#[test]
fn memory_that_is_expected_has_its_pages_before_it_is_wanted() {
    const BYTES: usize = 40 << 20;
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let writer = Writer::start(folder.clone(), 100 << 20, || (), || false).expect("a thread");
    let ready = |bytes: usize| {
        let mut found = Vec::new();
        until("memory is ready", || {
            found = writer.buffer(bytes);
            let is_enough = found.capacity() >= bytes;
            if !is_enough {
                writer.give_back(std::mem::take(&mut found));
            }
            is_enough
        });
        found
    };
    writer.expect(BYTES / 2);
    let mut half = ready(BYTES / 2);
    assert!(fill(&mut half, BYTES / 2) < 100);
    // It grows with what is expected, and while the first is away there is another one.
    writer.expect(BYTES);
    let mut whole = ready(BYTES);
    assert!(fill(&mut whole, BYTES) < 100);
    assert!(whole.capacity() < BYTES + BYTES / 4, "{}", whole.capacity());
    // What is written comes back.
    let chunk = chunks(1, 1).remove(0);
    let place = whole.as_ptr();
    writer.write(&chunk, Arc::new(whole)).expect("it is taken");
    assert!(writer.flush(LONG));
    let again = ready(BYTES);
    assert_eq!(again.as_ptr(), place);
    // More than may wait is not made ready.
    writer.expect(200 << 20);
    assert!(writer.flush(LONG));
    assert!(writer.buffer(200 << 20).capacity() < 100 << 20);
}

#[test]
fn a_dropped_writer_finishes() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let chunks = chunks(1, 2000);
    let writer = writer(&folder);
    for chunk in &chunks {
        writer
            .write(chunk, Arc::new(rows(chunk)))
            .expect("it is taken");
    }
    drop(writer);
    until("all are written", || found(&folder).len() == chunks.len());
}

#[test]
fn the_last_use_outlives_the_process() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let both = [chunks(1, 10).remove(0), chunks(2, 10).remove(0)];
    write(&folder, &both);
    let now = SystemTime::now();
    for (chunk, age) in both.iter().zip([200, 100]) {
        let file = fs::File::options()
            .write(true)
            .open(path(&folder, &chunk.name))
            .expect("it opens");
        file.set_modified(now - Duration::from_secs(age))
            .expect("it is ours");
    }
    let used = || -> Vec<u64> {
        headers(&folder)
            .iter()
            .map(|header| header.last_used)
            .collect()
    };
    let before = used();
    let ago = |age| {
        (now - Duration::from_secs(age))
            .duration_since(UNIX_EPOCH)
            .expect("late")
            .as_nanos() as u64
    };
    assert_eq!(before, [ago(200), ago(100)]);
    let writer = writer(&folder);
    writer.touch([both[0].name, chunks(3, 1)[0].name]);
    assert!(writer.flush(LONG));
    let after = used();
    assert!(
        after[0] > after[1] && after[1] == before[1],
        "{before:?} {after:?}"
    );
    // A clock that was before 1970.
    let file = fs::File::options()
        .write(true)
        .open(path(&folder, &both[1].name))
        .expect("it opens");
    file.set_modified(UNIX_EPOCH - Duration::from_secs(5))
        .expect("it is ours");
    assert_eq!(used()[1], 0);
}

#[test]
fn uses_in_the_future_become_the_last_ones_in_their_order() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let three = [1, 2, 3].map(|seed| chunks(seed, 10).remove(0));
    write(&folder, &three);
    let now = SystemTime::now();
    for (chunk, from_now) in three.iter().zip([3000, 1000, 2000]) {
        let file = fs::File::options()
            .write(true)
            .open(path(&folder, &chunk.name))
            .expect("it opens");
        file.set_modified(now + Duration::from_secs(from_now))
            .expect("it is ours");
    }
    let mut found = headers(&folder);
    folder.bring_back(&mut found, 5_000_000_000_000);
    let names = found.iter().map(|header| header.chunk.name);
    assert!(names.eq([1, 2, 0].map(|nth| three[nth].name)));
    let times = |found: &[Header]| {
        found
            .iter()
            .map(|header| header.last_used)
            .collect::<Vec<_>>()
    };
    let expected = [3, 2, 1].map(|before| 5_000_000_000_000 - before);
    assert_eq!(times(&found), expected);
    // The files say so, too.
    let mut again = headers(&folder);
    again.sort_by_key(|header| header.last_used);
    assert_eq!(again, found);
}

#[test]
fn what_dead_processes_were_writing_is_removed() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let new = home.path().join("v1/new");
    fs::create_dir_all(&new).expect("a folder");
    fs::write(new.join("77-1"), "half").expect("a file");
    let alive = fs::File::create(new.join("77-2")).expect("a file");
    rustix::fs::flock(&alive, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    fs::create_dir(new.join("folder")).expect("a folder");
    symlink("77-2", new.join("link")).expect("a link");
    let left = || {
        let entries = fs::read_dir(&new).expect("it can be read");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        names
    };
    let chunks = chunks(1, 10);
    write(&folder, &chunks);
    assert_eq!(left(), ["77-2", "folder", "link"]);
    drop(alive);
    write(&folder, &chunks);
    assert_eq!(left(), ["folder", "link"]);
    assert_eq!(found(&folder), chunks);
}

#[test]
fn a_chunk_may_be_written_again() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let chunks = chunks(1, 10);
    let twice = [chunks[0].clone(), chunks[0].clone()];
    assert_eq!(
        write(&folder, &twice),
        [Done::Written(chunks[0].name), Done::Written(chunks[0].name)]
    );
    assert_eq!(found(&folder), chunks);
}

#[test]
fn the_disk_says_how_much_is_free() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let (free, all) = folder.space().expect("it says");
    assert!(0 < free && free <= all, "{free} of {all}");
}

#[test]
fn what_is_known_of_a_model_without_chunks_is_removed_after_a_day() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let writer = writer(&folder);
    let origin = |model: u8| {
        let mut facts = Facts::default();
        facts.push(What::Model, vec![model]);
        Origin::new(model.to_string(), &facts, None)
    };
    let all = [1, 2, 3].map(|model| origin(model).fingerprint);
    for model in [1, 2, 3] {
        writer.name_model(all[usize::from(model) - 1], model.to_string());
        writer.note_origin(origin(model));
    }
    assert!(writer.flush(LONG));
    assert_eq!(folder.forget_unused(|_| false), 0);
    // The first has chunks, and the third is young.
    for of in &all[..2] {
        for inner in ["models", "origins"] {
            let path = home.path().join("v1").join(inner).join(of.to_string());
            let then = SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
            let file = fs::File::open(path).expect("it is there");
            file.set_modified(then).expect("it is ours");
        }
    }
    let week = Duration::from_secs(7 * 24 * 3600);
    assert_eq!(folder.origins_within(week), [origin(3)]);
    assert_eq!(folder.forget_unused(|of| *of == all[0]), 2);
    let there = all.map(|of| {
        (
            folder.origin(&of).is_some(),
            folder.model_name(&of).is_some(),
        )
    });
    assert_eq!(there, [(true, true), (false, false), (true, true)]);
}

#[test]
fn a_model_has_the_name_that_was_given_last() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let model = chunks(1, 1)[0].fingerprint;
    assert_eq!(folder.model_name(&model), None);
    let writer = writer(&folder);
    writer.name_model(model, "tea".to_owned());
    writer.name_model(model, "tea + milk".to_owned());
    assert!(writer.flush(LONG));
    assert_eq!(folder.model_name(&model).as_deref(), Some("tea + milk"));
    assert_eq!(folder.model_name(&Fingerprint([9; 16])), None);
    // It is no chunk.
    assert_eq!(found(&folder), []);
    let headers = folder.headers().expect("it is there");
    assert_eq!(
        (headers.damaged, headers.foreign, headers.unreadable),
        (0, 0, 0)
    );
}

#[test]
fn looking_for_a_store_makes_none() {
    let home = private_folder();
    assert!(
        Folder::existing(home.path())
            .expect("it may be looked at")
            .is_none()
    );
    assert_eq!(fs::read_dir(home.path()).expect("it is there").count(), 0);
    Folder::open(home.path()).expect("it opens");
    assert!(
        Folder::existing(home.path())
            .expect("it may be looked at")
            .is_some()
    );
}

/// A process that starts removes what dead processes were writing, and nothing of those that live.
#[test]
fn processes_that_start_leave_the_files_of_those_that_write() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let written = AtomicBool::new(false);
    let all: Vec<Chunk> = (1..1000).flat_map(|prompt| chunks(prompt, 1)).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !written.load(Ordering::Relaxed) {
                    drop(writer(&folder));
                }
            });
        }
        let done = write(&folder, &all);
        written.store(true, Ordering::Relaxed);
        let failed = done.iter().filter(|done| matches!(done, Done::Failed(..)));
        assert_eq!((done.len(), failed.count()), (all.len(), 0));
    });
}
