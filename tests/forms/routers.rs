//! llama-server in router mode: it starts a child process for each model.

use std::fs::{self, Permissions};
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Arch, Builder, Index, Model, Request, Server};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{PATIENCE, hooked};
use crate::{assert_told, lines};

/// A folder with the models `one` and `two`, and a folder for the journals.
struct Models {
    models: TempDir,
    state: TempDir,
}

impl Models {
    fn new() -> Self {
        let models = tempfile::tempdir().unwrap();
        for name in ["one.gguf", "two.gguf"] {
            fs::copy(Model::tiny(Arch::Llama).path(), models.path().join(name)).unwrap();
        }
        Self {
            models,
            // Private, whatever the umask of this process is.
            state: tempfile::Builder::new()
                .permissions(Permissions::from_mode(0o700))
                .tempdir()
                .unwrap(),
        }
    }

    fn router(&self, more: &[&str]) -> Builder {
        Server::builder()
            .args(["--models-dir"])
            .args([self.models.path()])
            .args(more.iter().copied())
            .bare_slots(2)
            .env("XDG_STATE_HOME", self.state.path())
    }

    fn journals(&self) -> Vec<Vec<u8>> {
        let folder = fs::read_dir(self.state.path().join("contextpilot-llama"));
        let files = folder
            .into_iter()
            .flatten()
            .map(|file| file.unwrap().path());
        files
            .map(|file| fs::read(file).unwrap_or_default())
            .collect()
    }

    /// Waits until the ids are on disk, where the next start looks for them.
    fn wait_for_journal(&self, ids: &[&str]) {
        wait_for("the ids are in a journal", || {
            let journals = self.journals();
            let holds = |id: &&str| {
                let mut all = journals.iter();
                all.any(|file| file.windows(id.len()).any(|part| part == id.as_bytes()))
            };
            ids.iter().all(holds)
        });
    }
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        sleep(Duration::from_millis(5));
    }
}

fn request(model: &str, slot: u32, id: &str) -> Request {
    let prompt = format!("{id} is how this prompt begins, which no other one does");
    Request::completion(prompt).slot(slot).with("model", model)
}

fn ask(server: &Server, model: &str, slot: u32, id: &str) {
    server.complete(&request(model, slot, id).id(id)).unwrap();
}

/// The prompt of this id must be cached in this slot. Sending it again changes nothing.
#[track_caller]
fn assert_cached(server: &Server, model: &str, slot: u32, id: &str) {
    let answer = server
        .complete(&request(model, slot, id).predict(1))
        .unwrap();
    assert_eq!(answer.cache_n + 1, answer.prompt_tokens, "{id}");
}

/// The router's status for a model: `loaded`, `unloaded` and so on.
fn status(server: &Server, model: &str) -> String {
    let models = server.get("/models").unwrap().json().unwrap();
    let models = models["data"].as_array().unwrap();
    let model = models.iter().find(|one| one["id"] == model).unwrap();
    model["status"]["value"].as_str().unwrap().to_owned()
}

/// How many threads of the hook run in a process.
fn threads(process: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.contains("contextpilot")).count()
}

/// The process number of the router's child for a model.
fn child(server: &Server, model: &str) -> u32 {
    let parent = format!("PPid:\t{}\n", server.pid());
    let is_child = |process: &Path| {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let words = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        status.contains(&parent) && words.contains(&format!("\0--alias\0{model}\0"))
    };
    let mut processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let process: u32 = path.file_name()?.to_str()?.parse().ok()?;
        is_child(&path).then_some(process)
    });
    processes.next().unwrap()
}

