//! What the journal does about files that are already in its place.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use contextpilot_journal::{Identity, Journal, Origin};
use contextpilot_server_flags::{Generation, ServerFlags};
use contextpilot_testbed::private_folder;
use rustix::fs::{CWD, Mode};
use tempfile::TempDir;

/// Makes a log function, and a function that takes the lines it got. Each test has its own, because
/// the log is a plain function and can capture nothing.
macro_rules! log {
    () => {{
        static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        fn log(line: &str) {
            assert!(
                line.starts_with("[ContextPilot]") && !line.contains('\n'),
                "{line:?}"
            );
            LINES.lock().unwrap().push(line.to_owned());
        }
        (log as fn(&str), || {
            std::mem::take(&mut *LINES.lock().unwrap())
        })
    }};
}

fn quiet(line: &str) {
    panic!("said {line:?}");
}

fn identity(port: &str) -> Identity {
    identity_of("http://index", port)
}

fn identity_of(index: &str, port: &str) -> Identity {
    let argv = ["llama-server", "--port", port].map(Into::into);
    let flags = ServerFlags::read(argv, |_| None, Generation::Late2026);
    Identity::of(index, &flags, &Origin::default())
}

fn open(home: &TempDir, port: &str, log: fn(&str)) -> (Journal, Vec<Arc<str>>) {
    open_of("http://index", home, port, log)
}

fn open_of(index: &str, home: &TempDir, port: &str, log: fn(&str)) -> (Journal, Vec<Arc<str>>) {
    let lookup = |name: &str| (name == "HOME").then(|| home.path().into());
    Journal::in_state_folder(lookup, None, identity_of(index, port), log)
}

fn folder(home: &TempDir) -> PathBuf {
    home.path().join(".local/state/contextpilot-llama")
}

fn path(home: &TempDir, number: u32) -> PathBuf {
    folder(home).join(format!("{}-{number}.journal", identity("1")))
}

fn names(home: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder(home)).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Leaves a journal with these ids, as a killed process leaves it.
fn leave(home: &TempDir, port: &str, ids: &[&str]) {
    leave_of("http://index", home, port, ids);
}

fn leave_of(index: &str, home: &TempDir, port: &str, ids: &[&str]) {
    let (mut journal, _) = open_of(index, home, port, quiet);
    for &id in ids {
        journal.note_live(&id.into());
    }
    journal.flush();
}

/// Makes a named pipe, without a process for it: a child has this program's files open until it runs
/// its own program, and so would keep the journals of the tests beside this one locked.
fn make_fifo(path: &Path) {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mkfifoat(CWD, path, mode).unwrap();
}

#[test]
fn the_file_is_private_and_is_removed_when_no_id_is_left() {
    let home = private_folder();
    leave(&home, "1", &["a", "b"]);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&folder(&home)), 0o700);
    assert_eq!(mode(&path(&home, 1)), 0o600);

    let (mut journal, lost) = open(&home, "1", quiet);
    assert_eq!(lost, ["a".into(), "b".into()]);
    journal.note_gone("a");
    journal.close();
    let (mut journal, lost) = open(&home, "1", quiet);
    assert_eq!(lost, ["b".into()]);
    journal.note_gone("b");
    journal.close();
    assert_eq!(names(&home), [""; 0]);
}

#[test]
fn a_crash_while_evictions_are_reported_loses_no_id() {
    let home = private_folder();
    leave(&home, "1", &["a", "b", "c"]);
    for left in [3, 2, 1, 0] {
        let (mut journal, lost) = open(&home, "1", quiet);
        assert_eq!(lost.len(), left);
        if let Some(id) = lost.first() {
            journal.note_gone(id);
        }
        journal.flush();
    }
}

#[test]
fn a_torn_tail_is_cut_off_and_written_over() {
    let home = private_folder();
    leave(&home, "1", &["first", "second"]);
    let whole = fs::read(path(&home, 1)).unwrap();
    for cut in 0..whole.len() {
        fs::write(path(&home, 1), &whole[..cut]).unwrap();
        let (mut journal, lost) = open(&home, "1", quiet);
        journal.note_live(&"third".into());
        journal.flush();
        drop(journal);
        let (_, again) = open(&home, "1", quiet);
        assert!(lost.len() < 2, "{cut}");
        assert_eq!(again[..lost.len()], lost, "{cut}");
        assert_eq!(again[lost.len()..], ["third".into()], "{cut}");
    }
    assert_eq!(names(&home).len(), 1);
}

