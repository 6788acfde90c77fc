//! An index that misbehaves as a test wishes, and what every test needs.
#![allow(dead_code, reason = "each test file uses its part of it")]

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_delivery::{Config, LogSink, Sender, Stats};

/// Far beyond what anything here takes: only a failing test waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the index does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers with this status, these header lines and this body.
    Answer(u16, Vec<String>, String),
    /// The same while the request holds one of these ids; otherwise 200, and this stays the next
    /// thing to do.
    AnswerTo(Vec<String>, u16),
    /// The same while the request holds more than so many ids.
    AnswerAbove(usize, u16),
    /// Sends these bytes and closes.
    Raw(Vec<u8>),
    /// Sends these bytes and then more and more until the other side has enough.
    Endless(Vec<u8>),
    /// Reads the request and says nothing until [`Index::release`].
    Hang,
}

impl Act {
    pub(crate) fn status(status: u16) -> Act {
        Act::Answer(status, Vec::new(), String::new())
    }

    pub(crate) fn redirect(status: u16, location: &str) -> Act {
        Act::Answer(status, vec![format!("location: {location}")], String::new())
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    /// Number of the connection it came over, from 1.
    pub(crate) connection: usize,
    /// `POST /evict HTTP/1.1` and the header lines, in lower case but for the first.
    pub(crate) head: Vec<String>,
    pub(crate) ids: Vec<String>,
    /// Whether it was answered with 200.
    pub(crate) told: bool,
}

impl Post {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}: ");
        self.head.iter().find_map(|line| line.strip_prefix(&prefix))
    }
}

#[derive(Default)]
struct Inner {
    script: VecDeque<Act>,
    posts: Vec<Post>,
    connections: usize,
    open: Vec<Box<dyn Socket>>,
    released: bool,
}

impl Inner {
    fn next_act(&mut self, ids: &[String]) -> Act {
        let (applies, status) = match self.script.front() {
            Some(Act::AnswerTo(bad, status)) => (ids.iter().any(|id| bad.contains(id)), *status),
            Some(Act::AnswerAbove(most, status)) => (ids.len() > *most, *status),
            _ => return self.script.pop_front().unwrap_or_else(|| Act::status(200)),
        };
        Act::status(if applies { status } else { 200 })
    }
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    stopped: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test thread panics with it")
    }

    fn wait(&self, what: &str, until: impl Fn(&Inner) -> bool) -> MutexGuard<'_, Inner> {
        let end = Instant::now() + PATIENCE;
        let mut inner = self.lock();
        while !until(&inner) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain: {what}; {:?}", inner.posts);
            inner = self.changed.wait_timeout(inner, left).expect("as above").0;
        }
        inner
    }
}

/// A connection of either kind.
pub(crate) trait Socket: Read + Write + Send {
    fn twin(&self) -> Box<dyn Socket>;
    fn end(&self);
}

macro_rules! socket {
    ($stream:ty) => {
        impl Socket for $stream {
            fn twin(&self) -> Box<dyn Socket> {
                Box::new(self.try_clone().expect("a file descriptor"))
            }

            fn end(&self) {
                // The other side may have closed it already.
                let _ = self.shutdown(Shutdown::Both);
            }
        }
    };
}
socket!(TcpStream);
socket!(UnixStream);

/// Turns an accepted connection into what is spoken over: TLS, for one.
pub(crate) type Wrap = dyn Fn(Box<dyn Socket>) -> io::Result<Box<dyn ReadWrite>> + Send + Sync;

pub(crate) trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

enum At {
    Port(SocketAddr),
    Path(PathBuf),
}

pub(crate) struct Index {
    shared: Arc<Shared>,
    at: At,
    accepting: Option<thread::JoinHandle<()>>,
}

impl Index {
    /// Answers 200 to everything, unless told otherwise.
    pub(crate) fn start() -> Index {
        Index::start_on("127.0.0.1:0").expect("a port on loopback")
    }

    pub(crate) fn start_on(address: &str) -> io::Result<Index> {
        Index::start_with(address, Arc::new(|stream| Ok(Box::new(stream))))
    }

