//! What stands in the folder beside the chunks: names and origins of models, which prompts are kept, how a remote is
//! kept alike, and what servers have answered.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime};

use contextpilot_kv_store::{Fingerprint, MOST_KEPT, Name, Origin};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};

use crate::folder::{Folder, NEW, open_to_read, put};
use crate::list::folders;

/// Where the names of models are.
const MODELS: &str = "models";
/// More of a name is not read, bytes.
const LONGEST_NAME: u64 = 4096;
/// Where origins are.
const ORIGINS: &str = "origins";
/// More of an origin is not read, bytes.
const LONGEST_ORIGIN: u64 = 1 << 20;
/// Where prompts that are kept are written down: a file for each, with the name of the chunk that the prompt ends in.
const KEPT: &str = "kept";
/// More of such a file is not read, bytes.
const LONGEST_TIME: u64 = 32;
/// Where the process that keeps the folder and a remote alike says how that goes.
const REMOTE: &str = "remote";
/// More of that is not read, bytes.
const LONGEST_NOTE: u64 = 16 << 10;
/// The inner folder of the log of answers.
const ANSWERS: &str = "answers";
const LOG: &str = "log";
/// A log that is longer is written anew, bytes.
const LONGEST_LOG: u64 = 16 << 20;

/// Where the origin of chunks with this fingerprint is.
pub(crate) fn origin_path(fingerprint: &Fingerprint) -> String {
    format!("{ORIGINS}/{fingerprint}")
}

/// Where a model's name is.
pub(crate) fn model_path(fingerprint: &Fingerprint) -> String {
    format!("{MODELS}/{fingerprint}")
}

/// Of which models the folder has KV: the fingerprint of a chunk tells a person nothing.
impl Folder {
    /// How people call the model with this fingerprint, as the server that wrote its first chunk said. `None`:
    /// no server did.
    pub fn model_name(&self, fingerprint: &Fingerprint) -> Option<String> {
        let file = open_to_read(&*self.private(), &model_path(fingerprint)).ok()?;
        let mut name = String::new();
        let read = file.take(LONGEST_NAME).read_to_string(&mut name);
        (read.is_ok() && !name.is_empty()).then_some(name)
    }

    /// Of what the fingerprint was made, as the server that used it last said. `None`: an older program has
    /// written it, or it says something else.
    pub fn origin(&self, fingerprint: &Fingerprint) -> Option<Origin> {
        let (bytes, _) = self.origin_bytes(fingerprint)?;
        let origin = Origin::decode(&bytes)?;
        (origin.fingerprint == *fingerprint).then_some(origin)
    }

    /// What is written down of a fingerprint, and when that was.
    fn origin_bytes(&self, fingerprint: &Fingerprint) -> Option<(Vec<u8>, SystemTime)> {
        let file = open_to_read(&*self.private(), &origin_path(fingerprint)).ok()?;
        let written = file.metadata().ok()?.modified().ok()?;
        let mut bytes = Vec::new();
        file.take(LONGEST_ORIGIN).read_to_end(&mut bytes).ok()?;
        Some((bytes, written))
    }

    /// What an older version wrote down with secrets in it: what of that may be written down, and when it was. `None` inside:
    /// nothing, for it is damaged.
    pub(crate) fn origins_with_secrets(
        &self,
    ) -> impl Iterator<Item = (Fingerprint, Option<Origin>, SystemTime)> + '_ {
        let all = self.fingerprints_in(ORIGINS).into_iter();
        all.filter_map(|of| {
            let (bytes, written) = self.origin_bytes(&of)?;
            Origin::has_secrets(&bytes).then(|| (of, self.origin(&of), written))
        })
    }

    /// The origins of all models that servers have used the folder for.
    pub fn origins(&self) -> Vec<Origin> {
        let all = self.fingerprints_in(ORIGINS);
        all.iter()
            .filter_map(|fingerprint| self.origin(fingerprint))
            .collect()
    }

    /// Those that were written down within this time, the last one first. Servers do that every few hours for what they
    /// use.
    pub fn origins_within(&self, time: Duration) -> Vec<Origin> {
        let all = self.fingerprints_in(ORIGINS).into_iter();
        let aged = all
            .filter_map(|fingerprint| Some((self.age(&origin_path(&fingerprint))?, fingerprint)));
        let mut young: Vec<_> = aged.filter(|(age, _)| *age < time).collect();
        young.sort_unstable();
        let all = young.iter();
        all.filter_map(|(_, fingerprint)| self.origin(fingerprint))
            .collect()
    }

    /// When an origin was last written down or removed. `None`: there is none.
    pub fn origins_changed(&self) -> Option<SystemTime> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&*self.private(), ORIGINS, flags, Mode::empty()).ok()?;
        File::from(folder).metadata().ok()?.modified().ok()
    }

    /// Removes what was written down of fingerprints of which there is no chunk, and returns how many files that were. A
    /// client makes as many fingerprints as it likes, with scales of adapters. `is_used`: there is a chunk. What is
    /// younger than a day stays: another process may be about to write its first chunk, on a machine with another clock.
    pub fn forget_unused(&self, is_used: impl Fn(&Fingerprint) -> bool) -> usize {
        const LONG: Duration = Duration::from_secs(24 * 3600);
        let mut removed = 0;
        for (folder, path) in [
            (MODELS, model_path as fn(&Fingerprint) -> String),
            (ORIGINS, origin_path),
        ] {
            for fingerprint in self.fingerprints_in(folder) {
                let path = path(&fingerprint);
                if !is_used(&fingerprint) && self.age(&path).is_some_and(|age| age > LONG) {
                    let gone = rustix::fs::unlinkat(&*self.private(), path, AtFlags::empty());
                    removed += usize::from(gone.is_ok());
                }
            }
        }
        removed
    }

    /// The fingerprints that have a file in this inner folder.
    fn fingerprints_in(&self, folder: &str) -> Vec<Fingerprint> {
        self.names_in(folder)
            .map(|name| Fingerprint(name.0))
            .collect()
    }

    /// How long ago a file was written; nothing, if that was in the future. `None`: it is gone.
    fn age(&self, path: &str) -> Option<Duration> {
        let file = open_to_read(&*self.private(), path).ok()?;
        let written = file.metadata().ok()?.modified().ok()?;
        Some(written.elapsed().unwrap_or_default())
    }
}