#[test]
fn damaged_files_are_set_aside_and_three_of_them_kept() {
    let (log, lines) = log!();
    let home = private_folder();
    for n in 0..6 {
        leave(&home, "1", &["first", "second", "third"]);
        let mut bytes = fs::read(path(&home, 1)).unwrap();
        // The byte is in the second record.
        let at = bytes.len() - 7 - 5 - 1;
        bytes[at] ^= 0x20;
        bytes.push(n);
        fs::write(path(&home, 1), &bytes).unwrap();

        let (mut journal, lost) = open(&home, "1", log);
        assert_eq!(lost, ["first".into()]);
        let lines = lines();
        assert!(lines.len() == 1 && lines[0].contains("bad-"), "{lines:?}");
        assert!(!lines[0].contains("first"));
        let bad = names(&home)
            .into_iter()
            .filter(|name| name.contains(".bad-"));
        let kept: Vec<_> = bad
            .map(|name| fs::read(folder(&home).join(name)).unwrap())
            .collect();
        assert!(kept.contains(&bytes));
        assert_eq!(kept.len(), usize::from(n + 1).min(3));

        // The ids that could be read are in the new file.
        drop(journal);
        let lost;
        (journal, lost) = open(&home, "1", quiet);
        assert_eq!(lost, ["first".into()]);
        journal.note_gone("first");
        journal.close();
    }
}

#[test]
fn a_file_that_is_no_journal_is_set_aside() {
    let (log, lines) = log!();
    let home = private_folder();
    leave(&home, "1", &[]);
    let elsewhere = home.path().join("elsewhere");
    fs::write(&elsewhere, "not yours").unwrap();
    type Make<'a> = &'a dyn Fn(&Path);
    let kinds: [(&str, Make); 9] = [
        ("link", &|path| symlink(&elsewhere, path).unwrap()),
        ("dangling", &|path| symlink("/nonexistent", path).unwrap()),
        ("folder", &|path| fs::create_dir(path).unwrap()),
        ("fifo", &|path| make_fifo(path)),
        ("socket", &|path| {
            drop(std::os::unix::net::UnixListener::bind(path).unwrap())
        }),
        ("text", &|path| fs::write(path, "x".repeat(100)).unwrap()),
        ("huge", &|path| {
            fs::File::create(path).unwrap().set_len(1 << 40).unwrap()
        }),
        ("zeros and more", &|path| {
            let mut bytes = vec![0; 1000];
            bytes.push(1);
            fs::write(path, bytes).unwrap();
        }),
        ("open to others", &|path| {
            leave(&home, "1", &["theirs"]);
            fs::set_permissions(path, Permissions::from_mode(0o620)).unwrap();
        }),
    ];
    for (name, make) in kinds {
        let _ = fs::remove_file(path(&home, 1));
        make(&path(&home, 1));
        let (mut journal, lost) = open(&home, "1", log);
        assert_eq!(lost, [], "{name}");
        assert!(journal.is_on(), "{name}");
        let said = lines();
        assert_eq!(said.len(), 1, "{name}: {said:?}");
        journal.note_live(&"a".into());
        journal.flush();
        drop(journal);
        let (mut journal, lost) = open(&home, "1", quiet);
        assert_eq!(lost, ["a".into()], "{name}");
        journal.note_gone("a");
        journal.close();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"not yours");
    }
    assert_eq!(names(&home).len(), 3);
}

#[test]
fn a_file_that_others_could_read_is_used_and_closed_to_them() {
    let home = private_folder();
    leave(&home, "1", &["a"]);
    fs::set_permissions(path(&home, 1), Permissions::from_mode(0o644)).unwrap();
    let (_journal, lost) = open(&home, "1", quiet);
    assert_eq!(lost, ["a".into()]);
    assert_eq!(fs::metadata(path(&home, 1)).unwrap().mode() & 0o777, 0o600);
}

/// A program that kills its llama-server starts the next one at another port.
#[test]
fn what_a_dead_server_left_is_taken_over_at_another_address() {
    let home = private_folder();
    leave(&home, "1", &["a", "b"]);
    leave_of("http://other", &home, "2", &["theirs"]);
    let (mut living, _) = open(&home, "3", quiet);
    living.note_live(&"living".into());
    living.flush();
    // The start of "3" has taken over "1": it is as if it had crashed while it reported.
    drop(living);
    let (mut living, mut lost) = open(&home, "4", quiet);
    lost.sort();
    assert_eq!(lost, ["a".into(), "b".into(), "living".into()]);
    living.note_gone("a");
    living.flush();

    // No process takes what a living server holds, or what is another index's.
    let (journal, lost) = open(&home, "5", quiet);
    assert_eq!(lost, []);
    journal.close();
    drop(living);
    let (journal, mut lost) = open(&home, "5", quiet);
    lost.sort();
    assert_eq!(lost, ["b".into(), "living".into()]);
    assert_eq!(names(&home).len(), 2);
    drop(journal);
    let (_, lost) = open_of("http://other", &home, "6", quiet);
    assert_eq!(lost, ["theirs".into()]);
}

