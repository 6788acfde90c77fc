//! TCP and Unix sockets.

use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// At a port.
    Tcp(TcpListener),
    /// At a path.
    Unix(UnixListener),
}

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// To a port.
    Tcp(TcpStream),
    /// To a path.
    Unix(UnixStream),
}

/// The path of a Unix socket, to remove it later.
#[derive(Clone, Debug)]
pub struct Bound {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Why listening failed.
#[derive(Debug)]
pub enum BindError {
    /// Something else listens there.
    InUse,
    /// There is a file of another kind at the path.
    NotASocket,
    /// The system refused.
    Io(io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("it is in use"),
            Self::NotASocket => f.write_str("there is a file that is no socket"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for BindError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::InUse,
            _ => Self::Io(error),
        }
    }
}

impl Listener {
    /// Listens at an address.
    ///
    /// # Errors
    /// It is in use, or may not be used.
    pub fn tcp(address: SocketAddr) -> Result<Self, BindError> {
        Ok(Self::Tcp(TcpListener::bind(address)?))
    }

    /// Listens at a path, for this user alone (0600). A socket that nothing listens at any more, as a
    /// killed process leaves it, is replaced.
    ///
    /// The socket is created under another name, given its mode, and only then renamed to the path. So
    /// others can never connect, and a process that does the same at the same time loses only its own socket.
    ///
    /// # Errors
    /// Something else listens there, there is a file of another kind, or the system refuses.
    pub fn unix(path: &Path) -> Result<(Self, Bound), BindError> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket),
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(BindError::InUse),
            _ => {}
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let made = path.with_file_name(name);
        // Left by a process that had our process id and was killed here.
        let _ = fs::remove_file(&made);
        let listener = UnixListener::bind(&made)?;
        let placed = fs::set_permissions(&made, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&made, path))
            .and_then(|()| fs::symlink_metadata(path));
        match placed {
            Ok(file) => {
                let bound = Bound {
                    path: path.to_owned(),
                    device: file.dev(),
                    inode: file.ino(),
                };
                Ok((Self::Unix(listener), bound))
            }
            Err(error) => {
                let _ = fs::remove_file(&made);
                Err(BindError::Io(error))
            }
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// Those of `accept`.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    /// The address, with the port that was chosen.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

impl Bound {
    /// Removes the socket, unless another one is at its path by now.
    pub fn remove(&self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|file| (file.dev(), file.ino()) == (self.device, self.inode));
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Stream {
    /// The longest time of a read, and of a write. What is written to a TCP connection goes out at once:
    /// answers are written in one piece each.
    ///
    /// # Errors
    /// The connection has ended, or the time is 0.
    pub fn set_timeouts(&self, longest: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(longest))?;
                stream.set_write_timeout(Some(longest))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(longest))?;
                stream.set_write_timeout(Some(longest))
            }
        }
    }

    /// The longest time of a read.
    ///
    /// # Errors
    /// The connection has ended, or the time is 0.
    pub fn set_read_timeout(&self, longest: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(longest)),
            Self::Unix(stream) => stream.set_read_timeout(Some(longest)),
        }
    }

    /// The same connection once more.
    ///
    /// # Errors
    /// There are no file descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Ends reading, writing, or both, also for clones of this.
    ///
    /// # Errors
    /// The other side has ended the connection already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).read(buffer),
            Stream::Unix(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).write(bytes),
            Stream::Unix(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
