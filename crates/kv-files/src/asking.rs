//! Chunks that are not in the folder, and may be elsewhere: whoever keeps the folder and a remote alike is asked for
//! them, through a socket in the folder.
//!
//! ```text
//!  whoever has a prompt                        whoever keeps the folder alike
//!  Folder::ask ──── Wish: where, and which tokens follow ────► Door::wait
//!  Answers     ◄─── the name of each chunk that is there now ── Asker::tell
//! ```
//!
//! Whoever asks waits for each answer as long as it likes, and no longer. If nobody listens, it learns that at once.
//!
//! | bytes | of a wish |
//! |---|---|
//! | 1 | version: 1 |
//! | 16, 16 | fingerprint; link of the chain of names |
//! | 4 | tokens since that link that are there (all numbers are little-endian) |
//! | 4, 4 each | tokens since that link: how many, and which |
//!
//! An answer has 16 bytes, and zeros behind the last one.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use contextpilot_kv_store::{Fingerprint, GRID, Name, Place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::AtFlags;
use rustix::io::{Errno, FdFlags, fcntl_setfd, ioctl_fionbio};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketType, bind, connect,
    listen, recv, send, shutdown, socket,
};
use rustix::system::uname;

use crate::Folder;

/// How the socket's name in the folder begins.
const SOCKET: &str = "ask-";
/// Letters of a machine's name: with more than some 100 a socket can have no address.
const LONGEST_NAME: usize = 40;
const VERSION: u8 = 1;
/// Version, fingerprint, link and two numbers, bytes.
const HEAD: usize = 1 + 16 + 16 + 4 + 4;
/// Of more tokens than that, the first are asked for. They fit into what a system keeps of a socket.
const MOST_TOKENS: usize = 64 * GRID;
/// How many may wait to be asked. Who comes when there are more is not heard.
const WAITING: i32 = 16;
/// A wish comes at once, or from somebody else.
const WISHED: Duration = Duration::from_secs(1);
/// Behind the last answer.
const END: [u8; 16] = [0; 16];

/// The chunks that continue some tokens of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Behind the tokens that are there.
    pub place: Place,
    /// The tokens since the last multiple of [`GRID`] before it.
    pub tokens: Vec<i32>,
}

impl Wish {
    fn write(&self) -> Vec<u8> {
        let tokens = &self.tokens[..self.tokens.len().min(MOST_TOKENS)];
        let mut bytes = Vec::with_capacity(HEAD + 4 * tokens.len());
        bytes.push(VERSION);
        bytes.extend(self.place.fingerprint.0);
        bytes.extend(self.place.link.0);
        bytes.extend((self.place.skip as u32).to_le_bytes());
        bytes.extend((tokens.len() as u32).to_le_bytes());
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// `None`: it is none of this version.
    fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD];
        from.read_exact(&mut head)?;
        let sixteen = |at: usize| std::array::from_fn(|i| head[at + i]);
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i])) as usize;
        let (skip, count) = (number(33), number(37));
        if head[0] != VERSION || skip >= GRID || count > MOST_TOKENS {
            return Ok(None);
        }
        let mut bytes = vec![0; 4 * count];
        from.read_exact(&mut bytes)?;
        let tokens = bytes.chunks_exact(4);
        Ok(Some(Self {
            place: Place {
                fingerprint: Fingerprint(sixteen(1)),
                link: Name(sixteen(17)),
                skip,
            },
            tokens: tokens
                .map(|token| i32::from_le_bytes([0, 1, 2, 3].map(|i| token[i])))
                .collect(),
        }))
    }
}

impl Folder {
    /// Asks for chunks. `None`: nobody can be asked. Waits for nobody.
    pub fn ask(&self, wish: &Wish) -> Option<Answers> {
        let socket = self.connect().ok()?;
        let bytes = wish.write();
        let sent = send(&socket, &bytes, quietly(&socket)).ok()?;
        (sent == bytes.len()).then_some(Answers { socket })
    }

    fn connect(&self) -> Result<OwnedFd, Errno> {
        let socket = open()?;
        ioctl_fionbio(&socket, true)?;
        self.at_socket(|address| connect(&socket, address))?;
        Ok(socket)
    }

