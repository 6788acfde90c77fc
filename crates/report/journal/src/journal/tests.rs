//! Tests that look at private state, within one process. Tests with files, processes and
//! kills are in `tests/`.

use std::fs::{File, OpenOptions};
use std::sync::Mutex;

use contextpilot_server_flags::{Generation, ServerFlags};
use contextpilot_testbed::private_folder;

use tempfile::TempDir;

use super::running::{COMPACT_FROM, LONGEST_PAUSE};
use super::*;
use crate::Origin;
use crate::record::{self, MAX_ID_BYTES, MAX_IDS, MAX_LIVE_BYTES};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn identity() -> Identity {
    let flags = ServerFlags::read([], |_| None, Generation::Late2026);
    Identity::of("http://index", &flags, &Origin::default())
}

fn open(home: &TempDir, log: fn(&str)) -> (Journal, Vec<Arc<str>>) {
    let lookup = |name: &str| (name == "HOME").then(|| home.path().into());
    Journal::in_state_folder(lookup, None, identity(), log)
}

fn quiet(line: &str) {
    panic!("said {line:?}");
}

fn id(n: usize) -> Arc<str> {
    format!("req-{n:012x}").into()
}

fn running(journal: &mut Journal) -> &mut Running {
    let State::On(running) = &mut journal.state else {
        panic!("it is off");
    };
    running
}

#[test]
fn an_id_that_comes_and_goes_between_two_flushes_is_never_written() {
    let home = private_folder();
    let (mut journal, _) = open(&home, quiet);
    for n in 0..10_000 {
        journal.note_live(&id(n));
        journal.note_evicted(&id(n));
        journal.note_gone(&id(n));
    }
    journal.flush();
    let empty = record::opening(&identity()).len() as u64;
    assert_eq!(running(&mut journal).file.length(), empty);
    assert!(running(&mut journal).ids.is_empty());

    journal.note_live(&id(0));
    journal.flush();
    let length = running(&mut journal).file.length();
    journal.note_gone(&id(0));
    journal.note_live(&id(0));
    journal.flush();
    assert_eq!(running(&mut journal).file.length(), length);
}

#[test]
fn without_a_flush_the_changes_in_memory_are_bounded() {
    let home = private_folder();
    let (mut journal, _) = open(&home, quiet);
    for n in 0..MAX_CHANGES * 3 {
        journal.note_live(&id(n));
        journal.note_gone(&id(n));
        assert!(running(&mut journal).changes.len() < MAX_CHANGES);
    }
    journal.flush();
    assert!(running(&mut journal).ids.is_empty());
}

#[test]
fn writes_that_are_due_are_an_interval_apart() {
    let home = private_folder();
    let (mut journal, _) = open(&home, quiet);
    let start = Instant::now();
    let mut lengths = vec![running(&mut journal).file.length()];
    assert_eq!(journal.due(start), None);
    for ms in 0..2000_u64 {
        let now = start + Duration::from_millis(ms);
        journal.note_live(&id(ms as usize));
        if ms == 0 {
            // The first change is written at once.
            assert_eq!(journal.due(now), Some(now));
        }
        journal.flush_if_due(now);
        let length = running(&mut journal).file.length();
        if lengths.last() != Some(&length) {
            assert_eq!(ms % 250, 0, "written at {ms} ms");
            lengths.push(length);
        } else {
            let next = start + Duration::from_millis(ms - ms % 250 + 250);
            assert_eq!(journal.due(now), Some(next));
        }
    }
    assert_eq!(lengths.len(), 1 + 8);
    assert_eq!(lengths[1] - lengths[0], record::size(&id(0)));
}

#[test]
fn a_file_with_few_live_ids_is_compacted_at_a_mebibyte() {
    let home = private_folder();
    let (mut journal, _) = open(&home, quiet);
    let (mut compacted, mut before, mut largest) = (0, 0, 0);
    for n in 0..100_000 {
        journal.note_live(&id(n));
        if n >= 500 {
            journal.note_gone(&id(n - 500));
        }
        if n % 10 == 0 {
            journal.flush();
            let length = running(&mut journal).file.length();
            compacted += usize::from(length < before);
            largest = largest.max(length);
            before = length;
        }
    }
    journal.flush();
    let on_disk = running(&mut journal).file.file.metadata().unwrap().len();
    assert_eq!(on_disk, running(&mut journal).file.length());
    assert!(largest <= COMPACT_FROM, "{largest}");
    assert!((3..=5).contains(&compacted), "{compacted}");
    drop(journal);

    let (_journal, lost) = open(&home, quiet);
    let expected: Vec<_> = (99_500..100_000).map(id).collect();
    let mut lost = lost;
    lost.sort();
    assert_eq!(lost, expected);
}

#[test]
fn ids_that_cannot_be_kept_are_refused_with_one_log_line() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let home = private_folder();
    let (mut journal, _) = open(&home, |line| SAID.lock().unwrap().push(line.to_owned()));
    journal.note_live(&"".into());
    journal.note_live(&"x".repeat(MAX_ID_BYTES + 1).into());
    for n in 0..MAX_IDS + 10 {
        journal.note_live(&id(n));
    }
    journal.flush();
    assert_eq!(running(&mut journal).ids.len(), MAX_IDS);
    assert_eq!(SAID.lock().unwrap().len(), 1);
    drop(journal);
    let (_journal, lost) = open(&home, quiet);
    assert_eq!(lost.len(), MAX_IDS);
}