/// Files of earlier versions do not say of which index they are.
#[test]
fn a_journal_that_does_not_say_its_index_is_left_to_its_own_server() {
    let home = private_folder();
    leave(&home, "1", &["a"]);
    // The header of 32 bytes, and behind it the record that says the index.
    let whole = fs::read(path(&home, 1)).unwrap();
    let length = usize::from(u16::from_le_bytes([whole[33], whole[34]]));
    let mut older = whole[..32].to_vec();
    older.extend(&whole[32 + 7 + length..]);
    fs::write(path(&home, 1), older).unwrap();
    assert_eq!(open(&home, "2", quiet).1, []);
    assert_eq!(open(&home, "1", quiet).1, ["a".into()]);
}

#[test]
fn another_users_file_is_left_alone() {
    let home = private_folder();
    leave(&home, "1", &["a"]);
    let owner = fs::metadata(path(&home, 1)).unwrap().uid();
    if std::os::unix::fs::chown(path(&home, 1), Some(owner + 1), None).is_err() {
        contextpilot_testbed::skip("only root can give a file away");
        return;
    }
    let before = fs::read(path(&home, 1)).unwrap();
    let (mut journal, lost) = open(&home, "1", quiet);
    assert_eq!(lost, []);
    journal.note_live(&"b".into());
    journal.flush();
    assert_eq!(fs::read(path(&home, 1)).unwrap(), before);
    assert!(path(&home, 2).exists());
}

#[test]
fn another_instances_journal_under_our_name_is_left_alone() {
    let home = private_folder();
    leave(&home, "1", &[]);
    leave(&home, "2", &["theirs"]);
    let theirs = folder(&home).join(format!("{}-1.journal", identity("2")));
    fs::rename(theirs, path(&home, 1)).unwrap();
    let before = fs::read(path(&home, 1)).unwrap();
    // However old it is: only files under the names of others are removed.
    let month = Duration::from_secs(31 * 24 * 3600);
    let file = File::options().write(true).open(path(&home, 1)).unwrap();
    file.set_modified(SystemTime::now() - month).unwrap();
    let (mut journal, lost) = open(&home, "1", quiet);
    assert_eq!(lost, []);
    journal.note_live(&"ours".into());
    journal.flush();
    assert_eq!(fs::read(path(&home, 1)).unwrap(), before);
    drop(journal);
    assert_eq!(open(&home, "1", quiet).1, ["ours".into()]);
}

#[test]
fn without_a_private_folder_there_is_no_journal() {
    let (log, lines) = log!();
    let (mut journal, lost) = Journal::in_state_folder(|_| None, None, identity("1"), log);
    assert!(!journal.is_on() && lost.is_empty());
    journal.note_live(&"a".into());
    journal.flush();
    let said = lines();
    assert!(said.len() == 1 && said[0].contains("HOME"), "{said:?}");

    let home = private_folder();
    leave(&home, "1", &["a"]);
    fs::set_permissions(folder(&home), Permissions::from_mode(0o770)).unwrap();
    let (journal, lost) = open(&home, "1", log);
    assert!(!journal.is_on() && lost.is_empty());
    let said = lines();
    assert!(
        said.len() == 1 && said[0].contains("not private"),
        "{said:?}"
    );

    fs::remove_dir_all(folder(&home)).unwrap();
    fs::write(folder(&home), "").unwrap();
    assert!(!open(&home, "1", log).0.is_on());
    assert_eq!(lines().len(), 1);
}

