//! A stand-in for the index: it receives evictions and answers as the index does, until it is told to
//! misbehave.

use std::{
    collections::{BTreeSet, VecDeque},
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::Result;

/// How the index answers a POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// 200, as the index answers.
    Accept,
    /// 200, but only after a while.
    AcceptAfter(Duration),
    /// 200 and then the connection is closed, as `Connection: close` announces.
    AcceptAndClose,
    /// Another status with a body, after which the connection stays open.
    Status(u16, String),
    /// A status with further header lines, each ending in `\r\n`.
    Headers(u16, String),
    /// No answer until the index is dropped or told to behave differently.
    Hang,
    /// The connection is closed without an answer.
    Close,
    /// The connection is closed in the middle of the answer's body.
    CloseMidAnswer,
    /// These bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// 200 and a body without an end, until the other side gives up.
    Endless,
}

impl Behaviour {
    /// The answer of the real index before the first `/reorder`.
    pub fn not_initialized() -> Self {
        let text = "Index not initialized. Call POST /reorder first.";
        Self::Status(503, json!({"detail": text}).to_string())
    }

    fn accepts(&self) -> bool {
        matches!(
            self,
            Self::Accept | Self::AcceptAfter(_) | Self::AcceptAndClose | Self::Endless
        )
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

#[derive(Default)]
struct State {
    posts: Vec<Post>,
    /// The behaviours for the next posts, one each. After these, `always` counts.
    script: VecDeque<Behaviour>,
    always: Option<Behaviour>,
    connections: Vec<TcpStream>,
    /// Grows when the behaviour changes. Posts without an answer wait for that.
    changes: usize,
    closed: bool,
}

impl State {
    fn evicted(&self) -> BTreeSet<String> {
        let accepted = self.posts.iter().filter(|post| post.accepted);
        accepted.flat_map(|post| post.ids.clone()).collect()
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The list of posts is still correct after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running receiver on a loopback port.
pub struct Index {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
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
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let for_thread = Arc::clone(&shared);
        let listening = thread::spawn(move || accept(&listener, &for_thread));
        Ok(Self {
            address,
            shared,
            listening: Some(listening),
        })
    }

    /// Its URL, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How to answer every POST from now on, and those that still have no answer.
    pub fn behave(&self, behaviour: Behaviour) {
        let mut state = self.shared.state();
        state.always = Some(behaviour);
        state.script.clear();
        state.changes += 1;
        self.shared.changed.notify_all();
    }

    /// How to answer the next POSTs, one behaviour each.
    pub fn script(&self, behaviours: impl IntoIterator<Item = Behaviour>) {
        self.shared.state().script.extend(behaviours);
    }

    /// Everything that arrived, in order of arrival.
    pub fn posts(&self) -> Vec<Post> {
        self.shared.state().posts.clone()
    }

    /// The ids of all accepted posts, in order, with repetitions.
    pub fn reports(&self) -> Vec<String> {
        let state = self.shared.state();
        let accepted = state.posts.iter().filter(|post| post.accepted);
        accepted.flat_map(|post| post.ids.clone()).collect()
    }

    /// The ids of all accepted posts.
    pub fn evicted(&self) -> BTreeSet<String> {
        self.shared.state().evicted()
    }

    /// Waits until the evicted ids fulfil a condition. `false`: they did not in time.
    pub fn wait_until(&self, wish: impl Fn(&BTreeSet<String>) -> bool, patience: Duration) -> bool {
        self.wait_for(|state| wish(&state.evicted()), patience)
    }

    /// Waits until the posts, accepted or not, fulfil a condition. `false`: they did not in time.
    pub fn wait_posts(&self, wish: impl Fn(&[Post]) -> bool, patience: Duration) -> bool {
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
        let state = self.shared.state();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, patience, |state| !wish(state));
        match waited {
            Ok((_, timeout)) => !timeout.timed_out(),
            Err(poisoned) => !poisoned.into_inner().1.timed_out(),
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let connections = {
            let mut state = self.shared.state();
            state.closed = true;
            std::mem::take(&mut state.connections)
        };
        self.shared.changed.notify_all();
        for connection in connections {
            // The connection may be closed already.
            let _ = connection.shutdown(Shutdown::Both);
        }
        // This connection wakes the listener, which then sees that it must end.
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            // The thread panics only if a test has failed anyway.
            let _ = listening.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut number = 0;
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        {
            let mut state = shared.state();
            if state.closed {
                return;
            }
            state.connections.extend(stream.try_clone());
        }
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            serve(&stream, number, &shared);
            // The clone in the list would keep the connection open.
            let _ = stream.shutdown(Shutdown::Both);
        });
        number += 1;
    }
}

/// Serves a connection until its end, then returns `None`.
fn serve(stream: &TcpStream, connection: usize, shared: &Shared) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut post = receive(&mut reader, connection)?;
        let evict = post.head.lines().next().is_some_and(|line| {
            let mut words = line.split(' ');
            words.next() == Some("POST")
                && words.next().is_some_and(|path| path.ends_with("/evict"))
        });
        let known = evict && ids(&post.body).is_some();
        let (behaviour, changes) = {
            let mut state = shared.state();
            let scripted = state.script.pop_front();
            let behaviour = scripted.or_else(|| state.always.clone());
            let behaviour = match known {
                true => behaviour.unwrap_or(Behaviour::Accept),
                false => Behaviour::Status(422, r#"{"detail":"not an eviction"}"#.into()),
            };
            post.accepted = behaviour.accepts();
            let ids = post.ids.len();
            state.posts.push(post);
            shared.changed.notify_all();
            ((behaviour, ids), state.changes)
        };
        let (behaviour, ids) = behaviour;
        answer(stream, &behaviour, ids, changes, shared)?;
    }
}