    pub(crate) fn start_with(address: &str, wrap: Arc<Wrap>) -> io::Result<Index> {
        let listener = TcpListener::bind(address)?;
        let at = At::Port(listener.local_addr()?);
        let next = move || {
            listener
                .accept()
                .map(|(s, _)| Box::new(s) as Box<dyn Socket>)
        };
        Ok(Index::accepting(at, next, wrap))
    }

    /// At a Unix socket, which goes with it.
    pub(crate) fn start_at(path: &Path) -> Index {
        let listener = UnixListener::bind(path).expect("a socket");
        let at = At::Path(path.to_owned());
        let next = move || {
            listener
                .accept()
                .map(|(s, _)| Box::new(s) as Box<dyn Socket>)
        };
        Index::accepting(at, next, Arc::new(|stream| Ok(Box::new(stream))))
    }

    fn accepting(
        at: At,
        next: impl Fn() -> io::Result<Box<dyn Socket>> + Send + 'static,
        wrap: Arc<Wrap>,
    ) -> Index {
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let accepting = thread::spawn(move || accept(next, &for_thread, &wrap));
        Index {
            shared,
            at,
            accepting: Some(accepting),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match &self.at {
            At::Port(address) => *address,
            At::Path(path) => panic!("{path:?} has no port"),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/evict", self.address())
    }

    /// What to do with the next requests, before answering 200 again.
    pub(crate) fn script(&self, acts: impl IntoIterator<Item = Act>) {
        self.shared.lock().script.extend(acts);
    }

    /// From now on, 200 to everything again.
    pub(crate) fn behave(&self) {
        self.shared.lock().script.clear();
    }

    /// Hanging requests are answered 200 from now on.
    pub(crate) fn release(&self) {
        self.shared.lock().released = true;
        self.shared.changed.notify_all();
    }

    pub(crate) fn posts(&self) -> Vec<Post> {
        self.shared.lock().posts.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    pub(crate) fn wait_for_posts(&self, count: usize) -> Vec<Post> {
        let wait = self
            .shared
            .wait("posts", |inner| inner.posts.len() >= count);
        wait.posts.clone()
    }

    /// Every id that was told with success, in order, once there are so many.
    pub(crate) fn wait_for_told(&self, count: usize) -> Vec<String> {
        told(&self.shared.wait("ids", |inner| told(inner).len() >= count))
    }
}

fn told(inner: &Inner) -> Vec<String> {
    let posts = inner.posts.iter().filter(|post| post.told);
    posts.flat_map(|post| post.ids.clone()).collect()
}

/// The index ends, and its connections with it.
impl Drop for Index {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.release();
        // Wakes `accept`.
        match &self.at {
            At::Port(address) => drop(TcpStream::connect(address)),
            At::Path(path) => {
                drop(UnixStream::connect(path));
                let _ = std::fs::remove_file(path);
            }
        }
        if let Some(thread) = self.accepting.take() {
            thread
                .join()
                .expect("the accepting thread has no reason to panic");
        }
        for stream in &self.shared.lock().open {
            stream.end();
        }
    }
}

fn accept(next: impl Fn() -> io::Result<Box<dyn Socket>>, shared: &Arc<Shared>, wrap: &Arc<Wrap>) {
    while let Ok(stream) = next() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let connection = {
            let mut inner = shared.lock();
            inner.connections += 1;
            inner.open.push(stream.twin());
            inner.connections
        };
        let shared = Arc::clone(shared);
        let wrap = Arc::clone(wrap);
        thread::spawn(move || {
            let socket = stream.twin();
            // An error is a client that went away: the test looks at what arrived.
            let Ok(mut stream) = wrap(stream) else { return };
            while let Ok(true) = serve(&mut *stream, &shared, connection) {}
            // Closing alone would not do: `open` has it, too.
            socket.end();
        });
    }
}

/// Serves one request; `false` when the connection shall be closed.
fn serve(stream: &mut dyn ReadWrite, shared: &Shared, connection: usize) -> io::Result<bool> {
    let Some((head, ids)) = read_request(stream)? else {
        return Ok(false);
    };
    let act = {
        let mut inner = shared.lock();
        let act = inner.next_act(&ids);
        let told = false;
        inner.posts.push(Post {
            connection,
            head,
            ids,
            told,
        });
        act
    };
    shared.changed.notify_all();
    let post = shared.lock().posts.len() - 1;
    match act {
        Act::Answer(status, headers, body) => {
            answer(stream, status, &headers, &body)?;
            let page = headers.iter().any(|line| line.contains("text/html"));
            settle(shared, post, (200..300).contains(&status) && !page);
            Ok(true)
        }
        Act::AnswerTo(..) | Act::AnswerAbove(..) => unreachable!("`next_act` resolves them"),
        Act::Raw(bytes) => {
            stream.write_all(&bytes)?;
            settle(shared, post, bytes.starts_with(b"HTTP/1.1 200"));
            Ok(false)
        }
        Act::Endless(bytes) => {
            stream.write_all(&bytes)?;
            settle(shared, post, bytes.starts_with(b"HTTP/1.1 200"));
            loop {
                stream.write_all(&[b'x'; 4096])?;
            }
        }
        Act::Hang => {
            drop(shared.wait("a release", |inner| inner.released));
            answer(stream, 200, &[], "")?;
            settle(shared, post, true);
            Ok(true)
        }
    }
}

fn settle(shared: &Shared, post: usize, told: bool) {
    shared.lock().posts[post].told = told;
    shared.changed.notify_all();
}

fn answer(
    stream: &mut dyn ReadWrite,
    status: u16,
    headers: &[String],
    body: &str,
) -> io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text.push_str(body);
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

fn read_request(stream: &mut dyn ReadWrite) -> io::Result<Option<(Vec<String>, Vec<String>)>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at;
        }
        if !read_some(stream, &mut bytes)? {
            return Ok(None);
        }
    };
    let head: Vec<String> = String::from_utf8_lossy(&bytes[..end])
        .split("\r\n")
        .map(str::to_owned)
        .collect();
    let length: usize = head
        .iter()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0);
    while bytes.len() < end + 4 + length {
        if !read_some(stream, &mut bytes)? {
            return Ok(None);
        }
    }
    let body: serde_json::Value = serde_json::from_slice(&bytes[end + 4..]).unwrap_or_default();
    let ids = body["request_ids"].as_array().into_iter().flatten();
    let ids = ids
        .filter_map(|id| id.as_str().map(str::to_owned))
        .collect();
    Ok(Some((head, ids)))
}