#[test]
fn an_id_that_comes_again_while_its_eviction_is_reported_stays_live() {
    let home = private_folder();
    let (mut journal, _) = open(&home, quiet);
    let request = id(1);
    journal.note_live(&request);
    journal.note_evicted(&request);
    journal.note_live(&request);
    // The report was about the first request.
    journal.note_gone(&request);
    journal.flush();
    drop(journal);

    let (mut journal, lost) = open(&home, quiet);
    assert_eq!(lost, std::slice::from_ref(&request));
    // The same for an id that the last process left.
    journal.note_live(&request);
    journal.note_gone(&request);
    journal.flush();
    drop(journal);
    let (mut journal, lost) = open(&home, quiet);
    assert_eq!(lost, std::slice::from_ref(&request));
    journal.note_live(&request);
    journal.note_evicted(&request);
    journal.note_gone(&request);
    journal.flush();
    drop(journal);
    let (_journal, lost) = open(&home, quiet);
    assert_eq!(lost, []);
}

/// Lets the next writes fail. Returns the real file, which has the lock.
fn fill_disk(journal: &mut Journal) -> File {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    std::mem::replace(&mut running(journal).file.file, full)
}

#[test]
fn after_a_full_disk_the_journal_is_written_again_and_no_id_is_lost() {
    let home = private_folder();
    let log: fn(&str) = |line| LINES.lock().unwrap().push(line.to_owned());
    let (mut journal, _) = open(&home, log);
    (1..=3).for_each(|n| journal.note_live(&id(n)));
    journal.flush();
    journal.note_gone(&id(1));
    journal.note_live(&id(4));
    let _file = fill_disk(&mut journal);
    journal.flush();
    assert!(journal.is_on() && !journal.is_written());
    // Meanwhile ids come and go, and are as bounded as ever.
    journal.note_gone(&id(2));
    for n in 5..MAX_CHANGES + 100 {
        journal.note_live(&id(n));
        journal.note_gone(&id(n));
    }
    journal.note_live(&id(5));
    assert!(running(&mut journal).changes.is_empty());
    // Not yet. Noting so many ids may have taken longer than the pause.
    let failed = Instant::now();
    running(&mut journal).retry = failed.checked_add(LONGEST_PAUSE);
    journal.flush();
    journal.flush_if_due(failed);
    assert!(!journal.is_written());
    let due = journal.due(failed).unwrap();
    assert!(due > failed, "it is not tried all the time");
    journal.flush_if_due(due);
    assert!(journal.is_written());
    journal.note_live(&id(6));
    journal.note_gone(&id(5));
    journal.flush();
    let lines = LINES.lock().unwrap();
    let [full, again] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert!(full.starts_with("[ContextPilot] the journal ") && full.contains("cannot be written"));
    assert!(again.contains("can be written again"), "{again}");
    assert!(!full.contains("req-"), "{full}");
    // Killed.
    drop(journal);
    let (_journal, mut lost) = open(&home, quiet);
    lost.sort_unstable();
    assert_eq!(lost, [id(3), id(4), id(6)]);
}

#[test]
fn a_disk_that_stays_full_is_tried_ever_less_often() {
    let home = private_folder();
    let (mut journal, _) = open(&home, |_| ());
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let before = Instant::now();
        journal.on(|_| Err(io::ErrorKind::StorageFull.into()));
        pauses.push((journal.due(before).unwrap() - before).as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 16, 16, 16]);
    // The end does not wait.
    journal.note_live(&id(1));
    journal.close();
    assert_eq!(open(&home, quiet).1, [id(1)]);
}

#[test]
fn the_end_says_whether_the_next_start_knows_every_id() {
    let home = private_folder();
    let (mut journal, _) = open(&home, |_| ());
    journal.note_live(&id(1));
    assert!(journal.close());
    let (mut journal, _) = open(&home, |_| ());
    journal.note_live(&id(2));
    let _file = fill_disk(&mut journal);
    assert!(!journal.close());
    let (mut journal, _) = open(&home, |_| ());
    journal.note_live(&"x".repeat(MAX_ID_BYTES + 1).into());
    assert!(!journal.close());
    assert!(!Journal::off(quiet).close());
}

#[test]
fn a_journal_that_cannot_be_written_stays_locked() {
    let home = private_folder();
    let (mut journal, _) = open(&home, |_| ());
    journal.note_live(&id(1));
    journal.flush();
    journal.on(|_| Err(io::ErrorKind::StorageFull.into()));
    let (second, lost) = open(&home, quiet);
    assert_eq!(lost, []);
    drop((journal, second));
    assert_eq!(open(&home, quiet).1, [id(1)]);
}

#[test]
fn debug_shows_no_ids() {
    let home = private_folder();
    let (mut journal, _) = open(&home, quiet);
    journal.note_live(&id(1));
    let text = format!("{journal:?} {:?}", Journal::off(quiet));
    assert!(text.contains("1 ids") && text.contains("(off)"), "{text}");
    assert!(!text.contains("req-"), "{text}");
}

#[test]
fn a_full_journal_takes_new_ids_after_others_are_flushed_as_gone() {
    let home = private_folder();
    let long = |n: u32| -> Arc<str> { format!("{n:0>512}").into() };
    let fits = (MAX_LIVE_BYTES / record::size(&long(0))) as u32;
    let (mut journal, _) = open(&home, |_| ());
    (0..fits).for_each(|n| journal.note_live(&long(n)));
    journal.flush();
    // There is room for new ids only after the flush that writes the old ones as gone.
    (0..10).for_each(|n| journal.note_gone(&long(n)));
    (0..20).for_each(|n| journal.note_live(&long(fits + n)));
    journal.flush();
    (0..20).for_each(|n| journal.note_live(&long(fits + n)));
    journal.flush();
    drop(journal);
    // Read without complaint.
    let (_journal, lost) = open(&home, quiet);
    assert_eq!(lost.len() as u32, fits);
}
