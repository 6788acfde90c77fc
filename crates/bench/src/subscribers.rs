//! Routers that follow a server's KV cache events, as far as the server can tell: one that reads, and
//! ones that never do.

use std::net::{SocketAddr, TcpStream};
use std::{io, thread};

use contextpilot_testbed::{Builder, Connection, Result, Server, try_until};
use contextpilot_zmtp::encode;

use crate::lab::failed;
use peer::Peer;

#[allow(dead_code, reason = "the tests that it is made for use the rest")]
#[path = "../../zmtp/tests/support/mod.rs"]
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
