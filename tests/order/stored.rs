//! The index in front of a server with a prefix store (`CONTEXTPILOT_STORE`): prompts that have left the engine are
//! continued, and the forecast counts what is loaded.

use std::path::{Path, PathBuf};
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_client::control::{Evaluation, Like, RequestState};
use contextpilot_testbed::{Arch, Builder, Model, Server, await_written};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::store::await_store;
use crate::support::{Index, companion, control, until, watched};
use crate::{ELM, ICE, OWL, SEA, TEA, two_slots};

/// A server with two slots and a store, and the index in front of it.
struct Stored {
    builder: Builder,
    server: Server,
    control: Control,
    index: Index,
    sent: Vec<String>,
    folder: TempDir,
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

impl Stored {
    fn start() -> Self {
        Self::start_as(two_slots())
    }

    fn start_as(builder: Builder) -> Self {
        Self::start_within(builder, "1")
    }

    /// With a budget of so many 10⁹ bytes.
    fn start_within(builder: Builder, budget: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let builder = builder.env("CONTEXTPILOT_STORE", folder.path().join("store"));
        let builder = builder.env("CONTEXTPILOT_STORE_GB", budget);
        let server = watched(&builder, &socket(folder.path()));
        let control = control(&socket(folder.path()));
        await_store(&control);
        let index = Index::told(server.address(), &socket(folder.path()));
        Self {
            builder,
            server,
            control,
            index,
            sent: Vec::new(),
            folder,
        }
    }

    /// Another process of the server, on the same store.
    fn restart(&mut self) {
        let port = self.server.address().port().to_string();
        self.server.stop(15).unwrap();
        self.index.wait_truth("own guess");
        let again = self.builder.clone().args(["--port".to_owned(), port]);
        self.server = watched(&again, &socket(self.folder.path()));
        await_store(&self.control);
        self.index.wait_truth("engine");
        self.sent.clear();
    }

    /// Orders a context and sends its prompt. Returns the index's answer, and the account of the prompt.
    fn ask(&mut self, context: &[&str]) -> (Value, Evaluation) {
        let (answer, id, prompt) = self.index.order(context);
        let account = self.send(&id, &prompt);
        self.index.agrees(&self.control, &self.sent);
        (answer, account)
    }

    fn send(&mut self, id: &str, prompt: &str) -> Evaluation {
        self.index.complete(prompt, id);
        self.sent.push(id.to_owned());
        until("the request's account", || {
            let state = self.control.request(id).unwrap();
            state.evaluation().cloned()
        })
    }