fn ids(body: &[u8]) -> Option<Vec<String>> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let ids = body["request_ids"].as_array()?.iter();
    ids.map(|id| id.as_str().map(str::to_owned)).collect()
}

fn receive(reader: &mut BufReader<&TcpStream>, connection: usize) -> Option<Post> {
    if reader.fill_buf().ok()?.is_empty() {
        return None;
    }
    let at = Instant::now();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let wanted = name.eq_ignore_ascii_case("content-length");
        wanted.then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(Post {
        at,
        connection,
        head,
        ids: ids(&body).unwrap_or_default(),
        body,
        accepted: false,
    })
}

/// Answers one request. `None`: the connection must end.
fn answer(
    mut stream: &TcpStream,
    behaviour: &Behaviour,
    ids: usize,
    changes: usize,
    shared: &Shared,
) -> Option<()> {
    let body = json!({
        "status": "success", "removed_count": ids, "not_found": [],
    });
    let mut say = |status: u16, headers: &str, body: &str| {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).ok()
    };
    match behaviour {
        Behaviour::Accept => say(200, "", &body.to_string()),
        Behaviour::AcceptAfter(delay) => {
            thread::sleep(*delay);
            say(200, "", &body.to_string())
        }
        Behaviour::AcceptAndClose => {
            say(200, "Connection: close\r\n", &body.to_string())?;
            None
        }
        Behaviour::Status(status, body) => say(*status, "", body),
        Behaviour::Headers(status, headers) => say(*status, headers, "{}"),
        Behaviour::Hang => {
            let state = shared.state();
            let still = |state: &mut State| !state.closed && state.changes == changes;
            drop(shared.changed.wait_while(state, still));
            None
        }
        Behaviour::Close => None,
        Behaviour::CloseMidAnswer => {
            let answer = b"HTTP/1.1 200 -\r\nContent-Length: 1000\r\n\r\n{\"status\":";
            stream.write_all(answer).ok()?;
            None
        }
        Behaviour::Raw(bytes) => {
            stream.write_all(bytes).ok()?;
            None
        }
        Behaviour::Endless => {
            stream.write_all(b"HTTP/1.1 200 -\r\n\r\n").ok()?;
            while stream.write_all(&[b' '; 4096]).is_ok() {}
            None
        }
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
