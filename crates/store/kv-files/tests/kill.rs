//! Whatever a killed process leaves is whole or ignored.

mod common;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use contextpilot_kv_files::{Done, Folder, Header, Writer};
use contextpilot_kv_store::{Fingerprint, Store};
use contextpilot_testbed::{Random, or_return, private_folder};

/// The name of the test below that is the process.
const CHILD: &str = "the_process_that_is_killed";
const HOME: &str = "KV_FILES_TEST_HOME";
const SEED: &str = "KV_FILES_TEST_SEED";
const MODEL: Fingerprint = Fingerprint([5; 16]);
/// What may be there. With more, chunks leave all the time.
const LIMIT: u64 = 3_000_000;

/// What is in the folder.
fn load(folder: &Folder, writer: Option<&Writer>) -> Store {
    let mut store = Store::new(LIMIT);
    let mut headers = folder.headers().expect("it can be read");
    for header in headers.by_ref() {
        store.load(header.chunk, header.last_used);
    }
    assert_eq!(
        (headers.damaged, headers.foreign, headers.unreadable),
        (0, 0, 0)
    );
    for name in store.orphans(u64::MAX) {
        if let Some(writer) = writer {
            writer.remove(name);
        }
    }
    store
}

/// A server that evaluates prompts and keeps them, until it is killed.
#[test]
fn the_process_that_is_killed() {
    let home = or_return!(std::env::var_os(HOME).map(PathBuf::from));
    let seed = std::env::var(SEED)
        .expect("a seed")
        .parse()
        .expect("a number");
    let folder = Folder::open(&home).expect("it opens");
    let writer = writer(&folder);
    let mut store = load(&folder, Some(&writer));
    let mut random = Random(seed);
    for nth in 0.. {
        let length = 1 + random.below(900);
        let mut prompt: Vec<i32> = (0..length as i32).collect();
        let branch = random.below(length) as usize;
        let other = random.below(4) as i32;
        prompt[branch..]
            .iter_mut()
            .for_each(|token| *token += 10_000 * other);
        let found = store.find(&MODEL, &prompt);
        store.used(found.pieces());
        writer.touch(found.pieces().iter().map(|piece| piece.name));
        for chunk in store.missing(&MODEL, &prompt, ROW) {
            let Ok(gone) = store.insert(chunk.clone()) else {
                break;
            };
            gone.into_iter().for_each(|name| writer.remove(name));
            writer
                .write(&chunk, Arc::new(rows(&chunk)))
                .expect("it is taken");
        }
        assert!(writer.done().all(|done| matches!(done, Done::Written(_))));
        if random.below(20) == 0 || writer.queued() > LIMIT || nth == 0 {
            assert!(writer.flush(LONG));
        }
        if nth == 0 {
            // From now on the thread writes without its first rest, and is killed while it does.
            println!("it runs");
        }
    }
}

/// What is being written.
fn half_files(home: &Path) -> usize {
    fs::read_dir(home.join("v1/new")).map_or(0, Iterator::count)
}

/// Every second one is killed when something is being written, or then at the latest: on a busy machine a process may
/// not get that far in a few milliseconds.
fn killed_after(home: &Path, seed: u64, time: Duration) {
    let this = std::env::current_exe().expect("a path");
    let mut child = Command::new(this)
        .args(["--exact", CHILD, "--nocapture"])
        .env(HOME, home)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = String::new();
    let mut out = child.stdout.take().expect("it is piped");
    while !said.contains("it runs") {
        let mut bytes = [0; 100];
        let count = out.read(&mut bytes).expect("it speaks");
        assert_ne!(count, 0, "it ended: {said}");
        said += &String::from_utf8_lossy(&bytes[..count]);
    }
    match seed % 2 {
        0 => std::thread::sleep(time),
        _ => {
            let end = Instant::now() + 20 * time;
            while half_files(home) == 0 && Instant::now() < end {}
        }
    }
    child.kill().expect("it is there");
    let status = child.wait().expect("it was killed");
    assert_eq!(status.code(), None, "it failed before it was killed");
}

#[test]
fn after_200_kills_everything_is_whole() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let mut random = Random(20_261_123);
    let (mut half, mut most) = (0, 0);
    for seed in 1..=200 {
        killed_after(
            home.path(),
            seed,
            Duration::from_micros(random.below(25_000)),
        );
        half += half_files(home.path());
        let store = load(&folder, None);
        most = most.max(store.chunks());
        // The next start finds these. (What is left in `new` goes when it starts to write.)
        let mut out = Vec::new();
        let mut bytes = 0;
        for Header { chunk, .. } in headers(&folder) {
            folder
                .read(&chunk.name, chunk.bytes, &mut out)
                .expect("it is whole");
            assert_eq!(out, rows(&chunk));
            bytes += chunk.cost();
        }
        // The budget, and what was in the queue while the process lived.
        assert!(bytes < 3 * LIMIT, "{bytes} bytes");
    }
    // Else nothing was tested.
    assert!(most > 3, "{most} chunks");
    assert!(half > 0, "no process was killed while it wrote");
    drop(writer(&folder));
    until("half files are removed", || half_files(home.path()) == 0);
}
