//! A connection to a Redis: commands, and answers of which each has a bound, in bytes and in time.
//!
//! The server that answers there is not trusted. Nothing is read that was not asked for, nothing is made room for that has not
//! come, and an answer that drips is as late as none. After an error the connection is not used again: what it would say
//! next may belong to the last question.

use std::fmt;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_platform_verifier::BuilderVerifierExt;

use super::address::{Address, At};

const CONNECT: Duration = Duration::from_secs(2);
/// For a whole answer, besides the time for its bytes. Also for a question.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes a second, at least.
const SLOWEST: u64 = 1 << 20;
/// Of a line: a status, a number, an error.
const LONGEST_LINE: u64 = 1 << 10;
/// Read from the system at once.
const STEP: usize = 64 << 10;

/// What went wrong.
#[derive(Debug)]
pub(super) enum Fault {
    /// The system's, or TLS's.
    Io(io::Error),
    /// It said so.
    Said(String),
    /// It is longer than what was asked for can be.
    TooLarge,
    /// It is no answer to what was asked.
    Nonsense,
}

impl Fault {
    pub(super) fn is_late(&self) -> bool {
        let late =
            |io: &io::Error| matches!(io.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        matches!(self, Self::Io(io) if late(io))
    }

    pub(super) fn tls(&self) -> Option<&rustls::Error> {
        let Self::Io(io) = self else { return None };
        io.get_ref()?.downcast_ref()
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_) if self.is_late() => f.write_str("no answer in time"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Said(text) => f.write_str(text),
            Self::TooLarge => f.write_str("its answer is longer than what was asked for can be"),
            Self::Nonsense => f.write_str("it does not answer as a Redis does"),
        }
    }
}

type Result<T> = std::result::Result<T, Fault>;

