//! A stand-in for the index: it receives evictions and answers as the index does, until it is told to
//! misbehave.

use std::{
    collections::BTreeSet,
    io,
    net::{Shutdown, SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustls::ServerConfig;

use crate::{Certificate, Endpoint, Result, stream::Plain, try_until};

mod behaviour;
mod post;
mod serve;
mod shared;
#[cfg(test)]
mod tests;

pub use behaviour::Behaviour;
pub use post::Post;
use shared::{IndexShared, State};

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
        let listening = thread::spawn(move || serve::accept(next, tls.as_ref(), &for_thread));
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
