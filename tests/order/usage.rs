//! The usage in answers after loads from a prefix store: what was not evaluated counts as cached, in all three APIs.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use contextpilot_client::Control;
use contextpilot_client::control::Evaluation;
use contextpilot_testbed::{Arch, Builder, KillOnDrop, Model, Response, Server};
use serde_json::{Value, json};

use crate::store::await_store;
use crate::support::{Index, companion, control, exchange, until, watched};
use crate::{ELM, ICE, OWL, SEA, TEA};

/// One slot, which each conversation takes from the one before.
pub(crate) fn one_slot(folder: &Path) -> Builder {
    let builder = Server::tiny();
    let builder = builder.bare_slots(1).args(["-c", "16384"]);
    builder
        .env("CONTEXTPILOT_STORE", folder.join("store"))
        .env("CONTEXTPILOT_STORE_GB", "1")
}

pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

#[derive(Clone, Copy, Debug)]
enum Api {
    Chat,
    Responses,
    Messages,
}

/// A conversation through one API, streamed or not.
#[derive(Debug)]
struct Chat {
    api: Api,
    is_streamed: bool,
    messages: Vec<Value>,
}

impl Chat {
    fn all() -> Vec<Self> {
        let apis = [Api::Chat, Api::Responses, Api::Messages];
        let both = apis.map(|api| [(api, false), (api, true)]).concat();
        let chats = both.into_iter().enumerate();
        let begins = |(at, (api, is_streamed))| Self {
            api,
            is_streamed,
            messages: vec![json!({"role": "user", "content": format!("{at} {TEA} {SEA} {OWL}")})],
        };
        chats.map(begins).collect()
    }

