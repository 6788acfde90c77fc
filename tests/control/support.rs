//! A server under the launcher, and its control endpoint.

use contextpilot_control::{RequestState, ResidencyEvent, Stats};
use contextpilot_testbed::{
    Arch, Builder, Connection, Index, Model, Random, Request, Response, Server,
};

pub(crate) use contextpilot_testbed::until;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
pub(crate) const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
/// The path that tells whether a model is loaded.
pub(crate) const READINESS: &str = "/ready";
/// How long to wait for something that must happen. Only a failure takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a tiny model, this many slots of 1024 tokens, and no host prompt cache.
pub(crate) fn bare(slots: u32) -> Builder {
    model(Arch::Llama)
        .bare_slots(slots)
        .args(["-c", &(slots * 1024).to_string()])
}

pub(crate) fn model(arch: Arch) -> Builder {
    Server::builder().model(&Model::tiny(arch))
}

/// `length` letters. Different seeds give unrelated letters.
pub(crate) fn text(seed: u64, length: usize) -> String {
    Random(seed).letters(length)
}

pub(crate) fn ask(seed: u64, length: usize) -> Request {
    Request::completion(text(seed, length))
}

pub(crate) struct Hooked {
    pub(crate) server: Server,
    pub(crate) control: SocketAddr,
}

impl Hooked {
    /// Starts a server whose hook has a control endpoint and no index.
    pub(crate) fn observing(builder: &Builder) -> Self {
        Self::start(builder.clone())
    }

    /// Starts a server whose hook has a control endpoint and reports to the index.
    pub(crate) fn telling(builder: &Builder, index: &Index) -> Self {
        Self::start(builder.clone().index_url(index.url()))
    }

    fn start(builder: Builder) -> Self {
        let mut hooked = Self::loading(builder);
        hooked.server.await_ready().unwrap();
        hooked.await_loaded();
        hooked
    }

    /// Starts a server, and returns as soon as the control endpoint listens. The server itself accepts no
    /// requests before it is ready.
    pub(crate) fn loading(builder: Builder) -> Self {
        let server = builder
            .launcher(LAUNCHER)
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
            .start()
            .unwrap();
        let control = server.await_control().unwrap();
        Self { server, control }
    }

    /// Waits until the hook has noticed that the server is ready, which is shortly after it is ready.
    /// Where the endpoint requires a token, the status is enough.
    pub(crate) fn await_loaded(&self) {
        until("the model is loaded", || {
            let response = self.get(READINESS);
            (!response.text().contains(r#""loading""#)).then_some(())
        });
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.exchange("GET", path)
    }

    pub(crate) fn exchange(&self, method: &str, path: &str) -> Response {
        let mut connection = Connection::open(self.control).unwrap();
        connection.exchange(method, path, b"").unwrap()
    }

    pub(crate) fn stats(&self) -> Stats {
        let response = self.get("/stats");
        assert_eq!(response.status, 200, "{}", response.text());
        serde_json::from_str(&response.text()).unwrap()
    }

    /// Waits until the hook has seen the end of this many requests.
    pub(crate) fn settled(&self, requests: u64) -> Stats {
        until("all requests are finished", || {
            let stats = self.stats();
            (stats.requests.finished >= requests).then_some(stats)
        })
    }

    pub(crate) fn request(&self, id: &str) -> RequestState {
        serde_json::from_str(&self.get(&format!("/requests/{id}")).text()).unwrap()
    }

    /// Sends a request, and returns the parsed answer.
    pub(crate) fn complete(&self, request: &Request) -> Value {
        let response = self.server.send(request).unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        response.json().unwrap()
    }

    pub(crate) fn events(&self, last: Option<&str>) -> Events {
        let stream = TcpStream::connect(self.control).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let last = last.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
        let request = format!("GET /events HTTP/1.1\r\nHost: localhost\r\n{last}\r\n");
        (&stream).write_all(request.as_bytes()).unwrap();
        let mut events = Events(BufReader::new(stream));
        let status = events.line();
        assert!(status.starts_with("HTTP/1.1 200"), "{status}");
        while !events.line().is_empty() {}
        // From this comment on, the reader gets every event.
        assert!(events.line().starts_with(": epoch "));
        events
    }
}

/// A reader of `/events`.
pub(crate) struct Events(BufReader<TcpStream>);

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) event: String,
    pub(crate) id: String,
    pub(crate) data: String,
}

impl Message {
    pub(crate) fn residency(&self) -> ResidencyEvent {
        assert_eq!(self.event, "residency");
        serde_json::from_str(&self.data).unwrap()
    }
}

impl Events {
    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).unwrap();
        assert!(read > 0, "the stream has ended");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// The next message. Comments are skipped.
    pub(crate) fn next(&mut self) -> Message {
        let mut message = Message {
            event: String::new(),
            id: String::new(),
            data: String::new(),
        };
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some(("event", value)) => message.event = value.to_owned(),
                Some(("id", value)) => message.id = value.to_owned(),
                Some(("data", value)) => message.data = value.to_owned(),
                _ if line.is_empty() && !message.data.is_empty() => return message,
                _ => {}
            }
        }
    }

    /// The next message, which must be a change of the cache.
    pub(crate) fn change(&mut self) -> ResidencyEvent {
        self.next().residency()
    }
}
