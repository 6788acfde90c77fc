//! Ids that were in the ring, and not yet in the journal, when the process ended.
//!
//! Instead of mapping the file, these tests use a leaked array. To kill a process they write
//! the array into the file, where a real kill would have left it.
#![cfg(target_os = "linux")]

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use contextpilot_journal::{Identity, Journal, Map, Origin};
use contextpilot_server_flags::{Generation, ServerFlags};
use contextpilot_testbed::private_folder;
use rustix::fs::{CWD, Mode};
use tempfile::TempDir;

fn array(file: &File, bytes: usize) -> io::Result<&'static [AtomicU64]> {
    let there = file.metadata()?.len() >= bytes as u64;
    let words: Vec<_> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
    there
        .then_some(&*words.leak())
        .ok_or(io::ErrorKind::UnexpectedEof.into())
}

/// The arrays in use, with the inodes of their files.
static MAPPED: Mutex<Vec<(u64, &'static [AtomicU64])>> = Mutex::new(Vec::new());

fn map(file: &File, bytes: usize) -> io::Result<&'static [AtomicU64]> {
    let words = array(file, bytes)?;
    MAPPED.lock().unwrap().push((file.metadata()?.ino(), words));
    Ok(words)
}

fn refused(_: &File, _: usize) -> io::Result<&'static [AtomicU64]> {
    Err(io::ErrorKind::OutOfMemory.into())
}

fn quiet(line: &str) {
    panic!("said {line:?}");
}

fn open_with(home: &TempDir, map: Map, log: fn(&str)) -> (Journal, Vec<Arc<str>>) {
    let flags = ServerFlags::read([], |_| None, Generation::Late2026);
    let identity = Identity::of("http://index", &flags, &Origin::default());
    let lookup = |name: &str| (name == "HOME").then(|| home.path().into());
    Journal::in_state_folder(lookup, Some(map), identity, log)
}

fn open(home: &TempDir) -> (Journal, Vec<Arc<str>>) {
    open_with(home, map, quiet)
}

fn memory() -> PathBuf {
    let user = fs::metadata("/proc/self").unwrap().uid();
    format!("/dev/shm/contextpilot-llama-{user}").into()
}

/// The rings of this state folder.
fn rings(home: &TempDir) -> Vec<PathBuf> {
    let state = home.path().join(".local/state/contextpilot-llama");
    let state = state.canonicalize().unwrap();
    // FNV-1a.
    let start = state.as_os_str().as_encoded_bytes().iter().fold(
        0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128,
        |digest, &byte| (digest ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b),
    );
    let start = format!("{start:032x}-");
    let entries = fs::read_dir(memory()).unwrap();
    let mut paths: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(&start)
        })
        .collect();
    paths.sort();
    paths
}

fn ring(home: &TempDir) -> PathBuf {
    let rings = rings(home);
    assert_eq!(rings.len(), 1, "{rings:?}");
    rings[0].clone()
}

/// Kills the process: what it stored stays in the file.
fn kill(journal: Journal, ring: &Path) {
    let inode = fs::metadata(ring).unwrap().ino();
    let mapped = MAPPED.lock().unwrap();
    let (_, words) = mapped.iter().rfind(|(found, _)| *found == inode).unwrap();
    let words = words.iter().map(|word| word.load(Ordering::Relaxed));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let mut file = fs::read(ring).unwrap();
    file[..bytes.len()].copy_from_slice(&bytes);
    fs::write(ring, file).unwrap();
    drop(journal);
}

/// Whether this machine has a private folder in shared memory.
fn usable() -> bool {
    let home = private_folder();
    let there = open(&home).0.recent().is_some();
    if !there {
        contextpilot_testbed::skip("no private folder can be had in /dev/shm");
    }
    there
}

fn ids(ids: &[&str]) -> Vec<Arc<str>> {
    ids.iter().map(|&id| id.into()).collect()
}

/// Makes a named pipe, without a process for it: a child has this program's files open until it runs
/// its own program, and so would keep the journals of the tests beside this one locked.
fn make_fifo(path: &Path) {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mkfifoat(CWD, path, mode).unwrap();
}

#[test]
fn the_next_start_gets_ids_that_were_only_in_the_ring() {
    if !usable() {
        return;
    }
    let home = private_folder();
    let (mut journal, _) = open(&home);
    let recent = journal.recent().unwrap();
    let path = ring(&home);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(memory()).unwrap().mode() & 0o7777, 0o700);
    for (number, id) in [(1, "written"), (2, "both"), (3, "only-recent")] {
        recent.note(number, id);
        assert!(recent.holds(number));
    }
    for id in ["written", "both"] {
        journal.note_live(&id.into());
        assert!(!journal.is_written());
    }
    journal.flush();
    assert!(journal.is_written());
    recent.release(1);
    kill(journal, &path);

    let (journal, lost) = open(&home);
    assert_eq!(lost, ids(&["written", "both", "only-recent"]));
    // They are in its journal now, and the ring is a new one.
    kill(journal, &ring(&home));
    let (mut journal, lost) = open(&home);
    assert_eq!(lost, ids(&["written", "both", "only-recent"]));
    lost.iter().for_each(|id| journal.note_gone(id));
    journal.close();
    assert_eq!(rings(&home), [""; 0].map(PathBuf::from));
    assert_eq!(open(&home).1, []);
}

