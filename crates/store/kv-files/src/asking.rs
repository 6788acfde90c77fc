//! Chunks that are not in the folder, and may be elsewhere: the process that keeps the folder and a remote alike is asked for
//! them, through a socket in the folder.
//!
//! ```text
//!  a server with a prompt                      `store sync` beside it
//!  Folder::ask ──── Wish: where, and which tokens follow ────► Door::wait
//!  Answers     ◄─── the name of each chunk that is there now ── Asker::tell
//! ```
//!
//! The asker waits for each answer as long as it likes, and no longer. If no process listens, it learns that at once.
//!
//! | bytes | of a wish |
//! |---|---|
//! | 1 | version: 2 |
//! | 16, 16 | fingerprint; link of the chain of names |
//! | 4 | tokens since that link that are there (all numbers are little-endian) |
//! | 16, 4 | the chunk before, and how many of its tokens are; 0: there is none |
//! | 4 | tokens since that link: how many |
//! | 1 | 1: the last tail behind some of them is wanted, too; else 0 |
//! | 4 each | which tokens |
//!
//! | bytes | of an answer; zeros behind the last one |
//! |---|---|
//! | 16, 4 | the chunk, and how many tokens it has |

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use contextpilot_kv_store::{Fingerprint, GRID, Name, Place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Dir, Stat, renameat, statat, unlinkat};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketType, bind, connect,
    listen, recv, send, shutdown,
};
use rustix::system::uname;

use crate::Folder;

/// How the socket's name in the folder begins.
const SOCKET: &str = "ask-";
/// Letters of a machine's name: with more than some 100 a socket can have no address.
const LONGEST_NAME: usize = 40;
const VERSION: u8 = 2;
/// All of a wish before its tokens, bytes.
const HEAD: usize = 1 + 16 + 16 + 4 + 16 + 4 + 4 + 1;
/// Of more tokens than that, the first are asked for.
const MOST_TOKENS: usize = 32 * GRID;
/// What a system is asked to keep of a wish that was not read yet, bytes: all of it.
const KEPT: usize = 2 * (HEAD + 4 * MOST_TOKENS);
/// How many may wait to be asked. An asker that comes when there are more is not heard.
const WAITING: i32 = 16;
/// The timeout of reading a wish, and of writing an answer.
const WISHED: Duration = Duration::from_secs(1);
/// What follows the last answer.
const END: [u8; 20] = [0; 20];
/// Sockets of machines that are gone are removed after that.
const OLD: Duration = Duration::from_secs(7 * 24 * 3600);
/// If the system has no more connections.
const PAUSE: Duration = Duration::from_millis(100);

/// The chunks that continue some tokens of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Behind the tokens that are there.
    pub place: Place,
    /// The chunk that stands before this place, and how many of its tokens do.
    pub parent: Option<(Name, u32)>,
    /// The tokens since the last multiple of [`GRID`] before it.
    pub tokens: Vec<i32>,
    /// The last tail that stands behind some of these tokens is of use, too. It comes behind the chunks.
    pub tail: bool,
}

impl Wish {
    fn write(&self) -> Vec<u8> {
        let tokens = &self.tokens[..self.tokens.len().min(MOST_TOKENS)];
        let mut bytes = Vec::with_capacity(HEAD + 4 * tokens.len());
        bytes.push(VERSION);
        bytes.extend(self.place.fingerprint.0);
        bytes.extend(self.place.link.0);
        bytes.extend((self.place.skip as u32).to_le_bytes());
        let (parent, take) = self.parent.unwrap_or((Name([0; 16]), 0));
        bytes.extend(parent.0);
        bytes.extend(take.to_le_bytes());
        bytes.extend((tokens.len() as u32).to_le_bytes());
        bytes.push(u8::from(self.tail));
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// `None`: it is none of this version.
    fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD];
        from.read_exact(&mut head)?;
        let sixteen = |at: usize| std::array::from_fn(|i| head[at + i]);
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i])) as usize;
        let (skip, take, count) = (number(33), number(53), number(57));
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
            parent: (take > 0).then_some((Name(sixteen(37)), take as u32)),
            tokens: tokens
                .map(|token| i32::from_le_bytes([0, 1, 2, 3].map(|i| token[i])))
                .collect(),
            tail: head[61] == 1,
        }))
    }
}

impl Folder {
    /// Asks for chunks. `None`: no process can be asked. Does not wait.
    pub fn ask(&self, wish: &Wish) -> Option<Answers> {
        let socket = self.connect().ok()?;
        let bytes = wish.write();
        let sent = send(&socket, &bytes, quietly(&socket)).ok()?;
        (sent == bytes.len()).then_some(Answers { socket })
    }

