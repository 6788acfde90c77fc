//! A stand-in for the index: it receives evictions and answers as the index does, until it is told to
//! misbehave.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection};
use serde_json::{Value, json};

use crate::stream::{Certificate, Endpoint, Plain};
use crate::{Result, try_until};

#[cfg(test)]
mod tests;

/// How long the listener may take to be woken at the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running receiver: on a loopback port or, as `Index<PathBuf>`, at a Unix socket.
pub struct Index<At = SocketAddr> {
    at: At,
    url: String,
    running: Running,
}

impl Index {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// Those of listening.
    pub fn start() -> Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Starts one at an address, for example that of an index that was dropped.
    ///
    /// # Errors
    /// Those of listening.
    pub fn start_at(address: SocketAddr) -> Result<Self> {
        Self::listen(address, None)
    }

    /// Starts one on a free port that speaks TLS.
    ///
    /// # Errors
    /// Those of listening.
    pub fn start_tls(tls: Arc<ServerConfig>) -> Result<Self> {
        Self::listen(SocketAddr::from(([127, 0, 0, 1], 0)), Some(tls))
    }

    /// Starts one on a free port that speaks TLS, with a new certificate.
    ///
    /// # Errors
    /// Those of making the certificate, and of listening.
    pub fn start_https() -> Result<(Self, Certificate)> {
        let certificate = Certificate::new()?;
        Ok((Self::start_tls(certificate.server())?, certificate))
    }