    /// Keeps these documents, in this order, for an hour. Without `ttl` they are sent as any others.
    fn keep(&mut self, context: &[&str], ttl: Option<&str>) -> String {
        let order = json!({"contexts": [context], "order": "none"});
        let answer = self.index.post("/reorder", &order).json().unwrap();
        let id = answer["request_ids"][0].as_str().unwrap().to_owned();
        let prompt = format!("{}\nWhat of it?", context.join("\n"));
        let mut body = json!({"prompt": prompt, "n_predict": 4, "temperature": 0, "rid": id});
        if let Some(ttl) = ttl {
            body["cache_control"] = json!({"type": "ephemeral", "ttl": ttl});
        }
        let answer = self.index.post("/completion", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.sent.push(id.clone());
        self.index.agrees(&self.control, &self.sent);
        id
    }

    /// Other prompts take both slots.
    fn overwrite(&mut self) {
        let before = self.sent.clone();
        for text in ["1 2 3 4 5 6 7 8 9", "A B C D E F G H I"] {
            self.ask(&[text]);
        }
        until("both slots have other prompts", || {
            let evicted = |id: &String| {
                let state = self.control.request(id).unwrap();
                matches!(state, RequestState::Evicted { .. })
            };
            before.iter().all(evicted).then_some(())
        });
    }

    /// Removes everything from the store, and waits until the server has seen it.
    fn clear(&self) {
        let folder = self.folder.path().join("store");
        // What is written only afterwards would stay.
        let store = || self.control.stats().unwrap().store.unwrap();
        await_written(&folder, || store().chunks);
        let mut clear = companion(&["store", "clear", "--folder"]);
        clear.arg(folder);
        let output = clear.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let like = Like {
            id: self.sent[0].clone(),
            common: 100,
            tokens: 200,
        };
        until("the server has seen that the store is empty", || {
            let found = self.control.matching_like(&like, Duration::from_secs(10));
            (found.unwrap().stored == Some(0)).then_some(())
        });
    }
}

fn first(answer: &Value, name: &str) -> u64 {
    answer[name][0]
        .as_u64()
        .unwrap_or_else(|| panic!("{name}: {answer}"))
}

/// The template and the question around the documents, and where documents begin alike.
const NEAR: u64 = 16;

#[test]
fn a_prompt_that_left_the_engine_is_continued_and_loaded_as_foreseen() {
    let mut stored = Stored::start();
    let (_, account) = stored.ask(&[TEA, SEA, OWL]);
    let whole = account.prompt_tokens;
    stored.overwrite();
    assert_eq!(stored.index.get("/stats")["stored_requests"], 1);
    for (round, context) in [
        &[ELM, OWL, TEA, SEA][..],
        &[OWL, SEA, TEA, ICE],
        &[SEA, ICE, ELM, OWL, TEA],
    ]
    .into_iter()
    .enumerate()
    {
        let (answer, account) = stored.ask(context);
        let ordered = answer["reordered_contexts"][0].as_array().unwrap();
        assert_eq!(ordered[..3], [TEA, SEA, OWL].map(Value::from), "{answer}");
        let (expected, loaded) = (
            first(&answer, "expected_cached_tokens"),
            first(&answer, "expected_stored_tokens"),
        );
        assert!(
            expected.abs_diff(account.reused) <= NEAR,
            "{expected} tokens were foreseen: {account:?}"
        );
        assert!(
            loaded.abs_diff(account.from.store) <= NEAR,
            "{loaded} tokens were to be loaded: {account:?}"
        );
        assert!(account.from.store + NEAR > whole / 2, "{account:?}");
        stored.overwrite();
        let prediction = until("the forecast is compared with the account", || {
            let prediction = stored.index.get("/stats")["prediction"].clone();
            let sent = stored.sent.len() as u64;
            (prediction["requests"] == sent).then_some(prediction)
        });
        let error = prediction["error_tokens_p99"].as_u64().unwrap();
        assert!(error <= NEAR, "round {round}: {prediction}");
    }
    // In a batch, too.
    let contexts = json!({"contexts": [[ICE, ELM], [OWL, TEA, SEA]]});
    let answer = stored.index.post("/reorder", &contexts).json().unwrap();
    assert_eq!(answer["original_indices"], json!([1, 0]), "{answer}");
    let ordered = answer["reordered_contexts"][0].as_array().unwrap();
    assert_eq!(ordered[..], [TEA, SEA, OWL].map(Value::from), "{answer}");
    let expected = answer["expected_stored_tokens"][1].as_u64().unwrap();
    let id = answer["request_ids"][1].as_str().unwrap();
    let prompt = format!("{}\nWhat of it?", [TEA, SEA, OWL].join("\n"));
    let account = stored.send(id, &prompt);
    assert!(
        expected.abs_diff(account.from.store) <= NEAR,
        "{expected} {account:?}"
    );
}

/// Both what the earlier process had evicted and what it had at its end.
#[test]
fn after_a_restart_contexts_continue_what_the_earlier_process_stored() {
    let mut stored = Stored::start();
    let (evicted, _) = stored.ask(&[TEA, SEA, OWL]);
    stored.overwrite();
    let (held, _) = stored.ask(&[ICE, ELM, SEA]);
    stored.restart();
    assert_eq!(stored.index.get("/requests")["num_requests"], 0);
    for (context, before) in [([OWL, SEA, TEA], evicted), ([SEA, ELM, ICE], held)] {
        let (answer, account) = stored.ask(&context);
        let ordered = &answer["reordered_contexts"];
        assert_eq!(ordered, &before["reordered_contexts"], "{answer}");
        assert_ne!(ordered, &json!([context]), "it is not the given order");
        assert_eq!(answer["expected_stored_tokens"], json!([0]), "{answer}");
        assert!(
            account.from.store + NEAR > account.prompt_tokens / 2,
            "{account:?}"
        );
    }
    // What the new process has had itself is known again.
    stored.overwrite();
    let (answer, account) = stored.ask(&[OWL, SEA, TEA]);
    let loaded = first(&answer, "expected_stored_tokens");
    assert!(
        loaded > 0 && loaded.abs_diff(account.from.store) <= NEAR,
        "{answer} {account:?}"
    );
}

#[test]
fn what_left_the_store_too_does_not_count() {
    let mut stored = Stored::start();
    stored.ask(&[TEA, SEA, OWL]);
    stored.overwrite();
    stored.clear();
    let (answer, account) = stored.ask(&[ELM, OWL, TEA, SEA]);
    assert_eq!(answer["expected_from"], json!([null]), "{answer}");
    assert_eq!(answer["expected_stored_tokens"], json!([0]), "{answer}");
    let expected = first(&answer, "expected_cached_tokens");
    assert!(
        expected.abs_diff(account.reused) <= NEAR,
        "{answer} {account:?}"
    );
    // Without any store there is nothing to keep.
    stored.server.stop(15).unwrap();
    stored.index.wait_truth("own guess");
    let again = two_slots().args([
        "--port".to_owned(),
        stored.server.address().port().to_string(),
    ]);
    stored.server = watched(&again, &socket(stored.folder.path()));
    stored.index.wait_truth("engine");
    stored.sent.clear();
    stored.ask(&[TEA, SEA]);
    stored.overwrite();
    let (answer, account) = stored.ask(&[SEA, TEA]);
    assert!(first(&answer, "expected_cached_tokens") <= NEAR, "{answer}");
    assert!(account.reused <= NEAR, "{account:?}");
    let stats = stored.index.get("/stats");
    assert_eq!(stats["stored_requests"], Value::Null, "{stats}");
}

/// Of two equal prefixes, the one that is kept comes first. When others have left the store, it is there.
#[test]
fn what_a_client_keeps_comes_first_among_equals_and_is_there_when_others_have_left() {
    // Some prompts of 200 tokens, a quarter of which may be kept.
    let mut stored = Stored::start_within(two_slots(), "0.0024");
    let kept = stored.keep(&[SEA, TEA], Some("1h"));
    stored.keep(&[TEA, SEA], None);
    stored.keep(&[ELM, OWL], None);
    stored.overwrite();
    until("the index knows what is kept", || {
        (stored.index.get("/stats")["kept_requests"] == 1).then_some(())
    });
    let (answer, account) = stored.ask(&[ICE, TEA, SEA]);
    let ordered = answer["reordered_contexts"][0].as_array().unwrap();
    assert_eq!(ordered[..2], [SEA, TEA].map(Value::from), "{answer}");
    assert_eq!(answer["expected_from"], json!([kept]), "{answer}");
    assert!(account.from.store > 100, "{account:?}");
    // Others than fit.
    for nth in 0..30 {
        stored.ask(&[&format!("{nth} {}", ICE.repeat(3))]);
    }
    let (answer, account) = stored.ask(&[OWL, ELM]);
    assert!(account.from.store <= NEAR, "it has left: {account:?}");
    assert!(first(&answer, "expected_stored_tokens") <= NEAR, "{answer}");
    let (answer, account) = stored.ask(&[OWL, TEA, SEA]);
    let ordered = answer["reordered_contexts"][0].as_array().unwrap();
    assert_eq!(ordered[..2], [SEA, TEA].map(Value::from), "{answer}");
    let loaded = first(&answer, "expected_stored_tokens");
    assert!(
        loaded > 100 && loaded.abs_diff(account.from.store) <= NEAR,
        "{answer} {account:?}"
    );
    assert_eq!(stored.index.get("/stats")["kept_requests"], 1);
}

/// There a common beginning is loaded up to a state that happens to lie in it: the index counts nothing of that.
#[test]
fn of_a_model_that_cannot_go_back_nothing_is_expected_from_the_store() {
    let builder = Server::builder().model(&Model::tiny(Arch::Gemma2));
    let mut stored = Stored::start_as(builder.bare_slots(2).args(["-c", "8192"]));
    let long = TEA.repeat(20);
    stored.ask(&[&long]);
    stored.overwrite();
    let (answer, account) = stored.ask(&[&long]);
    assert!(account.from.store > 500, "{account:?}");
    assert_eq!(answer["expected_cached_tokens"], json!([0]), "{answer}");
    assert_eq!(answer["expected_stored_tokens"], Value::Null, "{answer}");
}