    fn path(&self) -> &'static str {
        match self.api {
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
        }
    }

    fn body(&self, id: &str) -> Value {
        let (most, prompt) = match self.api {
            Api::Responses => ("max_output_tokens", "input"),
            _ => ("max_tokens", "messages"),
        };
        let mut body =
            json!({"model": "any", "temperature": 0, "stream": self.is_streamed, "rid": id});
        body[most] = 4.into();
        body[prompt] = self.messages.clone().into();
        if let Api::Chat = self.api {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }

    /// Sends the conversation as it is now. Returns all JSON texts of the answer.
    fn send(&self, proxy: SocketAddr, id: &str) -> Vec<Value> {
        let body = self.body(id).to_string();
        self.texts(exchange(proxy, "POST", self.path(), body.as_bytes()))
    }

    fn texts(&self, answer: Response) -> Vec<Value> {
        assert_eq!(answer.status, 200, "{self:?}: {}", answer.text());
        if !self.is_streamed {
            return vec![answer.json().unwrap()];
        }
        let text = answer.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    fn grows(&mut self, turn: usize) {
        let next = [ELM, ICE][turn % 2];
        let answer = match self.api {
            // An assistant's item must say what it is.
            Api::Responses => {
                let said = json!([{"type": "output_text", "text": "Well."}]);
                json!({"type": "message", "role": "assistant", "status": "completed", "content": said})
            }
            _ => json!({"role": "assistant", "content": "Well."}),
        };
        self.messages.push(answer);
        self.messages
            .push(json!({"role": "user", "content": format!("{turn} {next}")}));
    }
}

/// Cached and other tokens of the prompt, by each of the figures in an answer.
fn figures(answer: &[Value]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let places = answer
        .iter()
        .flat_map(|one| [one, &one["response"], &one["message"]]);
    for place in places {
        let (usage, timings) = (&place["usage"], &place["timings"]);
        let number = |value: &Value| value.as_u64();
        let openai = |prompt: &str, details: &str| {
            let cached = number(&usage[details]["cached_tokens"])?;
            Some((cached, number(&usage[prompt])? - cached))
        };
        found.extend(openai("prompt_tokens", "prompt_tokens_details"));
        found.extend(openai("input_tokens", "input_tokens_details"));
        let read = number(&usage["cache_read_input_tokens"]);
        found.extend(read.zip(number(&usage["input_tokens"])));
        let cached = number(&timings["cache_n"]);
        found.extend(cached.zip(number(&timings["prompt_n"])));
        if let Some((prompt, milliseconds)) =
            number(&timings["prompt_n"]).zip(timings["prompt_ms"].as_f64())
        {
            let rate = timings["prompt_per_second"].as_f64().unwrap();
            let right = 1e3 * prompt as f64 / milliseconds;
            assert!((rate - right).abs() <= right * 1e-6, "{timings}");
        }
    }
    found
}

/// Each figure in an answer must be what the account says. `whose` is shown if one is not.
fn assert_right(answer: &[Value], account: &Evaluation, whose: impl Debug) {
    let (found, right) = (figures(answer), (account.reused, account.evaluated));
    assert!(
        !found.is_empty() && found.iter().all(|figures| *figures == right),
        "{whose:?}: {found:?} {account:?} {answer:?}"
    );
}

/// The server ends, and another one with its store begins at its address.
pub(crate) fn restarted(
    mut server: Server,
    builder: &Builder,
    socket: &Path,
    index: &Index,
) -> Server {
    let port = server.address().port().to_string();
    server.stop(15).unwrap();
    index.wait_truth("own guess");
    let server = watched(&builder.clone().args(["--port".to_owned(), port]), socket);
    await_store(&control(socket));
    index.wait_truth("engine");
    server
}

pub(crate) fn account(control: &Control, id: &str) -> Evaluation {
    until("the request's account", || {
        control.request(id).unwrap().evaluation().cloned()
    })
}

/// The gateway in front of a server. It ends when this value is dropped.
pub(crate) struct Gateway {
    _process: KillOnDrop,
    pub(crate) address: SocketAddr,
}

impl Gateway {
    pub(crate) fn start(server: SocketAddr, arguments: &[&str]) -> Self {
        let url = format!("http://{server}");
        let mut command = companion(&["gateway", "--port", "0", "--server", &url]);
        command.args(arguments).stderr(Stdio::piped());
        let mut process = KillOnDrop(command.spawn().unwrap());
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines.map_while(Result::ok).find_map(|line| {
            let (_, after) = line.split_once(" on http://")?;
            after.split(';').next()?.parse().ok()
        });
        Self {
            _process: process,
            address: address.expect("it says where it listens"),
        }
    }
}

#[test]
fn after_loads_the_usage_in_answers_is_what_was_not_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    let (builder, socket) = (one_slot(folder.path()), socket(folder.path()));
    let mut server = watched(&builder, &socket);
    let hook = control(&socket);
    await_store(&hook);
    let index = Index::told(server.address(), &socket);
    let at = format!("unix:{}", socket.display());
    let plain = Index::start(server.address(), &["--control", &at, "--engine-usage"]);
    let (mut chats, mut loaded) = (Chat::all(), 0);
    for turn in 0..10 {
        if turn == 5 {
            server = restarted(server, &builder, &socket, &index);
        }
        for (at, chat) in chats.iter_mut().enumerate() {
            let id = format!("chat-{at}-{turn}");
            let answer = chat.send(index.address, &id);
            let account = account(&hook, &id);
            assert_right(&answer, &account, &*chat);
            loaded += account.from.store;
            chat.grows(turn);
        }
    }
    assert!(loaded > 5_000, "{loaded} tokens were loaded");
    let gateway = Gateway::start(server.address(), &["--control", &at]);
    for (at, chat) in chats.iter_mut().enumerate() {
        let id = format!("gateway-{at}");
        let answer = chat.send(gateway.address, &id);
        let account = account(&hook, &id);
        assert!(account.from.store > 100, "{account:?}");
        assert_right(&answer, &account, &*chat);
        chat.grows(0);
    }
    // With the engine's own figures nothing differs from them.
    for (at, chat) in chats.iter().enumerate() {
        let id = format!("plain-{at}");
        let found = figures(&chat.send(plain.address, &id));
        let account = account(&hook, &id);
        assert!(account.from.store > 100, "{account:?}");
        let engines = (
            account.reused - account.from.store,
            account.evaluated + account.from.store,
        );
        assert!(
            found.iter().all(|figures| *figures == engines),
            "{found:?} {account:?}"
        );
    }
}

