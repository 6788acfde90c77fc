//! Servers that are ended and started again with the same state folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use contextpilot_testbed::{Builder, Completion, Index, Request, Server, private_folder};
use tempfile::TempDir;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How often a long test does its work: this variable, or so many times.
pub(crate) fn times(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |times| times.parse().expect("a number"))
}

/// A state folder that outlives the servers.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(private_folder())
    }

    /// A server with this many slots, and no host prompt cache.
    pub(crate) fn server(&self, index: &Index, slots: u32) -> Builder {
        Server::tiny()
            .bare_slots(slots)
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .index_url(index.url())
            .observed()
            .env("XDG_STATE_HOME", self.0.path())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.0.path().join("contextpilot-llama")
    }

    /// All files in the state folder: the journals and others.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.folder()) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Whether one of these files contains the id.
    pub(crate) fn hold(&self, id: &str) -> bool {
        self.files().iter().any(|path| {
            let content = std::fs::read(path).unwrap_or_default();
            content.windows(id.len()).any(|part| part == id.as_bytes())
        })
    }

    /// The path of the journal. There must be exactly one.
    pub(crate) fn journal(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }
}

/// Waits until a journal contains the id. On an idle machine that is before the request is answered.
/// On a busy machine it can be later, because the answer does not wait for the worker.
pub(crate) fn wait_until_kept(home: &Home, id: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !home.hold(id) {
        assert!(Instant::now() < deadline, "{id} is not kept");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn kill_when_kept(home: &Home, mut server: Server, id: &str) {
    wait_until_kept(home, id);
    server.stop(libc::SIGKILL).unwrap();
}

/// Sends a prompt that no other id has to this slot.
pub(crate) fn ask(server: &Server, slot: u32, id: &str) -> Completion {
    let prompt = format!("{id} is how this prompt begins, which no other one does");
    let request = Request::completion(prompt).id(id).slot(slot).predict(2);
    server.complete(&request).unwrap()
}

/// Whether the prompt of this id is still cached in this slot. Sending it again changes no other slot.
pub(crate) fn is_cached(server: &Server, slot: u32, id: &str) -> bool {
    let prompt = format!("{id} is how this prompt begins, which no other one does");
    let request = Request::completion(prompt).slot(slot).predict(1);
    let answer = server.complete(&request).unwrap();
    answer.cache_n + 1 == answer.prompt_tokens
}

pub(crate) fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// The lines of launcher and hook on stderr, without those that every start prints.
pub(crate) fn lines(server: &Server) -> Vec<String> {
    let said = server.stderr();
    let ours = said.lines().filter(|line| line.contains("[ContextPilot]"));
    let usual = ["Launching", "Active", "Control endpoint"];
    let usual = usual.map(|start| format!("[ContextPilot] {start}"));
    ours.filter(|line| !usual.iter().any(|start| line.starts_with(start)))
        .map(str::to_owned)
        .collect()
}

/// After this, these servers report nothing of what has happened so far.
fn come_to_rest(servers: &[&Server]) {
    for server in servers {
        server.come_to_rest().unwrap();
    }
}

/// Exactly these ids must be reported to the index, each of them once. `servers`: those that run.
pub(crate) fn assert_told(index: &Index, servers: &[&Server], expected: &[&str]) {
    index.wait_until(|evicted| evicted.len() >= expected.len(), PATIENCE);
    come_to_rest(servers);
    let mut reports = index.reports();
    reports.sort();
    let mut expected: Vec<String> = expected.iter().map(|id| (*id).to_owned()).collect();
    expected.sort();
    assert_eq!(reports, expected);
}

/// Exactly these ids must be reported to the index, each at least once. If a server ended during a
/// report, the next one cannot know what arrived, and reports again.
pub(crate) fn assert_told_at_least_once(index: &Index, servers: &[&Server], expected: &[&str]) {
    index.wait_until(|evicted| evicted.len() >= expected.len(), PATIENCE);
    come_to_rest(servers);
    assert_eq!(index.evicted(), ids(expected));
}
