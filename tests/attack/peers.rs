//! The attackers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::dice::Dice;

/// What was sent, and how often something was tried.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Sent {
    pub(crate) fn one(&self, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The attackers run on the machine of the attacked: they leave it the processors, where threads have priorities.
pub(crate) fn give_way() {
    #[cfg(target_os = "linux")]
    {
        let own = rustix::thread::gettid();
        let _ = rustix::process::setpriority_process(Some(own), 19);
    }
}

pub(crate) fn allow_many_files() {
    let files = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: files.maximum,
        ..files
    };
    let _ = setrlimit(Resource::Nofile, all);
}

/// So many attackers, each again and again until then.
pub(crate) fn crowd(
    count: usize,
    dice: &mut Dice,
    until: Instant,
    attack: impl Fn(&mut Dice, &Sent) + Sync,
) -> Sent {
    let sent = Sent::default();
    thread::scope(|scope| {
        for _ in 0..count {
            let mut own = dice.another();
            let (attack, sent) = (&attack, &sent);
            scope.spawn(move || {
                give_way();
                while Instant::now() < until {
                    attack(&mut own, sent);
                }
            });
        }
    });
    sent
}

/// A connection that says what it is told to, and forgives everything.
pub(crate) struct Raw(Option<TcpStream>);

impl Raw {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok();
        if let Some(stream) = &stream {
            let patience = Some(Duration::from_secs(2));
            let _ = stream.set_read_timeout(patience);
            let _ = stream.set_write_timeout(patience);
        }
        Self(stream)
    }

    /// False: the other side has closed, or reads nothing.
    pub(crate) fn say(&mut self, bytes: &[u8], sent: &Sent) -> bool {
        let said = self
            .0
            .as_mut()
            .is_some_and(|stream| stream.write_all(bytes).is_ok());
        sent.one(if said { bytes.len() } else { 0 });
        said
    }

    /// Waits less for answers.
    pub(crate) fn impatient(self) -> Self {
        if let Some(stream) = &self.0 {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
        }
        self
    }

    /// Reads an answer, or as much of one as comes at once.
    pub(crate) fn hear(&mut self) -> usize {
        let mut bytes = [0; 65536];
        let stream = self.0.as_mut();
        stream.map_or(0, |stream| stream.read(&mut bytes).unwrap_or(0))
    }

    pub(crate) fn hear_all(&mut self) {
        while self.hear() > 0 {}
    }
}

/// A request that ends after its answer.
pub(crate) fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn ask(address: SocketAddr, method: &str, path: &str, body: &[u8], sent: &Sent) {
    let mut raw = Raw::open(address);
    if raw.say(&request(method, path, body), sent) {
        raw.hear_all();
    }
}