    fn connect(&self) -> Result<OwnedFd, Errno> {
        let socket = open()?;
        ioctl_fionbio(&socket, true)?;
        set_socket_send_buffer_size(&socket, KEPT)?;
        self.at_socket(&name(), |address| connect(&socket, address))?;
        Ok(socket)
    }

    /// Does something with the socket's address. The name of a socket may have 100 bytes or so, and that of a folder more.
    fn at_socket<T>(
        &self,
        name: &str,
        work: impl FnOnce(&SocketAddrUnix) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let private = self.private();
        let path: PathBuf = if cfg!(target_os = "linux") {
            format!("/proc/self/fd/{}", private.as_fd().as_raw_fd()).into()
        } else {
            self.inside()
        };
        work(&SocketAddrUnix::new(path.join(name))?)
    }
}

/// The socket's name. Another machine with the same folder has a socket of its own.
fn name() -> String {
    let system = uname();
    let machine = system.nodename().to_string_lossy();
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-.".contains(*letter);
    let plain = machine.chars().filter(is_plain).take(LONGEST_NAME);
    SOCKET.chars().chain(plain).collect()
}

/// A socket that processes which this one starts do not get.
#[cfg(target_os = "linux")]
fn open() -> Result<OwnedFd, Errno> {
    use rustix::net::{SocketFlags, socket_with};

    let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
    socket_with(unix, stream, SocketFlags::CLOEXEC, None)
}

