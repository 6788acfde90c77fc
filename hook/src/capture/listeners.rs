//! Keeps on which sockets the server listens, and says where that is.
//!
//! Sockets on which we listen ourselves are not among them: our library's calls lead to the system
//! directly. The end of a socket is not seen, because `close` is not hooked. Instead, a socket is
//! known by its inode, which no other socket has. A descriptor that was closed, or belongs to
//! something else by now, has none or another one.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::base::bounds::LISTENERS;

struct Cell {
    descriptor: AtomicI32,
    /// The socket's inode. Zero: this cell is free.
    inode: AtomicU64,
}

#[allow(clippy::declare_interior_mutable_const)]
const FREE: Cell = Cell {
    descriptor: AtomicI32::new(-1),
    inode: AtomicU64::new(0),
};
static CELLS: [Cell; LISTENERS] = [FREE; LISTENERS];

/// The server listens on this socket.
pub(crate) fn listens(socket: i32) {
    let Some(inode) = duplicate(socket).and_then(|socket| inode(&File::from(socket))) else {
        return;
    };
    // A server has a few listeners in its life, one after the other.
    let cell = CELLS.iter().find(|cell| cell.socket().is_none());
    if let Some(cell) = cell {
        cell.descriptor.store(socket, Ordering::Relaxed);
        cell.inode.store(inode, Ordering::Release);
    }
}

/// Where the server listens now, each as a URL. `tls`: it speaks TLS.
pub(crate) fn now(tls: bool) -> Vec<String> {
    let sockets = CELLS.iter().filter_map(Cell::socket);
    sockets.filter_map(|socket| url(socket, tls)).collect()
}

impl Cell {
    /// The socket, if it still exists.
    fn socket(&self) -> Option<OwnedFd> {
        let known = self.inode.load(Ordering::Acquire);
        let file = File::from(match known {
            0 => return None,
            _ => duplicate(self.descriptor.load(Ordering::Relaxed))?,
        });
        (inode(&file) == Some(known)).then(|| OwnedFd::from(file))
    }
}

/// A descriptor of our own for the same socket, so that the server may close its own meanwhile.
fn duplicate(descriptor: i32) -> Option<OwnedFd> {
    // SAFETY: any number may be given; one that is no descriptor is refused.
    let ours = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: a new descriptor, which no other code owns.
    (ours >= 0).then(|| unsafe { OwnedFd::from_raw_fd(ours) })
}

fn inode(socket: &File) -> Option<u64> {
    socket.metadata().ok().map(|facts| facts.ino())
}

fn url(socket: OwnedFd, tls: bool) -> Option<String> {
    let socket = match TcpListener::from(socket) {
        tcp if tcp.local_addr().is_ok() => {
            let scheme = if tls { "https" } else { "http" };
            return Some(format!("{scheme}://{}", tcp.local_addr().ok()?));
        }
        other => OwnedFd::from(other),
    };
    let address = UnixListener::from(socket).local_addr().ok()?;
    #[cfg(target_os = "linux")]
    if let Some(name) = address.as_abstract_name() {
        return Some(format!("unix:@{}", String::from_utf8_lossy(name)));
    }
    // The server may have been given a relative path.
    let path = std::path::absolute(address.as_pathname()?).ok()?;
    Some(format!("unix:{}", Path::display(&path)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_socket_is_named_until_it_is_closed_and_its_descriptor_may_be_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("here.sock");
        let (tcp, unix) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            UnixListener::bind(&path).unwrap(),
        );
        listens(tcp.as_raw_fd());
        listens(unix.as_raw_fd());
        let address = tcp.local_addr().unwrap();
        let local = format!("unix:{}", path.display());
        assert_eq!(now(false), [format!("http://{address}"), local.clone()]);
        assert_eq!(now(true), [format!("https://{address}"), local.clone()]);

        // The server closes its socket, and its number is given to another one.
        let ours: Vec<_> = (0..2 * LISTENERS)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        // SAFETY: both are descriptors of this test's.
        assert!(unsafe { libc::dup2(ours[0].as_raw_fd(), tcp.as_raw_fd()) } >= 0);
        assert_eq!(tcp.local_addr().unwrap(), ours[0].local_addr().unwrap());
        assert_eq!(now(false), std::slice::from_ref(&local));
        drop(tcp);
        assert_eq!(now(false), [local]);

        drop(unix);
        listens(-1);
        assert!(now(false).is_empty());
        // More than there is room for.
        ours.iter().for_each(|socket| listens(socket.as_raw_fd()));
        assert_eq!(now(false).len(), LISTENERS);
        drop(ours);
        let again = TcpListener::bind("127.0.0.1:0").unwrap();
        listens(again.as_raw_fd());
        assert_eq!(now(false).len(), 1);
    }
}
