//! A connection: the handshake, reading, and writing.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use contextpilot_admission::{Meter, Overspent, Peer};

use crate::{Limits, Role, Session, Step};

/// Bytes read at a time.
const CHUNK: usize = 4096;

/// A connection whose handshake is over.
pub(crate) struct Connection<'a> {
    stream: &'a TcpStream,
    /// The work that the peer causes.
    meter: Meter<'a>,
    session: Session,
    /// What follows from the bytes that were read last.
    steps: Vec<Step>,
}

/// What a connection does next.
pub(crate) enum Next {
    /// What follows from what the peer sent.
    Step(Step),
    /// It has sent nothing for the time that was set, this many times in a row.
    Silence(u32),
}

impl<'a> Connection<'a> {
    /// Does the handshake.
    pub(crate) fn open(
        stream: &'a TcpStream,
        peer: &'a Peer,
        role: Role,
        limits: &Limits,
    ) -> io::Result<Self> {
        let deadline = Instant::now() + limits.handshake;
        // Each message is written in one piece.
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(limits.stalled))?;
        expect_acknowledgements(stream, limits.stalled);
        write(stream, &Session::greeting())?;
        let mut connection = Self {
            stream,
            meter: peer.meter(),
            session: Session::new(role),
            steps: Vec::new(),
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            if !connection.read()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut ready = false;
            let mut rest = Vec::new();
            for step in connection.steps.drain(..) {
                match step {
                    Step::Ready => ready = true,
                    // Nothing but our READY comes before the peer's.
                    Step::Reply(bytes) if !ready => write(stream, &bytes)?,
                    step => rest.push(step),
                }
            }
            if ready {
                connection.steps = rest;
                return Ok(connection);
            }
        }
    }

    /// Whether the peer answers a PING.
    pub(crate) fn has_heartbeats(&self) -> bool {
        self.session.has_heartbeats()
    }

    /// Does each step, until the peer disconnects or is disconnected. After `silence` without a byte, that
    /// is a step as well.
    pub(crate) fn read_on(
        &mut self,
        silence: Duration,
        mut act: impl FnMut(Next) -> io::Result<()>,
    ) -> io::Result<()> {
        self.stream.set_read_timeout(Some(silence))?;
        let mut silent = 0;
        loop {
            for step in self.steps.drain(..) {
                // Some bytes of the peer may ask for long answers, and many of them were read at once.
                let is_query = matches!(step, Step::Message(_));
                act(Next::Step(step))?;
                if is_query {
                    self.meter.charge().map_err(overspent)?;
                }
            }
            match self.read() {
                Ok(true) => silent = 0,
                Ok(false) => return Ok(()),
                Err(error) if is_timeout(&error) => {
                    silent += 1;
                    act(Next::Silence(silent))?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Connection<'_> {
    /// Reads what has come. False if the peer has disconnected. Before that it is charged for what it caused
    /// since the last time.
    fn read(&mut self) -> io::Result<bool> {
        self.meter.charge().map_err(overspent)?;
        let mut chunk = [0; CHUNK];
        let mut stream = self.stream;
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Ok(length) => {
                    let fed = self.session.feed(&chunk[..length], &mut self.steps);
                    return fed.map(|()| true).map_err(io::Error::other);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a connection ends with whose peer causes too much work.
pub(crate) fn overspent(_: Overspent) -> io::Error {
    io::ErrorKind::QuotaExceeded.into()
}

/// Ends a connection that acknowledges nothing for this long, as one of a machine that is gone, or of one
/// that has no room for a single byte.
fn expect_acknowledgements(stream: &TcpStream, longest: Duration) {
    #[cfg(target_os = "linux")]
    {
        let ms = u32::try_from(longest.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, ms);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, longest);
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Writes everything, as long as the peer reads some bytes in each interval.
pub(crate) fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

/// Writes everything, or fails when the time has come.
pub(crate) fn write_until(
    mut stream: &TcpStream,
    mut bytes: &[u8],
    deadline: Instant,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