#[test]
fn the_rings_of_several_processes_are_kept_apart() {
    if !usable() {
        return;
    }
    let home = private_folder();
    let (first, _) = open(&home);
    let first_ring = ring(&home);
    let (second, _) = open(&home);
    first.recent().unwrap().note(1, "first");
    second.recent().unwrap().note(1, "second");
    assert_eq!(rings(&home).len(), 2);
    kill(first, &first_ring);
    let (_third, lost) = open(&home);
    assert_eq!(lost, ids(&["first"]), "the second one lives");
    let mut rings = rings(&home);
    rings.retain(|path| *path != first_ring);
    kill(second, &rings[0]);
    let (_fourth, lost) = open(&home);
    assert_eq!(lost, ids(&["second"]));
}

#[test]
fn a_file_that_is_no_ring_is_removed_with_a_log_line() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    if !usable() {
        return;
    }
    let home = private_folder();
    let (journal, _) = open(&home);
    let path = ring(&home);
    let length = fs::metadata(&path).unwrap().len();
    drop(journal);
    let elsewhere = home.path().join("elsewhere");
    fs::write(&elsewhere, "not yours").unwrap();
    // The file is closed to others, whatever the umask of this process is.
    let write = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    };
    type Make<'a> = &'a dyn Fn();
    let kinds: [(&str, bool, Make); 8] = [
        ("link", true, &|| symlink(&elsewhere, &path).unwrap()),
        ("dangling", true, &|| {
            symlink("/nonexistent", &path).unwrap()
        }),
        ("fifo", true, &|| make_fifo(&path)),
        ("huge", true, &|| {
            File::create(&path).unwrap().set_len(1 << 40).unwrap();
        }),
        ("open to others", true, &|| {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
        }),
        // Without a log line: what a kill leaves while the file is made, and what only looks like a ring.
        ("empty", false, &|| write(b"")),
        ("text", false, &|| write("x".repeat(5000).as_bytes())),
        ("noise", false, &|| {
            let noise = (0..length).map(|n| ((n * 7919) >> 3) as u8);
            write(&noise.collect::<Vec<_>>());
        }),
    ];
    for (name, told, make) in kinds {
        let _ = fs::remove_file(&path);
        make();
        let log = |line: &str| LINES.lock().unwrap().push(line.to_owned());
        let (journal, lost) = open_with(&home, map, log);
        assert_eq!(lost, [], "{name}");
        let said = std::mem::take(&mut *LINES.lock().unwrap());
        assert_eq!(said.len(), usize::from(told), "{name}: {said:?}");
        assert!(said.iter().all(|line| line.starts_with("[ContextPilot]")));
        // The journal and a new ring work as usual.
        journal.recent().unwrap().note(1, "a");
        kill(journal, &ring(&home));
        let (mut journal, lost) = open(&home);
        assert_eq!(lost, ids(&["a"]), "{name}");
        journal.note_gone("a");
        journal.close();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"not yours");
    }
}

#[test]
fn without_a_ring_the_journal_works_alone() {
    if !usable() {
        return;
    }
    let home = private_folder();
    let (mut journal, _) = open_with(&home, refused, quiet);
    assert!(journal.is_on() && journal.recent().is_none());
    assert!(rings(&home).is_empty());
    journal.note_live(&"a".into());
    journal.flush();
    drop(journal);
    let (mut journal, lost) = open(&home);
    assert_eq!(lost, ids(&["a"]));
    // The ring's file is removed: what is stored in the ring would not be found again.
    assert!(journal.is_written() && journal.recent().is_some());
    fs::remove_file(ring(&home)).unwrap();
    assert!(journal.is_written() && journal.recent().is_none());
}

#[test]
fn rings_of_removed_state_folders_are_removed() {
    if !usable() {
        return;
    }
    let [gone, living, kept] = [(); 3].map(|()| private_folder());
    let [(left, _), (_living, _), (dead, _)] = [&gone, &living, &kept].map(open);
    let (left_ring, living_ring, kept_ring) = (ring(&gone), ring(&living), ring(&kept));
    drop((left, dead));
    drop(gone);
    // The process of this ring lives on without its state folder.
    fs::remove_dir_all(living.path()).unwrap();
    let other = private_folder();
    let _other = open(&other);
    assert!(!left_ring.exists());
    assert!(living_ring.exists(), "it is held");
    assert!(kept_ring.exists(), "its next start comes");
}

/// The path in the file decides: two paths may have the same digest, and a process may be killed before
/// it has written the path.
#[test]
fn a_ring_with_another_path_in_it_is_not_read() {
    if !usable() {
        return;
    }
    let home = private_folder();
    let (journal, _) = open(&home);
    journal.recent().unwrap().note(1, "theirs");
    let path = ring(&home);
    kill(journal, &path);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(open(&home).1, []);
}