/// A socket on which reading and writing end at a time.
struct Timed {
    socket: Socket,
    end: Instant,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Timed {
    /// The time that is left.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(ErrorKind::TimedOut.into())
        } else {
            Ok(Some(left))
        }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.socket {
            Socket::Tcp(socket) => socket
                .set_read_timeout(left)
                .and_then(|()| socket.read(into)),
            Socket::Unix(socket) => socket
                .set_read_timeout(left)
                .and_then(|()| socket.read(into)),
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.socket {
            Socket::Tcp(socket) => socket
                .set_write_timeout(left)
                .and_then(|()| socket.write(bytes)),
            Socket::Unix(socket) => socket
                .set_write_timeout(left)
                .and_then(|()| socket.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Stream {
    fn timed(&mut self) -> &mut Timed {
        match self {
            Self::Plain(timed) => timed,
            Self::Tls(tls) => &mut tls.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(timed) => timed.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(timed) => timed.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(timed) => timed.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// An open connection.
pub(super) struct Wire {
    stream: BufReader<Stream>,
}

impl Wire {
    pub(super) fn connect(address: &Address) -> Result<Self> {
        let end = Instant::now() + CONNECT + ANSWER;
        let stream = match &address.at {
            At::Socket(path) => {
                let socket = Socket::Unix(UnixStream::connect(path)?);
                Stream::Plain(Timed { socket, end })
            }
            At::Host {
                name,
                port,
                with_tls,
            } => {
                let socket = Socket::Tcp(connect(name, *port)?);
                let timed = Timed { socket, end };
                if *with_tls {
                    Stream::Tls(Box::new(StreamOwned::new(tls(name)?, timed)))
                } else {
                    Stream::Plain(timed)
                }
            }
        };
        let mut wire = Self {
            stream: BufReader::with_capacity(STEP, stream),
        };
        if let Some(password) = &address.password {
            let login = [Some("AUTH"), address.user.as_deref(), Some(password)];
            let words = login.into_iter().flatten().map(str::as_bytes);
            wire.ask(&[&words.collect::<Vec<_>>()])?;
            wire.ok()?;
        }
        if address.number > 0 {
            let number = address.number.to_string();
            wire.ask(&[&[b"SELECT", number.as_bytes()]])?;
            wire.ok()?;
        }
        Ok(wire)
    }

    /// Sends commands, of some words each. Each has an answer.
    pub(super) fn ask(&mut self, commands: &[&[&[u8]]]) -> Result<()> {
        let words = commands.iter().flat_map(|words| words.iter());
        let bytes: usize = words.map(|word| word.len()).sum();
        let stream = self.stream.get_mut();
        stream.timed().end = Instant::now() + time_for(bytes as u64);
        let mut stream = BufWriter::with_capacity(STEP, stream);
        for words in commands {
            write!(stream, "*{}\r\n", words.len())?;
            for word in *words {
                write!(stream, "${}\r\n", word.len())?;
                stream.write_all(word)?;
                stream.write_all(b"\r\n")?;
            }
        }
        Ok(stream.flush()?)
    }

    /// The first line of the next answer: its kind, and the rest. All of the answer has so many bytes.
    fn begin(&mut self, most: u64) -> Result<(u8, Vec<u8>)> {
        self.stream.get_mut().timed().end = Instant::now() + time_for(most);
        self.line()
    }

    fn line(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut line = Vec::new();
        let mut some = self.stream.by_ref().take(LONGEST_LINE);
        some.read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(Fault::Io(ErrorKind::UnexpectedEof.into()));
        }
        if line.pop() != Some(b'\n') || line.pop() != Some(b'\r') || line.is_empty() {
            return Err(Fault::Nonsense);
        }
        let rest = line.split_off(1);
        if line == b"-" {
            return Err(Fault::Said(String::from_utf8_lossy(&rest).into_owned()));
        }
        Ok((line[0], rest))
    }

    /// A status.
    pub(super) fn ok(&mut self) -> Result<()> {
        match self.begin(0)? {
            (b'+', _) => Ok(()),
            // Of a SET that may do nothing.
            (b'$', size) if size == b"-1" => Ok(()),
            _ => Err(Fault::Nonsense),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        match self.begin(0)? {
            (b':', text) => number(&text),
            _ => Err(Fault::Nonsense),
        }
    }

    /// A value of at most so many bytes, if there is one.
    pub(super) fn value(&mut self, most: u64) -> Result<Option<Vec<u8>>> {
        let first = self.begin(most)?;
        self.rest_of_value(first, most)
    }

    fn rest_of_value(&mut self, first: (u8, Vec<u8>), most: u64) -> Result<Option<Vec<u8>>> {
        let size = match first {
            (b'$', size) if size == b"-1" => return Ok(None),
            (b'$', size) => number(&size)?,
            _ => return Err(Fault::Nonsense),
        };
        if size > most {
            return Err(Fault::TooLarge);
        }
        let mut bytes = Vec::new();
        let room = usize::try_from(size).map_err(|_| Fault::TooLarge)?;
        // The system gives it as it is filled.
        bytes.try_reserve_exact(room).map_err(|_| Fault::TooLarge)?;
        self.stream.by_ref().take(size).read_to_end(&mut bytes)?;
        let mut end = [0; 2];
        self.stream.read_exact(&mut end)?;
        if bytes.len() == room && end == *b"\r\n" {
            Ok(Some(bytes))
        } else {
            Err(Fault::Nonsense)
        }
    }

    /// At most so many values of at most so many bytes. One that is not there is empty.
    pub(super) fn values(&mut self, most: usize, longest: u64) -> Result<Vec<Vec<u8>>> {
        let count = match self.begin(most as u64 * longest)? {
            (b'*', count) => number(&count)?,
            _ => return Err(Fault::Nonsense),
        };
        if count > most as u64 {
            return Err(Fault::TooLarge);
        }
        let mut values = Vec::new();
        for _ in 0..count {
            let first = self.line()?;
            let value = self.rest_of_value(first, longest)?;
            values.push(value.unwrap_or_default());
        }
        Ok(values)
    }
}

fn number(text: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or(Fault::Nonsense)
}

fn time_for(bytes: u64) -> Duration {
    ANSWER + Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST)
}

fn connect(name: &str, port: u16) -> io::Result<TcpStream> {
    let mut error = io::Error::new(ErrorKind::NotFound, "its host name is not known");
    for at in (name, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&at, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(why) => error = why,
        }
    }
    Err(error)
}

fn tls(name: &str) -> Result<ClientConnection> {
    let other = |error: rustls::Error| Fault::Io(io::Error::other(error));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier)
        .map_err(other)?
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| io::Error::other("no certificate can name its host"))?;
    ClientConnection::new(Arc::new(config), name).map_err(other)
}
