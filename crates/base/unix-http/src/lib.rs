//! HTTP over a Unix socket, by ureq. Used for reports to the index, and by the client of the control endpoint.
//!
//! ```no_run
//! let agent = contextpilot_unix_http::agent(Default::default(), "/run/index.sock".as_ref());
//! agent.get("http://localhost/health").call()?;
//! # Ok::<(), ureq::Error>(())
//! ```

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};
use ureq::{Agent, Error};

/// A client for the socket at `path`, whatever host is in the URLs.
#[must_use]
pub fn agent(config: Config, path: &Path) -> Agent {
    let path = path.to_owned();
    Agent::with_parts(config, UnixConnector { path }, NoAddress)
}

#[derive(Debug)]
struct UnixConnector {
    path: PathBuf,
}

impl Connector for UnixConnector {
    type Out = UnixTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _chained: Option<()>,
    ) -> Result<Option<UnixTransport>, Error> {
        let stream = match connect(&self.path, time_of(&details.timeout)) {
            Ok(stream) => stream,
            Err(e) if ran_out(&e) => return Err(Error::Timeout(details.timeout.reason)),
            Err(e) => return Err(Error::Io(io::Error::new(e.kind(), explain(&e)))),
        };
        let sizes = details.config;
        Ok(Some(UnixTransport {
            stream,
            buffers: LazyBuffers::new(sizes.input_buffer_size(), sizes.output_buffer_size()),
        }))
    }
}

fn explain(error: &io::Error) -> String {
    let why = match error.kind() {
        ErrorKind::NotFound => "there is no such socket",
        ErrorKind::ConnectionRefused => "nobody listens at the socket",
        ErrorKind::PermissionDenied => "this user may not use the socket",
        _ => return format!("the socket cannot be used: {error}"),
    };
    format!("{why}: {error}")
}

/// Connects to the socket at `path`, `within` that time if one is given.
///
/// A server that does not accept keeps a blocking `connect` waiting once its queue is full; on
/// Linux, a socket's timeout for sending is one for connecting too (unix(7), `unix_stream_connect`).
///
/// # Errors
/// The system's: there is no such socket, no server listens, this user may not; and
/// [`WouldBlock`](ErrorKind::WouldBlock) if the time ran out.
#[cfg(target_os = "linux")]
pub fn connect(path: &Path, within: Option<Duration>) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, within)?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// Connects to the socket at `path`. Where the queue of a server that does not accept is full,
/// systems other than Linux refuse at once.
///
/// # Errors
/// The system's: there is no such socket, no server listens, this user may not.
#[cfg(not(target_os = "linux"))]
pub fn connect(path: &Path, _within: Option<Duration>) -> io::Result<UnixStream> {
    UnixStream::connect(path)
}

/// A connection.
#[derive(Debug)]
struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = timeout.for_write();
        let sent = self
            .stream
            .set_write_timeout(time_of(&timeout))
            .and_then(|()| write_all(&self.stream, &self.buffers.output()[..amount]));
        sent.map_err(|e| error(e, &timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = timeout.for_read();
        let deadline = time_of(&timeout).and_then(|time| Instant::now().checked_add(time));
        let input = self.buffers.input_append_buf();
        let amount = loop {
            let left = deadline
                .map(|at| at.saturating_duration_since(Instant::now()))
                .map(|left| left.max(SHORTEST));
            self.stream.set_read_timeout(left)?;
            match self.stream.read(input) {
                // A signal interrupts system calls on a socket with a time limit.
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(error(e, &timeout)),
                Ok(amount) => break amount,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// Whether an idle connection can be used again: it must have nothing to read, neither its end nor data.
    fn is_open(&mut self) -> bool {
        let mut probe = || {
            self.stream.set_nonblocking(true)?;
            let read = self.stream.read(&mut [0]);
            self.stream.set_nonblocking(false)?;
            read
        };
        matches!(probe(), Err(e) if e.kind() == ErrorKind::WouldBlock)
    }
}

fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(stream, bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writing to a closed connection must be an error, and not send a signal to the host's process.
#[cfg(target_os = "linux")]
fn write(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = rustix::net::SendFlags::NOSIGNAL;
    Ok(rustix::net::send(stream, bytes, flags)?)
}

/// The standard library prevents the signal, where that is possible.
#[cfg(not(target_os = "linux"))]
fn write(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    io::Write::write(&mut stream, bytes)
}

/// The shortest time limit: zero would mean none, and is refused.
const SHORTEST: Duration = Duration::from_millis(1);

/// The remaining time, in the form of sockets: `None` is no limit.
fn time_of(timeout: &NextTimeout) -> Option<Duration> {
    if timeout.after.is_not_happening() {
        None
    } else {
        Some((*timeout.after).max(SHORTEST))
    }
}

fn ran_out(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn error(error: io::Error, timeout: &NextTimeout) -> Error {
    if ran_out(&error) {
        Error::Timeout(timeout.reason)
    } else {
        Error::Io(error)
    }
}

/// ureq resolves an address before it connects. It is not used.
#[derive(Debug)]
struct NoAddress;

impl Resolver for NoAddress {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut found = self.empty();
        found.push(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        Ok(found)
    }
}