    /// Does something with the socket's address. The name of a socket may have 100 bytes or so, and that of a folder more.
    fn at_socket<T>(
        &self,
        work: impl FnOnce(&SocketAddrUnix) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let private = self.private();
        let path: PathBuf = match cfg!(target_os = "linux") {
            true => format!("/proc/self/fd/{}", private.as_fd().as_raw_fd()).into(),
            false => self.inside(),
        };
        work(&SocketAddrUnix::new(path.join(name()))?)
    }
}

/// The socket's name. Another machine with the same folder has a socket of its own.
fn name() -> String {
    let machine = uname();
    let machine = machine.nodename().to_string_lossy();
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-.".contains(*letter);
    let machine = machine.chars().filter(is_plain).take(LONGEST_NAME);
    SOCKET.chars().chain(machine).collect()
}

/// A socket that processes which this one starts do not get.
fn open() -> Result<OwnedFd, Errno> {
    let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}

/// How to send without a signal if the other side has left.
#[cfg(not(target_vendor = "apple"))]
fn quietly(_socket: &OwnedFd) -> SendFlags {
    SendFlags::NOSIGNAL
}

/// See above.
#[cfg(target_vendor = "apple")]
fn quietly(socket: &OwnedFd) -> SendFlags {
    let _ = rustix::net::sockopt::set_socket_nosigpipe(socket, true);
    SendFlags::empty()
}

/// The answers to a wish. Whoever wants no more drops this.
#[derive(Debug)]
pub struct Answers {
    socket: OwnedFd,
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This chunk is in the folder now. It continues the one before.
    There(Name),
    /// There are no more.
    End,
    /// No answer came in time.
    Late,
}

impl Answers {
    /// Waits for the next answer, at most so long.
    pub fn next(&mut self, longest: Duration) -> Answer {
        let end = Instant::now() + longest;
        let mut name = END;
        let mut count = 0;
        while count < name.len() {
            match recv(&self.socket, &mut name[count..], RecvFlags::empty()) {
                Ok((_, 0)) => return Answer::End,
                Ok((_, read)) => count += read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match end.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => self.wait(left),
                    _ => return Answer::Late,
                },
                Err(_) => return Answer::End,
            }
        }
        match name == END {
            true => Answer::End,
            false => Answer::There(Name(name)),
        }
    }

    fn wait(&self, longest: Duration) {
        let longest = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        // Whoever calls looks at the socket and the time again.
        let _ = poll(&mut polled, Some(&longest));
    }
}

/// Where whoever has chunks elsewhere is asked for them.
#[derive(Debug)]
pub struct Door {
    folder: Folder,
    listener: UnixListener,
    /// The socket's file.
    file: (u64, u64),
}

impl Door {
    /// Opens the door of a folder. `None`: another process has done so.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(folder: &Folder) -> io::Result<Option<Self>> {
        // Somebody who has no time is there, too.
        if matches!(folder.connect(), Ok(_) | Err(Errno::AGAIN)) {
            return Ok(None);
        }
        match rustix::fs::unlinkat(&*folder.private(), name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = open()?;
        folder.at_socket(|address| bind(&socket, address))?;
        listen(&socket, WAITING)?;
        Ok(Some(Self {
            file: file(folder)?,
            folder: folder.clone(),
            listener: socket.into(),
        }))
    }

    /// Whether this is still the door of the folder: another process may have opened one at the same moment, or the folder
    /// may have been made anew.
    pub fn is_open(&self) -> bool {
        file(&self.folder).is_ok_and(|file| file == self.file)
    }

    /// Nobody is heard any more, and whoever [waits](Self::wait) is told.
    pub fn close(&self) {
        if self.is_open() {
            let _ = rustix::fs::unlinkat(&*self.folder.private(), name(), AtFlags::empty());
        }
        let _ = shutdown(&self.listener, Shutdown::Both);
    }