/// Passes everything on between this socket and a hook's. How often an account was asked for.
fn relay(at: &Path, hook: PathBuf) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(at).unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let counts = Arc::clone(&asked);
    let copy = |mut from: UnixStream, mut to: UnixStream, counts: Option<Arc<AtomicUsize>>| {
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut piece) {
                let is_asked = piece.starts_with(b"GET /requests/");
                if let Some(counts) = counts.as_ref().filter(|_| is_asked) {
                    counts.fetch_add(1, Ordering::SeqCst);
                }
                if to.write_all(&piece[..length]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
    };
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(&hook) else {
                continue;
            };
            let (to, from) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            copy(client, to, Some(Arc::clone(&counts)));
            copy(server, from, None);
        }
    });
    asked
}

/// Whether the server puts its figures right or a proxy, they are right; but only the proxy must ask for them.
#[test]
fn proxies_ask_for_no_account_of_answers_that_the_server_has_put_right() {
    for (proxy, setting) in [
        ("index", "1"),
        ("index", "0"),
        ("gateway", "1"),
        ("gateway", "0"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let builder = one_slot(folder.path()).env("CONTEXTPILOT_STORE_USAGE", setting);
        let socket = socket(folder.path());
        let server = watched(&builder, &socket);
        let hook = control(&socket);
        await_store(&hook);
        let at = folder.path().join("relay.sock");
        let asked = relay(&at, socket.clone());
        let control = format!("unix:{}", at.display());
        let (index, gateway);
        let address = match proxy {
            "index" => {
                index = Index::told(server.address(), &at);
                index.address
            }
            _ => {
                gateway = Gateway::start(server.address(), &["--control", &control]);
                gateway.address
            }
        };
        let (mut chats, mut loaded, mut turn) = (Chat::all(), 0, 0);
        // How many accounts were asked for in one turn of all chats.
        let mut go_on = || {
            let before = asked.load(Ordering::SeqCst);
            for (at, chat) in chats.iter_mut().enumerate() {
                let id = format!("chat-{at}-{turn}");
                let answer = chat.send(address, &id);
                let account = account(&hook, &id);
                assert_right(&answer, &account, (proxy, setting, &*chat));
                loaded += account.from.store;
                chat.grows(turn);
            }
            turn += 1;
            asked.load(Ordering::SeqCst) - before
        };
        match setting {
            "1" => {
                until("nothing is asked for", || (go_on() == 0).then_some(()));
                assert_eq!(go_on(), 0);
            }
            _ => (0..4).for_each(|_| assert!(go_on() >= 6)),
        }
        assert!(loaded > 500, "{loaded} tokens were loaded");
    }
}

/// Six chats of ten turns with the server alone, which ends after the fifth and begins again. How many tokens were loaded.
fn alone(builder: &Builder, folder: &Path) -> u64 {
    let socket = socket(folder);
    let start = || {
        let server = watched(builder, &socket);
        await_store(&control(&socket));
        server
    };
    let (mut server, mut chats, mut loaded) = (start(), Chat::all(), 0);
    for turn in 0..10 {
        if turn == 5 {
            server.stop(15).unwrap();
            server = start();
        }
        for (at, chat) in chats.iter_mut().enumerate() {
            let id = format!("chat-{at}-{turn}");
            let answer = chat.texts(server.post(chat.path(), &chat.body(&id)).unwrap());
            let account = account(&control(&socket), &id);
            assert_right(&answer, &account, &*chat);
            loaded += account.from.store;
            chat.grows(turn);
        }
    }
    loaded
}

#[test]
fn the_server_itself_counts_what_was_loaded_as_cached() {
    let of_model = |folder: &Path, arch| {
        let builder = one_slot(folder).model(&Model::tiny(arch));
        builder.env("CONTEXTPILOT_STORE_USAGE", "1")
    };
    for arch in [Arch::Llama, Arch::Gemma2, Arch::Mamba] {
        let folder = tempfile::tempdir().unwrap();
        let loaded = alone(&of_model(folder.path(), arch), folder.path());
        assert!(loaded > 5_000, "{arch}: {loaded} tokens were loaded");
    }
    let folder = tempfile::tempdir().unwrap();
    let loaded = alone(&of_model(folder.path(), Arch::Llama).tls(), folder.path());
    assert!(loaded > 5_000, "with TLS: {loaded} tokens were loaded");
}
