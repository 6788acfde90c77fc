//! The prefix store (`CONTEXTPILOT_STORE`) under a real llama-server: what was evaluated once is loaded, the
//! server does not notice, and damage costs time only.
#![cfg(target_os = "linux")]

mod aside;
mod budget;
mod clock;
mod contexts;
mod damage;
mod exact;
mod fair;
mod faults;
mod finite;
mod hidden;
mod hints;
mod index_held;
mod indexed;
mod kept;
mod matching;
mod media;
mod moved;
mod neighbours;
mod overwritten;
#[path = "../support/media.rs"]
mod pictures;
mod random;
mod refusals;
mod remote;
mod restart;
mod reuse;
mod salts;
mod secrets;
#[path = "../support/sound.rs"]
mod sound;
mod stale;
#[path = "../support/store.rs"]
mod store;
mod straight;

use std::path::{Path, PathBuf};

use contextpilot_client::Control;
use contextpilot_control::{Evaluated, Evaluation, PrefixStore};
use contextpilot_testbed::{
    Arch, Builder, Completion, Model, Random, Request, Server, await_written, chunk_files, until,
};
use serde_json::Value;
use store::await_store;
use tempfile::TempDir;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A server with a store, and its control endpoint.
struct Stored {
    server: Server,
    control: Control,
    folder: PathBuf,
    next: u32,
}

/// A folder for a store, which may be used by several servers in turn.
fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// One slot of 4,096 tokens, and no host prompt cache.
fn one_slot() -> Builder {
    Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(1)
        .args(["-c", "4096"])
}

impl Stored {
    fn start(builder: &Builder, folder: &Path) -> Self {
        Self::start_within(builder, folder, "1")
    }

    /// With a budget of so many 10⁹ bytes.
    fn start_within(builder: &Builder, folder: &Path, budget: &str) -> Self {
        let stored = Self::start_unready(builder, folder, budget);
        await_store(&stored.control);
        stored
    }

    /// The same, when the server answers: its store may not be in use yet.
    fn start_unready(builder: &Builder, folder: &Path, budget: &str) -> Self {
        let mut server = builder
            .clone()
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .env("CONTEXTPILOT_STORE", folder)
            .env("CONTEXTPILOT_STORE_GB", budget)
            .observed()
            .start()
            .unwrap();
        let control = server.await_control().unwrap();
        server.await_ready().unwrap();
        Self {
            server,
            control: Control::new(&control.to_string()).unwrap(),
            folder: folder.to_owned(),
            next: 0,
        }
    }

    /// Evaluates a prompt of these tokens, and returns the answer and the prompt's account.
    fn ask(&mut self, prompt: &[u32]) -> (Completion, Evaluation) {
        self.send(asking(prompt))
    }

    /// As [`Self::ask`], of a slot.
    fn ask_slot(&mut self, slot: u32, prompt: &[u32]) -> (Completion, Evaluation) {
        self.send(asking(prompt).slot(slot))
    }

    fn send(&mut self, request: Request) -> (Completion, Evaluation) {
        self.next += 1;
        let id = format!("req-{}", self.next);
        let request = request.id(&*id);
        let answer = self.server.complete(&request).unwrap();
        let account = until("the request's account", || {
            let latest = self.control.latest(1).unwrap();
            let named = |one: &Evaluated| one.id.as_deref() == Some(&*id);
            latest.requests.into_iter().find(named)
        });
        (answer, account.evaluation)
    }

    /// As [`Self::ask`]. A server without a store must say the same, of its cache too.
    #[track_caller]
    fn ask_as(&mut self, plain: &Server, prompt: &[u32]) -> Evaluation {
        let ([ours, theirs], account) = self.compare(plain, prompt);
        assert_eq!(
            (ours.cache_n, ours.prompt_n),
            (theirs.cache_n, theirs.prompt_n)
        );
        account
    }

    /// As [`Self::ask`]. A server without a store, which may have been asked something else before, must say the
    /// same.
    #[track_caller]
    fn compare(&mut self, plain: &Server, prompt: &[u32]) -> ([Completion; 2], Evaluation) {
        let (ours, account) = self.ask(prompt);
        let theirs = plain.complete(&asking(prompt)).unwrap();
        assert_eq!(ours.content, theirs.content, "{account:?}");
        ([ours, theirs], account)
    }

    fn figures(&self) -> PrefixStore {
        self.control.stats().unwrap().store.unwrap()
    }

    /// Waits until what the server has stored is on disk.
    #[track_caller]
    fn await_written(&self) {
        await_written(&self.folder, || self.figures().chunks);
    }

    /// Ends the server once what it has stored is on disk: at its end it waits two seconds for its files, which is not
    /// long on a busy machine.
    #[track_caller]
    fn end(&mut self) {
        self.await_written();
        self.server.stop(SIGTERM).unwrap();
    }
}

fn asking(prompt: &[u32]) -> Request {
    Request::completion(Value::from(prompt))
        .predict(4)
        .with("n_probs", 1)
}

/// Tokens that mean nothing. Different seeds give unrelated tokens.
fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| 300 + random.below(50) as u32).collect()
}

/// A server without us.
fn started(builder: &Builder) -> Server {
    let mut server = builder.clone().start().unwrap();
    server.await_ready().unwrap();
    server
}