    /// Waits for the next wish.
    ///
    /// # Errors
    /// The door is closed, or the system gives no more connections.
    pub fn wait(&self) -> io::Result<Asker> {
        loop {
            let (mut stream, _) = self.listener.accept()?;
            stream.set_read_timeout(Some(WISHED))?;
            stream.set_write_timeout(Some(WISHED))?;
            // Whoever knocks and says nothing only looks whether somebody is there.
            if let Ok(Some(wish)) = Wish::read(&mut stream) {
                return Ok(Asker { stream, wish });
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}

fn file(folder: &Folder) -> io::Result<(u64, u64)> {
    let there = rustix::fs::statat(&*folder.private(), name(), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((there.st_dev as u64, there.st_ino))
}

/// Somebody who asks.
#[derive(Debug)]
pub struct Asker {
    stream: UnixStream,
    /// What for.
    pub wish: Wish,
}

impl Asker {
    /// This chunk is in the folder now.
    ///
    /// # Errors
    /// Nobody waits any more.
    pub fn tell(&mut self, name: &Name) -> io::Result<()> {
        self.stream.write_all(&name.0)
    }

    /// There are no more.
    pub fn end(mut self) {
        // Else it finds that out when the connection is closed.
        let _ = self.stream.write_all(&END);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    fn wish(tokens: usize) -> Wish {
        Wish {
            place: Place {
                skip: 3,
                ..Place::first(Fingerprint([5; 16]))
            },
            tokens: (0..tokens as i32).map(|token| token - 7).collect(),
        }
    }

    /// A folder with a name that no socket may have.
    fn folder() -> (tempfile::TempDir, Folder) {
        let outer = tempfile::tempdir().unwrap();
        let long = outer.path().join("x".repeat(120)).join("y".repeat(120));
        std::fs::create_dir_all(&long).unwrap();
        let folder = Folder::open(&long).unwrap();
        (outer, folder)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn who_asks_is_told_until_there_is_no_more() {
        let (_outer, folder) = folder();
        assert!(folder.ask(&wish(9)).is_none(), "nobody is there");
        let door = Door::open(&folder).unwrap().unwrap();
        assert!(Door::open(&folder).unwrap().is_none(), "somebody is");
        for tokens in [0, 9, MOST_TOKENS, MOST_TOKENS + 1] {
            let mut answers = folder.ask(&wish(tokens)).unwrap();
            assert_eq!(answers.next(SHORT), Answer::Late);
            let mut asker = door.wait().unwrap();
            assert_eq!(asker.wish, wish(tokens.min(MOST_TOKENS)));
            asker.tell(&Name([1; 16])).unwrap();
            asker.tell(&Name([2; 16])).unwrap();
            assert_eq!(answers.next(LONG), Answer::There(Name([1; 16])));
            assert_eq!(answers.next(LONG), Answer::There(Name([2; 16])));
            asker.end();
            assert_eq!(answers.next(LONG), Answer::End);
            assert_eq!(answers.next(LONG), Answer::End);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn nobody_waits_for_a_process_that_does_not_listen() {
        let (_outer, folder) = folder();
        let door = Door::open(&folder).unwrap().unwrap();
        let asked: Vec<_> = (0..100).map(|_| folder.ask(&wish(1))).collect();
        assert!(asked.iter().any(Option::is_none), "all were heard");
        drop(asked);
        let file = folder.inside().join(name());
        assert!(file.exists());
        drop(door);
        assert!(!file.exists() && folder.ask(&wish(1)).is_none());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_door_that_nobody_closed_is_opened_again() {
        let (_outer, folder) = folder();
        let killed = Door::open(&folder).unwrap().unwrap();
        let listener = killed.listener.try_clone().unwrap();
        std::mem::forget(killed);
        assert!(Door::open(&folder).unwrap().is_none());
        // As the system does when a process ends; the forgotten one's own descriptor stays open.
        shutdown(&listener, Shutdown::Both).unwrap();
        let door = Door::open(&folder).unwrap().unwrap();
        assert!(door.is_open());
        std::fs::remove_dir_all(folder.path().join("v1")).unwrap();
        assert!(!door.is_open());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn other_words_are_not_wishes() {
        let (_outer, folder) = folder();
        let door = Door::open(&folder).unwrap().unwrap();
        let say = |bytes: &[u8]| {
            let socket = folder.connect().unwrap();
            send(&socket, bytes, quietly(&socket)).unwrap();
            socket
        };
        let mut other_version = wish(2).write();
        other_version[0] = 2;
        let mut too_many = wish(2).write();
        too_many[37..41].fill(255);
        let mut too_far = wish(2).write();
        too_far[33..37].copy_from_slice(&(GRID as u32).to_le_bytes());
        let strangers = [&other_version[..], &too_many, &too_far, b"GET / HTTP/1.1"];
        let strangers = strangers.map(say);
        drop(strangers);
        let asks = thread::spawn({
            let folder = folder.clone();
            move || folder.ask(&wish(2)).unwrap().next(LONG)
        });
        let asker = door.wait().unwrap();
        assert_eq!(asker.wish, wish(2));
        asker.end();
        assert_eq!(asks.join().unwrap(), Answer::End);
    }
}