#[test]
fn each_child_reports_for_itself_and_the_parent_reports_nothing() {
    let index = Index::start().unwrap();
    let models = Models::new();
    let mut server = hooked(&models.router(&[]), &index);
    for (a, b, c, model) in [
        ("one-a", "one-b", "one-c", "one"),
        ("two-a", "two-b", "two-c", "two"),
    ] {
        ask(&server, model, 0, a);
        ask(&server, model, 1, b);
        ask(&server, model, 0, c);
    }
    assert_told(&server, &index, &["one-a", "two-a"]);
    for (b, c, model) in [("one-b", "one-c", "one"), ("two-b", "two-c", "two")] {
        assert_cached(&server, model, 1, b);
        assert_cached(&server, model, 0, c);
        assert!(threads(child(&server, model)) > 0);
    }
    // The hook prints nothing in the router itself. So there is one line by the launcher, and one by
    // each child. The router prefixes its children's lines with a number.
    assert_eq!(threads(server.pid()), 0);
    wait_for("three lines are said", || lines(&server).len() > 2);
    let said = lines(&server);
    let (childrens, own): (Vec<_>, Vec<_>) = said
        .iter()
        .partition(|line| !line.starts_with("[ContextPilot]"));
    assert_eq!((own.len(), childrens.len()), (1, 2), "{said:?}");
    assert!(own[0].contains("Launching"), "{own:?}");
    assert!(
        childrens.iter().all(|line| line.contains("Active: ")),
        "{childrens:?}"
    );
    assert_eq!(models.journals().len(), 2, "each has a journal of its own");

    // A child that is stopped reports its live ids as evicted.
    let stopped = server
        .post("/models/unload", &json!({"model": "one"}))
        .unwrap();
    assert_eq!(stopped.status, 200, "{}", stopped.text());
    assert_told(&server, &index, &["one-a", "two-a", "one-b", "one-c"]);
    assert_cached(&server, "two", 0, "two-c");
    assert!(server.stop(libc::SIGTERM).unwrap().success());
    let all = ["one-a", "two-a", "one-b", "one-c", "two-b", "two-c"];
    assert_told(&server, &index, &all);
    assert_eq!(lines(&server).len(), 3, "{:?}", lines(&server));
}

/// The lines of all children about KV cache events.
fn published(server: &Server) -> Vec<String> {
    let said = lines(server).into_iter();
    said.filter(|line| line.contains("KV cache events: "))
        .collect()
}

#[test]
fn children_that_would_share_an_address_publish_nothing_and_say_so() {
    let models = Models::new();
    let index = Index::start().unwrap();
    let router = models.router(&[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", taken.local_addr().unwrap());
    // The port is in use. That does not matter, because no child tries to listen there.
    let server = hooked(&router.env("CONTEXTPILOT_KV_EVENTS", address), &index);
    for model in ["one", "two"] {
        ask(&server, model, 0, model);
    }
    wait_for("both say so", || published(&server).len() == 2);
    for (line, model) in published(&server).iter().zip(["one", "two"]) {
        let remedy = format!("CONTEXTPILOT_KV_EVENTS={model}=tcp://");
        assert!(line.contains("not published in router mode"), "{line}");
        assert!(line.contains(&remedy), "{line}");
    }
}

#[test]
fn each_child_publishes_at_the_address_of_its_model() {
    let models = Models::new();
    let index = Index::start().unwrap();
    let addresses = "two=tcp://127.0.0.1:0,other=tcp://127.0.0.1:0";
    let router = models.router(&[]).env("CONTEXTPILOT_KV_EVENTS", addresses);
    let server = hooked(&router, &index);
    for model in ["one", "two"] {
        ask(&server, model, 0, model);
    }
    wait_for("both say something", || published(&server).len() == 2);
    let said = published(&server);
    assert!(said[0].contains("not published for one"), "{said:?}");
    let address = said[1].split("tcp://").nth(1).unwrap();
    let address = address.split(',').next().unwrap();
    // The greeting of ZeroMQ.
    let mut greeting = [0; 10];
    let mut stream = TcpStream::connect(address).unwrap();
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!((greeting[0], greeting[9]), (0xff, 0x7f));
}

#[test]
fn a_child_that_makes_room_for_another_reports_all_its_ids_as_evicted() {
    let index = Index::start().unwrap();
    let models = Models::new();
    let server = hooked(&models.router(&["--models-max", "1"]), &index);
    ask(&server, "one", 0, "one-a");
    ask(&server, "two", 0, "two-a");
    assert_told(&server, &index, &["one-a"]);
    assert_cached(&server, "two", 0, "two-a");
}

/// The next child for the same model reports the ids of the killed one. The other child is not
/// affected.
#[test]
fn after_a_child_is_killed_the_next_reports_its_ids() {
    let index = Index::start().unwrap();
    let models = Models::new();
    let server = hooked(&models.router(&[]), &index);
    ask(&server, "one", 0, "one-a");
    ask(&server, "two", 0, "two-a");
    models.wait_for_journal(&["one-a", "two-a"]);
    let killed = i32::try_from(child(&server, "one")).unwrap();
    // SAFETY: the process is a child of the server that this test started, and still runs.
    assert_eq!(unsafe { libc::kill(killed, libc::SIGKILL) }, 0);
    wait_for("the router has noticed", || {
        status(&server, "one") != "loaded"
    });
    ask(&server, "one", 0, "one-b");
    assert_told(&server, &index, &["one-a"]);
    assert_cached(&server, "one", 0, "one-b");
    assert_cached(&server, "two", 0, "two-a");
}
