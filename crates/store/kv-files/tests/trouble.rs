//! Disks that are full, and folders that cannot be written to. Nothing panics, nothing is half
//! there, and when the trouble is over, writing goes on.
//!
//! Some of it needs another user, a mounted disk or a limit. There this program starts itself again.

mod common;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use common::*;
use contextpilot_kv_files::{Done, Folder, Refusal, Watch, Writer};
use contextpilot_kv_store::{Chunk, Facts, Origin};
use contextpilot_testbed::{or_return, private_folder, test_name};

/// Where a test that was started again finds its folder.
const HOME: &str = "KV_FILES_TEST_HOME";

fn home() -> Option<PathBuf> {
    std::env::var_os(HOME).map(PathBuf::from)
}

/// A command that runs one test of this program.
fn again(prefix: &[&str], test: &str, home: &Path) -> Command {
    let this = std::env::current_exe().expect("a path");
    let mut words = prefix.iter().map(|word| (*word).into()).collect::<Vec<_>>();
    words.extend([
        this.into_os_string(),
        "--exact".into(),
        test.into(),
        "--nocapture".into(),
    ]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(HOME, home);
    command
}

fn succeeds(mut command: Command) {
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
}

fn write_and_wait(writer: &Writer, chunk: &Chunk) -> Option<Done> {
    writer
        .write(chunk, Arc::new(rows(chunk)))
        .expect("it is taken");
    assert!(writer.flush(LONG));
    writer.done().last()
}

/// Why it failed.
fn kind(done: Option<Done>) -> Option<ErrorKind> {
    match done {
        Some(Done::Failed(_, problem)) => Some(problem.kind),
        _ => None,
    }
}

/// After a failure nothing is taken for a while; then `chunk` is written.
fn recovers(writer: &Writer, folder: &Folder, chunk: &Chunk) {
    assert_eq!(writer.accepts(1), Err(Refusal::Paused));
    assert_eq!(
        writer.write(chunk, Arc::new(rows(chunk))),
        Err(Refusal::Paused)
    );
    until("the pause ends", || writer.accepts(1).is_ok());
    assert_eq!(
        write_and_wait(writer, chunk),
        Some(Done::Written(chunk.name))
    );
    let mut out = Vec::new();
    folder
        .read(&chunk.name, chunk.bytes, &mut out)
        .expect("it is there");
    assert_eq!(out, rows(chunk));
}

/// No half files are left.
fn nothing_new(folder: &Folder) {
    let new = folder.path().join("v1/new");
    assert_eq!(fs::read_dir(new).expect("a folder").count(), 0);
}

/// A prefix of a command that runs in a mount namespace of its own, with a disk of 1 MB at `home`.
fn small_disk(home: &Path) -> Option<[String; 5]> {
    let home = home.to_str().expect("plain text");
    let script = format!("mount -t tmpfs -o size=1m,mode=700 none {home} && exec \"$0\" \"$@\"");
    ["-m", "-rm"].into_iter().find_map(|flags| {
        let words = ["unshare", flags, "sh", "-c", &script].map(str::to_owned);
        let mut probe = Command::new(&words[0]);
        probe.args(&words[1..]).arg("true").stderr(Stdio::null());
        probe
            .status()
            .is_ok_and(|status| status.success())
            .then_some(words)
    })
}

/// The folder of a disk of 1 MB, in a process of its own. Without one it runs the test again in such a process, if that can
/// be had, and returns nothing.
fn on_small_disk(test: &str) -> Option<PathBuf> {
    if let Some(home) = home() {
        return Some(home);
    }
    let home = private_folder();
    let Some(prefix) = small_disk(home.path()) else {
        contextpilot_testbed::skip("nothing can be mounted here (unshare, of util-linux)");
        return None;
    };
    let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
    succeeds(again(&prefix, test, home.path()));
    None
}

#[test]
fn a_full_disk_fails_and_recovers() {
    let home = or_return!(on_small_disk(test_name!()));
    let folder = Folder::open(&home).expect("it opens");
    // All are in the queue before the disk is full.
    static GO: Mutex<()> = Mutex::new(());
    let stop = GO.lock().expect("a lock");
    let writer =
        Writer::start(folder.clone(), u64::MAX, || drop(GO.lock()), || false).expect("a thread");
    let chunks: Vec<Chunk> = (0..20)
        .map(|prompt| chunks(prompt, 100).remove(0))
        .collect();
    for chunk in &chunks {
        writer
            .write(chunk, Arc::new(rows(chunk)))
            .expect("it is taken");
    }
    drop(stop);
    assert!(writer.flush(LONG));
    let done: Vec<Done> = writer.done().collect();
    assert_eq!(done.len(), chunks.len());
    let written = done
        .iter()
        .filter(|done| matches!(done, Done::Written(_)))
        .count();
    assert!((5..11).contains(&written), "{written} of 100 KB each");
    for (at, (done, chunk)) in done.into_iter().zip(&chunks).enumerate() {
        let Done::Failed(name, problem) = done else {
            assert!(at < written);
            continue;
        };
        assert_eq!((name, problem.kind), (chunk.name, ErrorKind::StorageFull));
        assert!(
            problem
                .to_string()
                .ends_with("make room there, or lower CONTEXTPILOT_STORE_GB")
        );
    }
    nothing_new(&folder);
    assert_eq!(found(&folder), chunks[..written]);
    writer.remove(chunks[0].name);
    recovers(&writer, &folder, &chunks[19]);
    let mut out = Vec::new();
    for chunk in &chunks[1..written] {
        folder
            .read(&chunk.name, chunk.bytes, &mut out)
            .expect("it is whole");
        assert_eq!(out, rows(chunk));
    }
}

/// A server that starts then must not remove what all others have.
#[test]
fn on_a_full_disk_the_usual_limit_is_what_is_there() {
    let home = or_return!(on_small_disk(test_name!()));
    let folder = Folder::open(&home).expect("it opens");
    let all = chunks(1, 600);
    write(&folder, &all);
    let own: u64 = all.iter().map(Chunk::cost).sum();
    let (free, _) = folder.space().expect("it says");
    let limit = folder.usual_limit(own);
    assert_eq!(limit.bytes, own.max((free + own) / 10));
    let full = fs::write(home.join("full"), vec![1; 2 << 20]);
    assert_eq!(full.map_err(|e| e.kind()), Err(ErrorKind::StorageFull));
    assert_eq!(folder.space().expect("it says").0, 0);
    let limit = folder.usual_limit(own);
    assert_eq!(limit.bytes, own);
    assert!(limit.problem.is_some_and(|why| why.contains("make room")));
}

#[test]
fn a_disk_that_becomes_read_only_fails() {
    let home = or_return!(on_small_disk(test_name!()));
    let mount = |how: &str| {
        let mut command = Command::new("mount");
        let status = command.args(["-o", how]).arg(&home).status();
        assert!(status.expect("mount runs").success());
    };
    let folder = Folder::open(&home).expect("it opens");
    let writer = writer(&folder);
    let both = [chunks(1, 20).remove(0), chunks(2, 20).remove(0)];
    assert_eq!(
        write_and_wait(&writer, &both[0]),
        Some(Done::Written(both[0].name))
    );
    mount("remount,ro");
    assert_eq!(
        kind(write_and_wait(&writer, &both[1])),
        Some(ErrorKind::ReadOnlyFilesystem)
    );
    // Neither may hurt.
    writer.touch([both[0].name]);
    writer.remove(both[0].name);
    assert!(writer.flush(LONG));
    assert_eq!(found(&folder), both[..1]);
    mount("remount,rw");
    recovers(&writer, &folder, &both[1]);
}

#[test]
fn a_folder_that_disappears_is_made_again() {
    let home = private_folder();
    let folder = Folder::open(&home.path().join("store")).expect("it is made");
    let writer = writer(&folder);
    let both = [chunks(1, 20).remove(0), chunks(2, 20).remove(0)];
    assert_eq!(
        write_and_wait(&writer, &both[0]),
        Some(Done::Written(both[0].name))
    );
    fs::remove_dir_all(folder.path()).expect("it is ours");
    assert_eq!(
        kind(write_and_wait(&writer, &both[1])),
        Some(ErrorKind::NotFound)
    );
    recovers(&writer, &folder, &both[1]);
    assert_eq!(found(&folder), both[1..]);

    // A file stands in its way, and leaves.
    fs::remove_dir_all(folder.path()).expect("it is ours");
    fs::write(folder.path(), "").expect("a file");
    assert_eq!(
        kind(write_and_wait(&writer, &both[0])),
        Some(ErrorKind::NotFound)
    );
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(
        writer.accepts(1),
        Err(Refusal::Paused),
        "it was tried again"
    );
    fs::remove_file(folder.path()).expect("it is ours");
    recovers(&writer, &folder, &both[0]);
    assert_eq!(found(&folder), both[..1]);
}

/// Nothing is asked for meanwhile.
#[test]
fn what_is_wrong_is_looked_at_again_and_told_as_it_is_now() {
    let home = private_folder();
    let folder = Folder::open(&home.path().join("store")).expect("it is made");
    let writer = writer(&folder);
    let chunk = chunks(1, 20).remove(0);
    fs::remove_dir_all(folder.path()).expect("it is ours");
    assert_eq!(
        kind(write_and_wait(&writer, &chunk)),
        Some(ErrorKind::NotFound)
    );
    // It is there again, and others may write to it.
    fs::create_dir(folder.path()).expect("it is made");
    set_mode(folder.path(), 0o777);
    let mut now = String::new();
    until("the reason is another one", || {
        writer.done().any(|done| match done {
            Done::Paused(problem) => {
                now = problem.to_string();
                true
            }
            _ => false,
        })
    });
    assert!(
        now.contains("is not private") && !now.contains("removed"),
        "{now}"
    );
    set_mode(folder.path(), 0o700);
    until("it is over", || {
        writer.done().any(|done| done == Done::Resumed)
    });
    assert_eq!(
        write_and_wait(&writer, &chunk),
        Some(Done::Written(chunk.name))
    );
}

/// What is fetched for the folder depends on it.
#[test]
fn an_origin_that_could_not_be_written_is_written_later() {
    let home = private_folder();
    let folder = Folder::open(&home.path().join("store")).expect("it is made");
    let writer = writer(&folder);
    let origin = Origin::new("tea".to_owned(), &Facts::default(), None);
    fs::remove_dir_all(folder.path()).expect("it is ours");
    writer.note_origin(origin.clone());
    assert!(writer.flush(LONG));
    let made = Folder::open(folder.path()).expect("another process makes it");
    let mut watch = Watch::new(folder);
    watch.look(|_| ()).expect("it is there");
    until("the origin is there", || made.origins() == [origin.clone()]);
}

/// Some folder inside may be removed, too.
#[test]
fn an_inner_folder_that_disappears_is_made_again() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let writer = writer(&folder);
    let chunk = chunks(1, 20).remove(0);
    assert_eq!(
        write_and_wait(&writer, &chunk),
        Some(Done::Written(chunk.name))
    );
    let inner = path(&folder, &chunk.name);
    fs::remove_dir_all(inner.parent().expect("one")).expect("it is ours");
    assert_eq!(found(&folder), []);
    assert_eq!(
        write_and_wait(&writer, &chunk),
        Some(Done::Written(chunk.name))
    );
    fs::remove_dir_all(home.path().join("v1/new")).expect("it is ours");
    assert_eq!(
        kind(write_and_wait(&writer, &chunk)),
        Some(ErrorKind::NotFound)
    );
    recovers(&writer, &folder, &chunk);
    assert_eq!(found(&folder), [chunk]);
}

