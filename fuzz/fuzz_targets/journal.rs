//! After any sequence of notes, writes and kills, the next start gets the ids that were in the file or the ring, and no
//! others. After damage it gets some of the ids that there ever were, and no others.
//!
//! An input is a sequence of pairs: what happens, and to which id or byte.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use contextpilot_journal::{Identity, Journal, Origin, RECENT_BYTES};
use contextpilot_server_flags::{Generation, ServerFlags};
use libfuzzer_sys::fuzz_target;

/// The memory of the ring. It is written to the ring's file when the process is killed, which is all that a shared
/// mapping does.
static WORDS: LazyLock<Vec<AtomicU64>> =
    LazyLock::new(|| (0..RECENT_BYTES / 8).map(|_| AtomicU64::new(0)).collect());
static RING: Mutex<Option<File>> = Mutex::new(None);

fn map(file: &File, _: usize) -> io::Result<&'static [AtomicU64]> {
    WORDS
        .iter()
        .for_each(|word| word.store(0, Ordering::Relaxed));
    *RING.lock().unwrap() = Some(file.try_clone()?);
    Ok(WORDS.as_slice())
}

fn open(home: &Path) -> (Journal, BTreeSet<Arc<str>>) {
    let flags = ServerFlags::read([], |_| None, Generation::Late2026);
    let identity = Identity::of("http://index", &flags, &Origin::default());
    let lookup = |name: &str| (name == "HOME").then(|| home.as_os_str().to_owned());
    let (journal, lost) = Journal::in_state_folder(lookup, Some(map), identity, |_| ());
    let all: BTreeSet<Arc<str>> = lost.iter().cloned().collect();
    assert_eq!(all.len(), lost.len(), "an id is lost twice");
    (journal, all)
}

/// The process is killed.
fn kill(journal: Journal) {
    if let Some(ring) = RING.lock().unwrap().take() {
        let bytes = WORDS
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let bytes: Vec<u8> = bytes.collect();
        ring.write_all_at(&bytes, 0).expect("a file in memory");
    }
    drop(journal);
}

#[derive(Clone, Copy, PartialEq)]
enum Belief {
    Live,
    Evicted,
    Returned,
}

/// What must be.
#[derive(Default)]
struct Model {
    ids: BTreeMap<Arc<str>, Belief>,
    written: BTreeSet<Arc<str>>,
    ring: BTreeMap<u64, Arc<str>>,
    ever: BTreeSet<Arc<str>>,
}

impl Model {
    fn restart(&mut self, lost: BTreeSet<Arc<str>>) {
        self.ids = lost
            .iter()
            .map(|id| (Arc::clone(id), Belief::Evicted))
            .collect();
        self.written = lost;
        self.ring.clear();
    }

    fn flushed(&mut self) {
        self.written = self.ids.keys().cloned().collect();
    }
}

fuzz_target!(|data: &[u8]| {
    let home = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in("/dev/shm")
        .expect("memory");
    let (mut journal, lost) = open(home.path());
    assert!(lost.is_empty() && journal.is_on());
    let mut model = Model::default();
    let mut number = 0;
    for pair in data.chunks_exact(2).take(64) {
        let (what, which) = (pair[0], pair[1]);
        let id: Arc<str> = match which % 8 {
            0 => "x".repeat(usize::from(which) * 2 + 1).into(),
            _ => format!("req-{}", which % 32).into(),
        };
        match what % 8 {
            0 | 1 => {
                number += 1;
                let ring = journal.recent().expect("there is memory");
                if ring.note(number, &id) {
                    model.ring.insert(number, Arc::clone(&id));
                }
                model.ever.insert(Arc::clone(&id));
                // The process may be killed in between.
                if what % 8 == 1 {
                    journal.note_live(&id);
                    let belief = model.ids.entry(id).or_insert(Belief::Live);
                    if *belief == Belief::Evicted {
                        *belief = Belief::Returned;
                    }
                }
            }
            2 => {
                journal.note_evicted(&id);
                if let Some(belief) = model.ids.get_mut(&id) {
                    *belief = Belief::Evicted;
                }
            }
            3 => {
                journal.note_gone(&id);
                if model
                    .ids
                    .get(&id)
                    .is_some_and(|belief| *belief != Belief::Returned)
                {
                    model.ids.remove(&id);
                }
            }
            4 => {
                journal.flush();
                assert!(journal.is_written());
                model.flushed();
            }
            5 => {
                let ring = journal.recent().expect("there is memory");
                for (number, _) in std::mem::take(&mut model.ring) {
                    assert!(ring.holds(number));
                    ring.release(number);
                    assert!(!ring.holds(number));
                }
            }
            6 => {
                kill(journal);
                let (again, lost) = open(home.path());
                let expected: BTreeSet<_> = model
                    .written
                    .iter()
                    .chain(model.ring.values())
                    .cloned()
                    .collect();
                assert_eq!(lost, expected);
                model.restart(lost);
                journal = again;
            }
            _ => {
                kill(journal);
                damage(home.path(), what, which);
                let (again, lost) = open(home.path());
                assert!(lost.is_subset(&model.ever), "{lost:?}");
                assert!(again.is_on());
                model.restart(lost);
                journal = again;
            }
        }
    }
    journal.close();
    RING.lock().unwrap().take();
});

/// Changes a byte of the journal, or cuts it off.
fn damage(home: &Path, how: u8, at: u8) {
    let folder = home.join(".local/state/contextpilot-llama");
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("a file").path();
        let Ok(mut bytes) = std::fs::read(&path) else {
            continue;
        };
        if bytes.is_empty() {
            continue;
        }
        let at = usize::from(at) * bytes.len() / 256;
        match how & 0x80 {
            0 => bytes[at] ^= 1 << (how >> 3 & 7),
            _ => bytes.truncate(at),
        }
        std::fs::write(&path, bytes).expect("the file");
    }
}
