//! A log beside the chunks: what servers have answered, for those that use the folder later.
//!
//! Every process appends whole records. A process that finds the log too long writes it anew. A lock keeps both apart; the file
//! system gives it back if a process is killed.

use std::fs::File;
use std::io::{self, Read, Write};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::Folder;
use crate::folder::NEW;
use crate::writer::put;

/// The inner folder.
const ANSWERS: &str = "answers";
const LOG: &str = "log";

/// A log that is longer is written anew, bytes.
const LONGEST: u64 = 16 << 20;

impl Folder {
    /// All of the log; less, if it was made longer than it may be.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn answers(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.open_log(OFlags::RDWR)?;
        file.take(4 * LONGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Appends a record.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn append_answer(&self, record: &[u8]) -> io::Result<()> {
        let (_lock, mut file) = self.lock_log(OFlags::WRONLY | OFlags::APPEND)?;
        file.write_all(record)
    }

    /// Writes the log anew if it is too long. `shorter` makes one of all.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn shorten_answers(&self, shorter: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<()> {
        let (_lock, file) = self.lock_log(OFlags::RDWR)?;
        if file.metadata()?.len() <= LONGEST {
            return Ok(());
        }
        let mut all = Vec::new();
        file.take(4 * LONGEST).read_to_end(&mut all)?;
        let new = self.inner(NEW)?;
        let to = format!("{ANSWERS}/{LOG}");
        put(
            self,
            &mut 0,
            &new,
            |file| file.write_all(&shorter(&all)),
            &to,
        )
    }

    fn open_log(&self, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let inner = self.inner(ANSWERS)?;
        let file = rustix::fs::openat(&inner, LOG, flags, Mode::RUSR | Mode::WUSR)?;
        let file = File::from(file);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// The log, which no other process writes to while the lock is there. The lock is the inner folder's, because the log may
    /// be another file when it is free.
    fn lock_log(&self, flags: OFlags) -> io::Result<(File, File)> {
        let lock = File::from(self.inner(ANSWERS)?);
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok((lock, self.open_log(flags)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_appended_and_a_long_log_is_written_anew() {
        let at = tempfile::tempdir().unwrap();
        let folder = Folder::open(at.path()).unwrap();
        let other = Folder::open(at.path()).unwrap();
        assert_eq!(folder.answers().unwrap(), b"");
        folder.append_answer(b"one").unwrap();
        other.append_answer(b" two").unwrap();
        folder
            .shorten_answers(|_| unreachable!("it is short"))
            .unwrap();
        assert_eq!(other.answers().unwrap(), b"one two");
        folder.append_answer(&vec![b'x'; 16 << 20]).unwrap();
        other.shorten_answers(|all| all[..7].to_vec()).unwrap();
        assert_eq!(folder.answers().unwrap(), b"one two");
        folder.append_answer(b" three").unwrap();
        assert_eq!(other.answers().unwrap(), b"one two three");
    }
}
