//! A peer that says what it is told to.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use contextpilot_zmtp::{Frame, Session, decode, encode};

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A peer that says what it is told to.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

impl Peer {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        Self {
            stream,
            unread: Vec::new(),
        }
    }

    /// Shakes hands as a socket of this type.
    pub(crate) fn ready(address: SocketAddr, kind: &str) -> Self {
        Self::try_ready(address, kind).expect("the connection stays")
    }

    /// The same. `None`: the connection was ended meanwhile.
    pub(crate) fn try_ready(address: SocketAddr, kind: &str) -> Option<Self> {
        let mut peer = Self::connect(address);
        peer.stream.write_all(&Session::greeting()).ok()?;
        peer.stream.write_all(&ready(kind)).ok()?;
        let mut greeting = [0; 64];
        peer.stream.read_exact(&mut greeting).ok()?;
        assert_eq!(greeting, Session::greeting());
        let (command, body) = peer.frame()?;
        assert!(command && body.starts_with(b"\x05READY"), "{body:?}");
        Some(peer)
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it is read");
    }

    /// Subscribes, and returns when the subscription is known: a PING is answered after it.
    pub(crate) fn subscribe(&mut self, prefix: &[u8]) {
        self.say(&encode(&[&[b"\x01", prefix].concat()]));
        self.say(b"\x04\x09\x04PING\0\0on");
        assert_eq!(self.frame(), Some((true, b"\x04PONGon".to_vec())));
    }

    /// The next frame: whether it is a command, and its body. `None` at the end.
    pub(crate) fn frame(&mut self) -> Option<(bool, Vec<u8>)> {
        let mut chunk = [0; 65536];
        loop {
            match decode(&self.unread).expect("frames") {
                Some((frame, taken)) => {
                    let frame = match frame {
                        Frame::Command(body) => (true, body.to_vec()),
                        Frame::Part { body, .. } => (false, body.to_vec()),
                    };
                    self.unread.drain(..taken);
                    return Some(frame);
                }
                None => match self.stream.read(&mut chunk) {
                    Ok(0) => return None,
                    Ok(length) => self.unread.extend_from_slice(&chunk[..length]),
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                    Err(error) => panic!("{error}"),
                },
            }
        }
    }

    /// Reads on until the connection ends.
    pub(crate) fn end(&mut self) {
        let mut chunk = [0; 65536];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the connection does not end: {error}"),
            }
        }
    }
}

pub(crate) fn ready(kind: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    body.push(kind.len() as u8);
    body.extend_from_slice(kind.as_bytes());
    [&[4, body.len() as u8], &body[..]].concat()
}

pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