/// For root everything is permitted, so another user runs this.
#[test]
fn without_permission_it_fails_and_recovers() {
    const NOBODY: u32 = 65534;
    let is_root = rustix::process::geteuid().is_root();
    let ours = private_folder();
    let Some(home) = home().or_else(|| (!is_root).then(|| ours.path().to_owned())) else {
        let home = private_folder();
        std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).expect("we are root");
        let mut command = again(&["env"], test_name!(), home.path());
        command.uid(NOBODY).gid(NOBODY);
        return succeeds(command);
    };
    let folder = Folder::open(&home).expect("it opens");
    let writer = writer(&folder);
    let both = [chunks(1, 20).remove(0), chunks(2, 20).remove(0)];
    assert_eq!(
        write_and_wait(&writer, &both[0]),
        Some(Done::Written(both[0].name))
    );
    let new = home.join("v1/new");
    set_mode(&new, 0o500);
    assert_eq!(
        kind(write_and_wait(&writer, &both[1])),
        Some(ErrorKind::PermissionDenied)
    );
    set_mode(&new, 0o700);
    recovers(&writer, &folder, &both[1]);
    // A file that may not be read is not our doing, and stays.
    set_mode(&path(&folder, &both[0].name), 0);
    let mut out = Vec::new();
    assert!(folder.read(&both[0].name, both[0].bytes, &mut out).is_err());
    let mut headers = folder.headers().expect("it can be read");
    assert_eq!(headers.by_ref().count(), 1);
    assert_eq!(
        (headers.damaged, headers.foreign, headers.unreadable),
        (0, 0, 1)
    );
    set_mode(&home.join("v1"), 0);
    assert!(folder.headers().map_or(0, Iterator::count) < 2);
    let error = Folder::open(&home).err().map(|error| error.to_string());
    set_mode(&home.join("v1"), 0o700);
    assert!(error.is_some_and(|error| error.contains("cannot be used")));
    fs::remove_dir_all(home.join("v1")).expect("it is ours");
}

