//! The control endpoint while the server loads a model, and while it sleeps.
//!
//! A test decides how long loading takes: it holds a lease on the model's file (`fcntl(2)`), so that
//! the server's `open` waits until the test releases the lease.
#![cfg(target_os = "linux")]

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_control::{HealthStatus, Mode, ModelState, RequestState, Reset, Stats};
use contextpilot_testbed::{Arch, Builder, Index, Model, ProjectorKind, Server, projector};
use tempfile::TempDir;

use crate::support::{COMPANION, Hooked, LAUNCHER, PATIENCE, READINESS, ask, until};

/// A copy of a model's file, for one test.
struct ModelFile {
    folder: TempDir,
}

impl ModelFile {
    fn new(arch: Arch) -> Self {
        Self::copy(Model::tiny(arch).path())
    }

    fn copy(of: &Path) -> Self {
        // In memory, if possible: an overlay file system, such as a container's root, may not support
        // leases.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            tempfile::tempdir_in(memory).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        let file = Self { folder };
        fs::copy(of, file.path()).unwrap();
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("slow.gguf")
    }

    /// An option of the server, with this file as its value.
    fn given_as(&self, option: &str) -> [OsString; 2] {
        [option.into(), self.path().into_os_string()]
    }

    /// Takes the lease. No process can open the file until the lease is dropped. Fails if the file is
    /// open.
    fn lease(&self) -> Lease {
        Lease::on(&self.path())
    }

    /// A server with two slots that loads this model.
    fn server(&self) -> Builder {
        Server::builder()
            .args(self.given_as("--model"))
            .bare_slots(2)
            .args(["-c", "2048"])
    }
}

/// See `fcntl(2)`, "Leases".
struct Lease {
    file: File,
    since: Instant,
}

/// How long a test may hold the lease. The kernel breaks it 45 seconds after another process wants it.
const LONGEST: Duration = Duration::from_secs(40);

impl Lease {
    fn on(path: &Path) -> Self {
        // A constant of Linux that the crate `libc` lacks.
        const F_SETSIG: i32 = 10;
        // A write lease needs the right to write to the file.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        let since = Instant::now();
        let lease = Self { file, since };
        // The kernel announces waiting processes by a signal. SIGURG is ignored; the default, SIGIO,
        // would end this process.
        lease.control(F_SETSIG, libc::SIGURG);
        lease.control(libc::F_SETLEASE, libc::F_WRLCK);
        lease
    }

    /// Whether a process waits for the lease.
    fn is_awaited(&self) -> bool {
        self.control(libc::F_GETLEASE, 0) != libc::F_WRLCK
    }

    /// Releases the lease: the waiting process goes on.
    fn give_back(self) {
        assert!(
            self.since.elapsed() < LONGEST,
            "it may have been taken away"
        );
    }

    fn control(&self, command: i32, argument: i32) -> i32 {
        // SAFETY: commands that take an integer and change no memory, on an open file.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), command, argument) };
        assert!(result >= 0, "{}", io::Error::last_os_error());
        result
    }
}

fn probe(hooked: &Hooked) -> (u16, HealthStatus) {
    let response = hooked.get(READINESS);
    let health: contextpilot_control::Health = serde_json::from_str(&response.text()).unwrap();
    (response.status, health.status)
}

#[test]
fn while_the_first_model_is_loaded_the_endpoint_answers() {
    let index = Index::start().unwrap();
    let file = ModelFile::new(Arch::Llama);
    let lease = file.lease();
    let mut hooked = Hooked::loading(file.server().index_url(index.url()));
    until("the server opens its model", || {
        lease.is_awaited().then_some(())
    });
    let stats = hooked.stats();
    assert_eq!(stats.model_state, ModelState::Loading);
    assert_eq!(stats.mode, Mode::Reporting);
    assert_eq!(stats.model.unwrap().name, "slow.gguf");
    assert_eq!(stats.process, hooked.server.pid());
    assert_eq!(stats.slots, []);
    assert_eq!((stats.tokens.resident, stats.requests.seen), (0, 0));
    assert!(stats.engine.version.is_some() && stats.engine.missing.is_empty());
    assert_eq!(probe(&hooked), (503, HealthStatus::Loading));
    assert!(matches!(
        hooked.request("req-1"),
        RequestState::Unknown { .. }
    ));
    let metrics = hooked.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(metrics.text().contains("contextpilot_llama_live_requests{"));
    let reset = hooked.exchange("POST", "/reset").text();
    assert_eq!(serde_json::from_str::<Reset>(&reset).unwrap().evicted, 0);
    for command in ["why", "where", "stats"] {
        let text = said(command, &hooked);
        let loading = "yet: llama-server has been loading its model slow.gguf for ";
        assert!(text.contains(loading), "{text}");
    }
    let mut events = hooked.events(None);
    // The hook has printed its line.
    assert!(hooked.server.stderr().contains("[ContextPilot] Active: "));

    lease.give_back();
    hooked.server.await_ready().unwrap();
    hooked.await_loaded();
    assert_eq!(probe(&hooked), (200, HealthStatus::Ok));
    hooked.complete(&ask(1, 60).id("req-1"));
    assert_eq!(events.change().sequence, 1);
    assert!(matches!(
        hooked.request("req-1"),
        RequestState::Cached { .. }
    ));
}