#[test]
fn servers_with_one_identity_have_a_file_each_up_to_sixteen() {
    let (log, lines) = log!();
    let home = private_folder();
    let mut journals = Vec::new();
    for n in 0..16 {
        let (mut journal, lost) = open(&home, "1", quiet);
        assert_eq!(lost, []);
        journal.note_live(&format!("id-{n:02}").into());
        journal.flush();
        journals.push(journal);
    }
    let (journal, lost) = open(&home, "1", log);
    assert!(!journal.is_on() && lost.is_empty());
    assert_eq!(lines().len(), 1);

    // The next start takes over the files of the dead servers, and not those of the living.
    let living = journals.split_off(10);
    drop(journals);
    let (mut journal, mut lost) = open(&home, "1", quiet);
    lost.sort();
    let expected: Vec<Arc<str>> = (0..10).map(|n| format!("id-{n:02}").into()).collect();
    assert_eq!(lost, expected);
    assert_eq!(names(&home).len(), 1 + living.len());
    assert_eq!(open(&home, "1", quiet).1, []);

    // Their ids are in its own file now.
    for id in &expected[1..] {
        journal.note_gone(id);
    }
    journal.flush();
    drop(journal);
    assert_eq!(open(&home, "1", quiet).1, expected[..1]);
}

#[test]
fn the_file_of_an_unfinished_compaction_does_not_prevent_the_next_one() {
    let home = private_folder();
    leave(&home, "1", &["keep"]);
    let stale = folder(&home).join(format!("{}-1.journal.new", identity("1")));
    fs::write(&stale, "half").unwrap();
    let (mut journal, lost) = open(&home, "1", quiet);
    assert_eq!(lost, ["keep".into()]);
    for n in 0..30_000 {
        let id: Arc<str> = format!("req-{n:012}").into();
        journal.note_live(&id);
        journal.flush();
        journal.note_gone(&id);
    }
    journal.flush();
    assert!(journal.is_on());
    assert!(fs::metadata(path(&home, 1)).unwrap().len() <= 1 << 20);
    assert!(!stale.exists());
    drop(journal);
    assert_eq!(open(&home, "1", quiet).1, ["keep".into()]);
}

#[test]
fn files_of_other_instances_are_removed_after_a_month() {
    let home = private_folder();
    let day = Duration::from_secs(24 * 3600);
    let age = |name: &str, days: u32| {
        let file = fs::File::options()
            .write(true)
            .open(folder(&home).join(name));
        file.unwrap()
            .set_modified(SystemTime::now() - day * days)
            .unwrap();
    };
    // Each has an index of its own: what another server of the same index left would be taken over.
    let index = |port| format!("http://index{}", port);
    let name = |port| format!("{}-1.journal", identity_of(&index(port), port));
    leave_of(&index("1"), &home, "1", &["own"]);
    leave_of(&index("2"), &home, "2", &["young"]);
    leave_of(&index("3"), &home, "3", &["old"]);
    let (_living, _) = open_of(&index("4"), &home, "4", quiet);
    let others = [
        ("x.journal.bad-1", 31),
        ("x.journal.bad-2", 29),
        ("x.journal.new", 31),
        ("libhook.so", 3100),
        ("x.journalist", 3100),
    ];
    for (name, days) in others {
        fs::write(folder(&home).join(name), "").unwrap();
        age(name, days);
    }
    for (port, days) in [("1", 3100), ("2", 29), ("3", 31), ("4", 31)] {
        age(&name(port), days);
    }
    let (_own, lost) = open_of(&index("1"), &home, "1", quiet);
    assert_eq!(lost, ["own".into()]);
    let mut left = vec![name("1"), name("2"), name("4")];
    left.extend(["x.journal.bad-2", "libhook.so", "x.journalist"].map(Into::into));
    left.sort();
    assert_eq!(names(&home), left);
}

#[test]
fn concurrent_starts_and_ends_report_every_id_exactly_once() {
    let home = private_folder();
    let told = Mutex::new(Vec::new());
    let tell = |journal: &mut Journal, lost: Vec<Arc<str>>| {
        lost.iter().for_each(|id| journal.note_gone(id));
        told.lock().unwrap().extend(lost);
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (home, tell) = (&home, &tell);
            scope.spawn(move || {
                for n in 0..500 {
                    let (mut journal, lost) = open(home, "1", quiet);
                    tell(&mut journal, lost);
                    if n % 2 == 0 {
                        journal.note_live(&format!("{thread}-{n:03}").into());
                        journal.flush();
                    } else {
                        // Removes the file while other threads are about to lock it.
                        journal.close();
                    }
                }
            });
        }
    });
    let (mut journal, lost) = open(&home, "1", quiet);
    tell(&mut journal, lost);
    let mut told = told.into_inner().unwrap();
    told.sort();
    let ids =
        (0..4).flat_map(|thread| (0..250).map(move |n| format!("{thread}-{:03}", 2 * n).into()));
    assert_eq!(told, ids.collect::<Vec<Arc<str>>>());
}