/// Beyond the limit the system sends a signal, which would end the server.
#[test]
fn a_limit_of_file_sizes_is_kept_to() {
    let Some(home) = home() else {
        let home = private_folder();
        // Blocks of 512 bytes.
        let limit = ["sh", "-c", "ulimit -f 64 && exec \"$0\" \"$@\""];
        return succeeds(again(&limit, test_name!(), home.path()));
    };
    let folder = Folder::open(&home).expect("it opens");
    let writer = writer(&folder);
    let (large, small) = (chunks(1, 200).remove(0), chunks(2, 20).remove(0));
    assert_eq!(
        kind(write_and_wait(&writer, &large)),
        Some(ErrorKind::FileTooLarge)
    );
    recovers(&writer, &folder, &small);
}

/// Two contexts of a process, or two servers.
#[test]
fn two_writers_of_one_folder_do_no_harm() {
    let home = private_folder();
    let folders = [0, 1].map(|_| Folder::open(home.path()).expect("it opens"));
    let chunks: Vec<Chunk> = (0..60).map(|prompt| chunks(prompt, 50).remove(0)).collect();
    std::thread::scope(|scope| {
        for folder in &folders {
            scope.spawn(|| {
                let writer = writer(folder);
                let mut out = Vec::new();
                for chunk in &chunks {
                    writer
                        .write(chunk, Arc::new(rows(chunk)))
                        .expect("it is taken");
                    writer.remove(chunk.name);
                    writer
                        .write(chunk, Arc::new(rows(chunk)))
                        .expect("it is taken");
                    // Whole or gone, whatever the other does.
                    if folder.read(&chunk.name, chunk.bytes, &mut out).is_ok() {
                        assert_eq!(out, rows(chunk));
                    }
                }
                assert!(writer.flush(LONG));
                assert!(writer.done().all(|done| matches!(done, Done::Written(_))));
            });
        }
    });
    assert_eq!(found(&folders[0]), chunks);
    nothing_new(&folders[0]);
}
