//! Routers that follow a server's KV cache events, as far as the server can tell: one that reads, ones that
//! never do, and ones that attack it.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use contextpilot_testbed::{Builder, Connection, Result, Server, try_until};
use contextpilot_zmtp::{Session, encode};

use crate::lab::failed;
use peer::Peer;

#[allow(dead_code, reason = "the tests that it is made for use the rest")]
#[path = "../../../fleet/zmtp/tests/support/mod.rs"]
mod peer;

/// Publishes at a port that the system chooses, and says where.
pub(crate) fn publishing(builder: &Builder) -> Builder {
    builder
        .clone()
        .env("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:0")
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
}

/// Connections that stay until this is dropped.
pub(crate) struct Subscribers {
    peers: Vec<Peer>,
    reading: Option<TcpStream>,
}

impl Subscribers {
    /// One that reads all that comes, on a thread of its own.
    ///
    /// # Errors
    /// The server does not publish.
    pub(crate) fn one_that_reads(server: &Server) -> Result<Self> {
        let Peer { mut stream, .. } = subscribed(address(server)?);
        let reading = stream.try_clone()?;
        stream.set_read_timeout(None)?;
        // Frames are not looked at: a batch may have a longer one than the decoder of peers' frames takes.
        thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
        Ok(Self {
            peers: Vec::new(),
            reading: Some(reading),
        })
    }

    /// Some that never read.
    ///
    /// # Errors
    /// The server does not publish.
    pub(crate) fn that_never_read(server: &Server, count: usize) -> Result<Self> {
        let address = address(server)?;
        Ok(Self {
            peers: (0..count).map(|_| subscribed(address)).collect(),
            reading: None,
        })
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        self.peers.clear();
        if let Some(reading) = &self.reading {
            let _ = reading.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Subscribers that make 63 long subscriptions and then repeat an empty one, as fast as they can and as often as they are
/// let in again (docs/security.md), until this is dropped.
pub(crate) struct Attackers {
    over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Attackers {
    /// Starts so many attackers.
    ///
    /// # Errors
    /// The server does not publish.
    pub(crate) fn of(server: &Server, count: usize) -> Result<Self> {
        let (address, over) = (address(server)?, Arc::<AtomicBool>::default());
        let attacker = |_| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                // The server has the processors first, as from attackers on another machine.
                let own = rustix::thread::gettid();
                let _ = rustix::process::setpriority_process(Some(own), 19);
                while !over.load(Ordering::Relaxed) {
                    // The server ends the connection, which is what it should do.
                    let _ = repeat(address, &over);
                }
            })
        };
        let threads = (0..count).map(attacker).collect();
        Ok(Self { over, threads })
    }
}

/// Processor time that a server's publisher has spent on what peers sent, ms.
///
/// # Errors
/// The server does not answer.
pub(crate) fn work(server: &Server) -> Result<f64> {
    let mut connection = Connection::open(server.await_control()?)?;
    let stats = connection.exchange("GET", "/stats", b"")?.json()?;
    let micros = stats["kv_events"]["work_us"].as_f64();
    micros
        .map(|micros| micros / 1e3)
        .ok_or_else(|| failed("there is no kv_events.work_us".to_owned()))
}

impl Drop for Attackers {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn repeat(address: SocketAddr, over: &AtomicBool) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(std::time::Duration::from_secs(1)))?;
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
    stream.write_all(&[&Session::greeting()[..], ready].concat())?;
    for nth in 1..=63 {
        stream.write_all(&encode(&[&[&[1], &[nth; 200][..]].concat()]))?;
    }
    let again = b"\0\x01\x01".repeat(2000);
    while !over.load(Ordering::Relaxed) {
        stream.write_all(&again)?;
    }
    Ok(())
}

fn subscribed(address: SocketAddr) -> Peer {
    let mut peer = Peer::ready(address, "SUB");
    peer.say(&encode(&[b"\x01"]));
    peer
}

/// Where a server publishes, by its own word.
fn address(server: &Server) -> Result<SocketAddr> {
    let control = server.await_control()?;
    try_until("the server publishes", || {
        let mut connection = Connection::open(control)?;
        let stats = connection.exchange("GET", "/stats", b"")?.json()?;
        let publish = stats["kv_events"]["publish"].as_str();
        let Some(publish) = publish.and_then(|at| at.strip_prefix("tcp://")) else {
            return Ok(None);
        };
        let parsed = publish.parse().map_err(|_| failed(publish.to_owned()));
        parsed.map(Some)
    })
}