fn said(command: &str, hooked: &Hooked) -> String {
    let control = hooked.control.to_string();
    let output = Command::new(COMPANION)
        .args([command, "--control", &control])
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// Behind what the model needs, the file has nothing for some gigabytes, which take their time to be read.
#[test]
fn it_is_said_how_far_the_models_file_was_read_for_the_prefix_store() {
    const SIZE: u64 = 8 << 30;
    let file = ModelFile::new(Arch::Llama);
    let model = File::options().write(true).open(file.path()).unwrap();
    model.set_len(SIZE).unwrap();
    let store = tempfile::tempdir().unwrap();
    let server = file.server().args(["--load-mode", "none"]);
    let mut hooked = Hooked::loading(server.env("CONTEXTPILOT_STORE", store.path()));
    let store = |hooked: &Hooked| hooked.stats().store.unwrap();
    let reading = until("some of the file was read", || {
        let reading = store(&hooked).reading?;
        (reading.bytes_read > 0).then_some(reading)
    });
    // Those of the engine are read, too.
    assert!(reading.bytes >= SIZE, "{reading:?}");
    assert!(reading.bytes_read <= reading.bytes, "{reading:?}");
    let text = said("why", &hooked);
    let says = " of 8.0 GiB of the files of model and engine were read";
    assert!(store(&hooked).ready || text.contains(says), "{text}");
    hooked.server.await_ready().unwrap();
    hooked.await_loaded();
    until("all of it was read", || store(&hooked).ready.then_some(()));
    assert_eq!(store(&hooked).reading, None);
    let text = said("why", &hooked);
    assert_eq!(text, "No prompt was evaluated yet\n");
}

/// The model is loaded and another part, such as a projector, is not. The server does not answer yet,
/// and the state must be `loading`.
#[track_caller]
fn assert_loading_without(part: &ModelFile, option: &str, more: &[&str]) {
    let model = ModelFile::new(Arch::Llama);
    let first = model.lease();
    // With `--fit`, the server would open the part before it loads the model.
    let server = model.server().args(["--fit", "off"]);
    let server = server.args(more.iter().copied());
    let mut hooked = Hooked::loading(server.args(part.given_as(option)));
    until("the server opens the model", || {
        first.is_awaited().then_some(())
    });
    // Not before the model: the server reads some of these files early.
    let lease = part.lease();
    first.give_back();
    until("the server opens it", || lease.is_awaited().then_some(()));
    let stats = hooked.stats();
    assert_eq!(stats.model_state, ModelState::Loading);
    assert_eq!(probe(&hooked), (503, HealthStatus::Loading));
    lease.give_back();
    hooked.server.await_ready().unwrap();
    hooked.await_loaded();
}

#[test]
fn while_a_draft_model_is_loaded_the_state_is_loading() {
    let draft = ModelFile::new(Arch::Draft);
    assert_loading_without(&draft, "-md", &["--spec-type", "draft-simple"]);
}

#[test]
fn while_a_projector_is_loaded_the_state_is_loading() {
    let part = ModelFile::copy(&projector(ProjectorKind::Llava));
    assert_loading_without(&part, "--mmproj", &[]);
}

/// Only a request wakes the server. If it did not count as ready, it would get none.
#[test]
fn a_sleeping_server_is_ready() {
    let file = ModelFile::new(Arch::Llama);
    let hooked = Hooked::observing(&file.server().args(["--sleep-idle-seconds", "1"]));
    hooked.complete(&ask(1, 60).id("req-1"));
    let asleep = |stats: Stats| (stats.model_state == ModelState::Asleep).then_some(stats);
    let stats = until("it sleeps", || asleep(hooked.stats()));
    assert_eq!(stats.tokens.resident, 0);
    assert_eq!(probe(&hooked), (200, HealthStatus::Ok));
    // The server has closed the model's file. If it had not, taking the lease would fail.
    let lease = file.lease();
    thread::scope(|scope| {
        let waking = scope.spawn(|| hooked.complete(&ask(2, 60).id("req-2")));
        until("it loads its model again", || {
            lease.is_awaited().then_some(())
        });
        assert!(asleep(hooked.stats()).is_some());
        assert_eq!(probe(&hooked), (200, HealthStatus::Ok));
        lease.give_back();
        waking.join().unwrap();
    });
    assert_eq!(hooked.settled(2).requests.finished, 2);
}

#[test]
fn if_the_model_cannot_be_loaded_the_server_ends_as_without_the_hook() {
    let index = Index::start().unwrap();
    let file = ModelFile::new(Arch::Llama);
    fs::write(file.path(), b"no model at all").unwrap();
    let mut plain = file.server().start().unwrap();
    let expected = plain.wait(PATIENCE).unwrap();
    assert!(!expected.success());
    let hooked = file.server().launcher(LAUNCHER).index_url(index.url());
    let mut hooked = hooked.start().unwrap();
    assert_eq!(hooked.wait(PATIENCE).unwrap(), expected);
    let said = hooked.stderr();
    assert!(said.contains("[ContextPilot] Active: "), "{said}");
    assert_eq!(index.posts().len(), 0);
}