    fn listen(address: SocketAddr, tls: Option<Arc<ServerConfig>>) -> Result<Self> {
        // Between two lives of an index, another connection may have its port for a moment.
        let listener = try_until("the port is free", || match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            listener => Ok(Some(listener?)),
        })?;
        let at = listener.local_addr()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let next = move || {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            Ok(Plain::Tcp(stream))
        };
        Ok(Self {
            at,
            url: format!("{scheme}://{at}"),
            running: Running::start(Endpoint::Tcp(at), tls, next),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// The URL to POST evictions to.
    pub fn evict_url(&self) -> String {
        format!("{}/evict", self.url)
    }
}

impl Index<PathBuf> {
    /// Starts one at a Unix socket, which is removed when the index is dropped.
    ///
    /// # Errors
    /// Those of listening.
    pub fn start_unix(path: &Path) -> Result<Self> {
        let listener = UnixListener::bind(path)?;
        let at = path.to_owned();
        let next = move || Ok(Plain::Unix(listener.accept()?.0));
        Ok(Self {
            url: format!("unix:{}", at.display()),
            running: Running::start(Endpoint::Unix(at.clone()), None, next),
            at,
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl<At> Index<At> {
    /// Its URL, without a path on the server.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// How to answer every request from now on. Connections whose requests hang are closed.
    pub fn behave(&self, behaviour: Behaviour) {
        let mut state = self.running.shared.state();
        state.always = Some(behaviour);
        state.script.clear();
        state.changes += 1;
        self.running.shared.changed.notify_all();
    }

    /// How to answer the next requests, one behaviour each.
    pub fn script(&self, behaviours: impl IntoIterator<Item = Behaviour>) {
        self.running.shared.state().script.extend(behaviours);
    }

    /// Accepts the requests that hang now ([`Behaviour::Hang`]).
    pub fn release(&self) {
        self.running.shared.state().releases += 1;
        self.running.shared.changed.notify_all();
    }

    /// Everything that arrived, in order of arrival.
    pub fn posts(&self) -> Vec<Post> {
        self.running.shared.state().posts.clone()
    }

    /// How many connections there have been, with or without requests.
    pub fn connections(&self) -> usize {
        self.running.shared.state().connections.len()
    }

    /// The ids of all accepted posts, in order, with repetitions.
    pub fn reports(&self) -> Vec<String> {
        self.running.shared.state().reports().cloned().collect()
    }

    /// The ids of all accepted posts.
    pub fn evicted(&self) -> BTreeSet<String> {
        self.running.shared.state().reports().cloned().collect()
    }

    /// Waits until the evicted ids fulfil a condition. `false`: they did not in time.
    pub fn wait_until(&self, wish: impl Fn(&BTreeSet<String>) -> bool, patience: Duration) -> bool {
        self.wait_for(|state| wish(&state.reports().cloned().collect()), patience)
    }

    /// Waits until the posts, accepted or not, fulfil a condition. `false`: they did not in time.
    pub fn wait_posts(&self, mut wish: impl FnMut(&[Post]) -> bool, patience: Duration) -> bool {
        self.wait_for(|state| wish(&state.posts), patience)
    }

    /// Waits until a post with this id has arrived, accepted or not. Returns when its first byte
    /// arrived. `None`: it did not arrive in time.
    pub fn wait_for_id(&self, id: &str, patience: Duration) -> Option<Instant> {
        let mut found = None;
        let mut seen = 0;
        self.wait_for(
            |state| {
                // Each post is looked at once: the lock is held meanwhile, and new posts have to wait.
                let mut news = state.posts[seen..].iter().rev();
                let post = news.find(|post| post.ids.iter().any(|told| told == id));
                found = post.map(|post| post.at);
                seen = state.posts.len();
                found.is_some()
            },
            patience,
        );
        found
    }

    fn wait_for(&self, mut wish: impl FnMut(&State) -> bool, patience: Duration) -> bool {
        let shared = &self.running.shared;
        let waited = shared
            .changed
            .wait_timeout_while(shared.state(), patience, |state| !wish(state));
        match waited {
            Ok((_, timeout)) => !timeout.timed_out(),
            Err(poisoned) => !poisoned.into_inner().1.timed_out(),
        }
    }
}

/// The threads of an index. Dropping this ends them.
struct Running {
    endpoint: Endpoint,
    shared: Arc<IndexShared>,
    listening: Option<JoinHandle<()>>,
}

impl Running {
    fn start(
        endpoint: Endpoint,
        tls: Option<Arc<ServerConfig>>,
        next: impl Fn() -> io::Result<Plain> + Send + 'static,
    ) -> Self {
        let shared = Arc::<IndexShared>::default();
        let for_thread = Arc::clone(&shared);
        let listening = thread::spawn(move || accept(next, tls.as_ref(), &for_thread));
        Self {
            endpoint,
            shared,
            listening: Some(listening),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let connections = {
            let mut state = self.shared.state();
            state.closed = true;
            std::mem::take(&mut state.connections)
        };
        self.shared.changed.notify_all();
        for connection in connections {
            // The other side may have closed it already.
            let _ = connection.shutdown(Shutdown::Both);
        }
        // This connection wakes the listener, which then sees that it must end. A Unix socket that
        // was removed cannot be reached: nothing wakes its listener, so nothing waits for it.
        let woken = self.endpoint.connect(PATIENCE);
        if woken.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return;
        }
        if let Some(listening) = self.listening.take() {
            // The thread panics only if a test has failed anyway.
            let _ = listening.join();
        }
        if let Endpoint::Unix(path) = &self.endpoint {
            // What remains goes with the folder of the test.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// How the index answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// 200, as the index answers; 422 if the request is no eviction.
    Accept,
    /// Another status with a JSON body, after which the connection stays open.
    Status(u16, String),
    /// A status, header lines without their line ends, and a body. Only `Content-Length` is added.
    Answer(u16, Vec<String>, String),
    /// This status without a body if the request has one of these ids. Others are accepted.
    RefuseIds(Vec<String>, u16),
    /// This status without a body if the request has more than so many ids. Others are accepted.
    RefuseAbove(usize, u16),
    /// No answer until [`Index::release`](Index::release). The connection is closed without
    /// an answer if the index is dropped or told to behave differently.
    Hang,
    /// The connection is closed without an answer.
    Close,
    /// The connection is closed in the middle of the body of a 200, which counts as not accepted.
    CloseMidAnswer,
    /// These bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// These bytes, and then more without an end, until the other side gives up.
    Endless(Vec<u8>),
}

impl Behaviour {
    /// The answer of the real index before the first `/reorder`.
    pub fn not_initialized() -> Self {
        let text = "Index not initialized. Call POST /reorder first.";
        Self::Status(503, json!({"detail": text}).to_string())
    }

    /// A status without a body.
    pub fn empty(status: u16) -> Self {
        Self::Answer(status, Vec::new(), String::new())
    }

    /// A status without a body, and the `Location` to ask instead.
    pub fn redirect(status: u16, location: &str) -> Self {
        Self::Answer(status, vec![format!("Location: {location}")], String::new())
    }

    /// How to answer one request: resolves the behaviours that depend on the request. `ids` are
    /// those of an eviction; `None`: the request is no eviction.
    fn towards(self, ids: Option<&[String]>) -> Self {
        let sent = ids.unwrap_or_default();
        match self {
            Self::RefuseIds(bad, status) if sent.iter().any(|id| bad.contains(id)) => {
                Self::empty(status)
            }
            Self::RefuseAbove(most, status) if sent.len() > most => Self::empty(status),
            Self::Accept | Self::RefuseIds(..) | Self::RefuseAbove(..) => match ids {
                Some(_) => Self::Accept,
                None => Self::Status(422, r#"{"detail":"not an eviction"}"#.into()),
            },
            other => other,
        }
    }

    /// Whether an eviction that is answered like this counts as accepted: the answer is one of an index.
    fn accepts(&self) -> bool {
        match self {
            Self::Accept => true,
            Self::Status(200, body) | Self::Answer(200, _, body) => {
                let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
                body["removed_count"].is_u64()
            }
            _ => false,
        }
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Post {
    /// When its first byte arrived.
    pub at: Instant,
    /// The number of the connection, from 0.
    pub connection: usize,
    /// The first line and the headers, as they came.
    pub head: String,
    /// The body, as it came.
    pub body: Vec<u8>,
    /// `request_ids` in the body; empty if there are none.
    pub ids: Vec<String>,
    /// Whether it was a well-formed `POST …/evict` that was, or is being, accepted.
    pub accepted: bool,
}

impl Post {
    /// The first line: method, path and version.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The value of the first header with this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            let wanted = key.eq_ignore_ascii_case(name);
            wanted.then(|| value.strip_prefix(' ').unwrap_or(value))
        })
    }

    /// The ids of a well-formed `POST …/evict`. `None`: it is something else.
    fn evicts(&self) -> Option<&[String]> {
        let mut words = self.line().split(' ');
        let evict = words.next() == Some("POST")
            && words.next().is_some_and(|path| path.ends_with("/evict"));
        (evict && ids(&self.body).is_some()).then_some(&self.ids)
    }

    /// Reads the next request of a connection. `None`: the connection ends before its end.
    fn receive(reader: &mut impl BufRead, connection: usize) -> Option<Self> {
        if reader.fill_buf().ok()?.is_empty() {
            return None;
        }
        let mut post = Self {
            at: Instant::now(),
            connection,
            head: String::new(),
            body: Vec::new(),
            ids: Vec::new(),
            accepted: false,
        };
        while !post.head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut post.head).ok()? == 0 {
                return None;
            }
        }
        let length = post.header("content-length");
        let length = length.and_then(|length| length.trim().parse().ok());
        post.body.resize(length.unwrap_or(0), 0);
        reader.read_exact(&mut post.body).ok()?;
        post.ids = ids(&post.body).unwrap_or_default();
        Some(post)
    }
}

fn ids(body: &[u8]) -> Option<Vec<String>> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let ids = body["request_ids"].as_array()?.iter();
    ids.map(|id| id.as_str().map(str::to_owned)).collect()
}

/// What the index and the threads of its connections share.
#[derive(Default)]
struct State {
    posts: Vec<Post>,
    /// The behaviours for the next posts, one each. After these, `always` counts.
    script: VecDeque<Behaviour>,
    always: Option<Behaviour>,
    connections: Vec<Plain>,
    /// Grows when the behaviour changes, which ends [`Behaviour::Hang`].
    changes: usize,
    /// Grows when the posts that hang are released.
    releases: usize,
    closed: bool,
}

impl State {
    /// The ids of all accepted posts, in order, with repetitions.
    fn reports(&self) -> impl Iterator<Item = &String> {
        let accepted = self.posts.iter().filter(|post| post.accepted);
        accepted.flat_map(|post| &post.ids)
    }
}

#[derive(Default)]
struct IndexShared {
    state: Mutex<State>,
    changed: Condvar,
}

impl IndexShared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The list of posts is still correct after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a post to those that arrived, waits while it hangs, and says how to answer it.
    fn take(&self, mut post: Post) -> Behaviour {
        let mut state = self.state();
        let scripted = state.script.pop_front();
        let behaviour = scripted.or_else(|| state.always.clone());
        let evicts = post.evicts();
        let behaviour = behaviour.unwrap_or(Behaviour::Accept).towards(evicts);
        let released = Behaviour::Accept.towards(evicts);
        post.accepted = evicts.is_some() && behaviour.accepts();
        let number = state.posts.len();
        state.posts.push(post);
        self.changed.notify_all();
        if behaviour != Behaviour::Hang {
            return behaviour;
        }
        let (changes, releases) = (state.changes, state.releases);
        let hangs = |state: &mut State| {
            !state.closed && (state.changes, state.releases) == (changes, releases)
        };
        let waited = self.changed.wait_while(state, hangs);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed || state.releases == releases {
            return Behaviour::Close;
        }
        state.posts[number].accepted = released.accepts();
        self.changed.notify_all();
        released
    }
}

/// Serves what `next` accepts, each connection in its own thread, until the index is closed.
fn accept(
    next: impl Fn() -> io::Result<Plain>,
    tls: Option<&Arc<ServerConfig>>,
    shared: &Arc<IndexShared>,
) {
    loop {
        let accepted = next().and_then(|stream| Ok((stream.try_clone()?, stream)));
        let mut state = shared.state();
        if state.closed {
            return;
        }
        let Ok((twin, mut stream)) = accepted else {
            continue;
        };
        let number = state.connections.len();
        state.connections.push(twin);
        drop(state);
        let (tls, shared) = (tls.cloned(), Arc::clone(shared));
        thread::spawn(move || {
            match tls.map(ServerConnection::new) {
                None => drop(serve(&mut stream, number, &shared)),
                Some(Ok(mut tls)) => {
                    let mut stream = rustls::Stream::new(&mut tls, &mut stream);
                    serve(&mut stream, number, &shared);
                }
                // The client sees that the connection is closed.
                Some(Err(_)) => {}
            }
            // The clone in the list would keep the connection open.
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
}

/// Serves a connection until its end, then returns `None`.
fn serve(stream: &mut (impl Read + Write), connection: usize, shared: &IndexShared) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let post = Post::receive(&mut reader, connection)?;
        let ids = post.ids.len();
        let behaviour = shared.take(post);
        answer(reader.get_mut(), &behaviour, ids)?;
        reader.get_mut().flush().ok()?;
    }
}

/// Answers one request with so many ids. `None`: the connection must end.
fn answer(stream: &mut impl Write, behaviour: &Behaviour, ids: usize) -> Option<()> {
    let json = ["Content-Type: application/json".to_owned()];
    match behaviour {
        Behaviour::Accept => {
            let body = json!({"status": "success", "removed_count": ids, "not_found": []});
            say(stream, 200, &json, &body.to_string())
        }
        Behaviour::Status(status, body) => say(stream, *status, &json, body),
        Behaviour::Answer(status, headers, body) => say(stream, *status, headers, body),
        Behaviour::CloseMidAnswer => {
            let answer = b"HTTP/1.1 200 -\r\nContent-Length: 1000\r\n\r\n{\"status\":";
            end_after(stream, answer)
        }
        Behaviour::Raw(bytes) => end_after(stream, bytes),
        Behaviour::Endless(bytes) => {
            stream.write_all(bytes).ok()?;
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
            None
        }
        // `IndexShared::take` returns none of the last three.
        Behaviour::Close
        | Behaviour::Hang
        | Behaviour::RefuseIds(..)
        | Behaviour::RefuseAbove(..) => None,
    }
}

fn say(stream: &mut impl Write, status: u16, headers: &[String], body: &str) -> Option<()> {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    let answer = format!("HTTP/1.1 {status} -\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(answer.as_bytes()).ok()
}

fn end_after(stream: &mut impl Write, bytes: &[u8]) -> Option<()> {
    stream.write_all(bytes).ok()?;
    // The connection ends in either case.
    let _ = stream.flush();
    None
}