/// Which prompts are kept on request: for other processes, the next one, and people.
impl Folder {
    /// The prompt that ends in this chunk is kept until this time, in nanoseconds since 1970.
    ///
    /// # Errors
    /// The system refuses.
    pub fn keep(&self, end: &Name, until: u64) -> io::Result<()> {
        self.closed()?;
        // Half of a number is another time: it is written whole before it has its name.
        let new = self.inner(NEW)?;
        let write = |file: &mut File| file.write_all(until.to_string().as_bytes());
        put(self, &mut 0, &new, write, &format!("{KEPT}/{end}"))
    }

    /// That prompt is kept no longer.
    pub fn release(&self, end: &Name) {
        let path = format!("{KEPT}/{end}");
        // It may have been removed.
        let _ = rustix::fs::unlinkat(&*self.private(), path, AtFlags::empty());
    }

    /// The chunks that kept prompts end in, and until when they are kept.
    pub fn kept(&self) -> Vec<(Name, u64)> {
        let until = |name: &Name| {
            let file = open_to_read(&*self.private(), &format!("{KEPT}/{name}")).ok()?;
            let mut text = String::new();
            file.take(LONGEST_TIME).read_to_string(&mut text).ok()?;
            text.trim().parse().ok()
        };
        let names = self.names_in(KEPT);
        let kept = names.filter_map(|name| Some((name, until(&name)?)));
        kept.take(MOST_KEPT).collect()
    }
}

/// What the process that keeps the folder and a remote alike says of itself, for servers and people.
impl Folder {
    /// Says something of the remote, in place of what was said before.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note_remote(&self, text: &[u8]) -> io::Result<()> {
        let new = self.inner(NEW)?;
        put(self, &mut 0, &new, |file| file.write_all(text), REMOTE)
    }

    /// What was said last. `None`: nothing.
    pub fn remote_note(&self) -> Option<Vec<u8>> {
        let file = open_to_read(&*self.private(), REMOTE).ok()?;
        let mut text = Vec::new();
        file.take(LONGEST_NOTE)
            .read_to_end(&mut text)
            .ok()
            .map(|_| text)
    }

    /// No process keeps the folder and the remote alike any more.
    pub fn forget_remote(&self) {
        let _ = rustix::fs::unlinkat(&*self.private(), REMOTE, AtFlags::empty());
    }

    /// Whether a chunk may have been written since this time. Looks at no chunk.
    pub fn has_changed_since(&self, time: SystemTime) -> bool {
        let is_later = |name: &String| {
            let inner = self.inner(name).map(File::from);
            let modified = inner.and_then(|inner| inner.metadata()?.modified());
            modified.is_ok_and(|modified| modified >= time)
        };
        folders(self).is_ok_and(|all| all.iter().any(is_later))
    }
}

/// A log of what servers have answered, for those that use the folder later.
///
/// Every process appends whole records. A process that finds the log too long writes it anew. A lock keeps both apart; the file
/// system gives it back if a process is killed.
impl Folder {
    /// All of the log; less, if it was made longer than it may be.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn answers(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.open_log(OFlags::RDWR)?;
        file.take(4 * LONGEST_LOG).read_to_end(&mut bytes)?;
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
        if file.metadata()?.len() <= LONGEST_LOG {
            return Ok(());
        }
        let mut all = Vec::new();
        file.take(4 * LONGEST_LOG).read_to_end(&mut all)?;
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
        let opened = rustix::fs::openat(&inner, LOG, flags, Mode::RUSR | Mode::WUSR)?;
        let file = File::from(opened);
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