/// See above.
#[cfg(not(target_os = "linux"))]
fn open() -> Result<OwnedFd, Errno> {
    use rustix::io::{FdFlags, fcntl_setfd};

    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
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

/// The answers to a wish. A caller that wants no more drops this.
#[derive(Debug)]
pub struct Answers {
    socket: OwnedFd,
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedChunk {
    /// This chunk of so many tokens is in the folder now. It continues the one before.
    There(Name, usize),
    /// There are no more.
    End,
    /// No answer came in time.
    Late,
}

impl Answers {
    /// Waits for the next answer until this time. After a late answer, the caller is not to ask again.
    pub fn next(&mut self, end: Instant) -> AskedChunk {
        let mut answer = END;
        let mut count = 0;
        while count < answer.len() {
            match recv(&self.socket, &mut answer[count..], RecvFlags::empty()) {
                Ok((_, 0)) => return AskedChunk::End,
                Ok((_, read)) => count += read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match end.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => self.wait(left),
                    _ => return AskedChunk::Late,
                },
                Err(_) => return AskedChunk::End,
            }
        }
        if answer == END {
            return AskedChunk::End;
        }
        let name = std::array::from_fn(|i| answer[i]);
        let tokens = u32::from_le_bytes(std::array::from_fn(|i| answer[16 + i]));
        AskedChunk::There(Name(name), tokens as usize)
    }

    fn wait(&self, longest: Duration) {
        let longest = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        // The caller looks at the socket and the time again.
        let _ = poll(&mut polled, Some(&longest));
    }
}

/// Where the process that has chunks elsewhere is asked for them.
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
        // A process that has no time is there, too.
        if matches!(folder.connect(), Ok(_) | Err(Errno::AGAIN)) {
            return Ok(None);
        }
        remove_old(folder);
        // Under a name of its own first: a process that opens one at the same moment does not take the other's for its own.
        let (name, own) = (name(), format!("{}.{}", name(), std::process::id()));
        let private = folder.private();
        let _ = unlinkat(&*private, &own, AtFlags::empty());
        let socket = open()?;
        folder.at_socket(&own, |address| bind(&socket, address))?;
        listen(&socket, WAITING)?;
        let file = file(folder, &own)?;
        renameat(&*private, &own, &*private, &name)?;
        Ok(Some(Self {
            file,
            folder: folder.clone(),
            listener: socket.into(),
        }))
    }

    /// Whether this is still the door of the folder: another process may have opened one at the same moment, or the folder
    /// may have been made anew.
    pub fn is_open(&self) -> bool {
        file(&self.folder, &name()).is_ok_and(|file| file == self.file)
    }

    /// No asker is heard any more, and a thread that [waits](Self::wait) is told.
    pub fn close(&self) {
        if self.is_open() {
            let _ = unlinkat(&*self.folder.private(), name(), AtFlags::empty());
        }
        let _ = shutdown(&self.listener, Shutdown::Both);
    }

    /// Waits for the next wish.
    ///
    /// # Errors
    /// The door is closed.
    pub fn wait(&self) -> io::Result<Asker> {
        loop {
            match self.listener.accept() {
                // A process that connects and says nothing only looks whether a door is open.
                Ok((stream, _)) => {
                    if let Ok(Some(asker)) = Asker::new(stream) {
                        return Ok(asker);
                    }
                }
                Err(error) if !self.is_open() => return Err(error),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}

/// Machines in containers have another name each time.
fn remove_old(folder: &Folder) {
    let private = folder.private();
    let Ok(entries) = Dir::read_from(&*private) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let there = statat(&*private, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_old = |there: Stat| {
            let since = UNIX_EPOCH + Duration::from_secs(there.st_mtime.try_into().unwrap_or(0));
            since.elapsed().is_ok_and(|age| age > OLD)
        };
        if name.to_bytes().starts_with(SOCKET.as_bytes()) && there.is_ok_and(is_old) {
            // If a process listens there, it opens its door again.
            let _ = unlinkat(&*private, name, AtFlags::empty());
        }
    }
}

fn file(folder: &Folder, name: &str) -> io::Result<(u64, u64)> {
    let there = statat(&*folder.private(), name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((there.st_dev as u64, there.st_ino))
}

/// A process that asks.
#[derive(Debug)]
pub struct Asker {
    stream: UnixStream,
    /// What it asks for.
    pub wish: Wish,
}

impl Asker {
    fn new(mut stream: UnixStream) -> io::Result<Option<Self>> {
        stream.set_read_timeout(Some(WISHED))?;
        stream.set_write_timeout(Some(WISHED))?;
        let wish = Wish::read(&mut stream)?;
        Ok(wish.map(|wish| Self { stream, wish }))
    }

    /// Whether the asker no longer waits for an answer.
    #[must_use]
    pub fn has_left(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        !matches!(
            recv(&self.stream, &mut [0][..], flags),
            Err(Errno::AGAIN | Errno::INTR)
        )
    }

    /// This chunk of so many tokens is in the folder now.
    ///
    /// # Errors
    /// The asker waits no more.
    pub fn tell(&mut self, name: &Name, tokens: usize) -> io::Result<()> {
        let mut answer = END;
        answer[..16].copy_from_slice(&name.0);
        answer[16..].copy_from_slice(&(tokens as u32).to_le_bytes());
        self.stream.write_all(&answer)
    }

    /// There are no more.
    pub fn end(mut self) {
        // Else it finds that out when the connection is closed.
        let _ = self.stream.write_all(&END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn long() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn wish(tokens: usize) -> Wish {
        Wish {
            place: Place {
                skip: 3,
                ..Place::first(Fingerprint([5; 16]))
            },
            parent: (tokens % 2 == 0).then_some((Name([9; 16]), 3)),
            tokens: (0..tokens as i32).map(|token| token - 7).collect(),
            tail: tokens % 2 == 1,
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
            assert_eq!(answers.next(short()), AskedChunk::Late);
            let mut asker = door.wait().unwrap();
            let mut asked = wish(tokens);
            asked.tokens.truncate(MOST_TOKENS);
            assert_eq!(asker.wish, asked);
            assert!(!asker.has_left());
            asker.tell(&Name([1; 16]), 7).unwrap();
            asker.tell(&Name([2; 16]), GRID).unwrap();
            assert_eq!(answers.next(long()), AskedChunk::There(Name([1; 16]), 7));
            assert_eq!(answers.next(long()), AskedChunk::There(Name([2; 16]), GRID));
            asker.end();
            assert_eq!(answers.next(long()), AskedChunk::End);
            assert_eq!(answers.next(long()), AskedChunk::End);
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
        other_version[0] = 1;
        let mut too_many = wish(2).write();
        too_many[57..61].fill(255);
        let mut too_far = wish(2).write();
        too_far[33..37].copy_from_slice(&(GRID as u32).to_le_bytes());
        let questions = [&other_version[..], &too_many, &too_far, b"GET / HTTP/1.1"];
        let strangers = questions.map(say);
        drop(strangers);
        let asks = thread::spawn({
            let folder = folder.clone();
            move || folder.ask(&wish(2)).unwrap().next(long())
        });
        let asker = door.wait().unwrap();
        assert_eq!(asker.wish, wish(2));
        let other = folder.ask(&wish(1)).unwrap();
        let left = door.wait().unwrap();
        assert!(!left.has_left());
        drop(other);
        assert!(left.has_left());
        asker.end();
        assert_eq!(asks.join().unwrap(), AskedChunk::End);
    }

    /// Containers have another name each time.
    #[test]
    #[cfg(target_os = "linux")]
    fn sockets_of_machines_that_are_long_gone_are_removed() {
        let (_outer, folder) = folder();
        let day = Duration::from_secs(24 * 3600);
        let age = |name: &str, days: u32| {
            let path = folder.inside().join(name);
            let file = std::fs::File::create(&path).unwrap();
            file.set_modified(std::time::SystemTime::now() - day * days)
                .unwrap();
            path
        };
        let [gone, young, other] =
            [("ask-gone", 8), ("ask-young", 6), ("other", 8)].map(|(name, days)| age(name, days));
        let _door = Door::open(&folder).unwrap().unwrap();
        assert!(!gone.exists() && young.exists() && other.exists());
    }
}