fn read_some(stream: &mut dyn ReadWrite, bytes: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let n = stream.read(&mut buffer)?;
    bytes.extend_from_slice(&buffer[..n]);
    Ok(n > 0)
}

/// The lines a sender has said.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn sink(&self) -> LogSink {
        let log = self.clone();
        Arc::new(move |line| log.0.lock().expect("plain pushes").push(line.to_owned()))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().expect("plain pushes").clone()
    }
}

/// A sender to that URL with short pauses, and what it says.
pub(crate) fn sender_to(url: &str) -> (Sender, Log) {
    sender_with(url, |_| {})
}

pub(crate) fn sender_with(url: &str, adjust: impl FnOnce(&mut Config)) -> (Sender, Log) {
    let log = Log::default();
    let mut config = Config::new(url, log.sink());
    config.retry.cap = Duration::from_millis(100);
    adjust(&mut config);
    (Sender::start(config, || {}).expect("a sender"), log)
}

/// Waits until the sender's numbers are as wanted.
pub(crate) fn wait_for(sender: &Sender, what: &str, until: impl Fn(&Stats) -> bool) -> Stats {
    let end = Instant::now() + PATIENCE;
    loop {
        let stats = sender.stats();
        if until(&stats) {
            return stats;
        }
        assert!(Instant::now() < end, "waited in vain: {what}; {stats:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("req-{n:012x}")).collect()
}

pub(crate) fn evict(sender: &Sender, ids: &[String]) {
    sender.evict_all(ids.iter().map(|id| Arc::from(id.as_str())));
}
