//! What the process that keeps the folder and a remote alike says of itself, for servers and people.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::SystemTime;

use rustix::fs::AtFlags;

use crate::Folder;
use crate::folder::{NEW, open_to_read};
use crate::list::folders;
use crate::writer::put;

const NAME: &str = "remote";
/// More of it is not read, bytes.
const LONGEST: u64 = 16 << 10;

impl Folder {
    /// Says something of the remote, in place of what was said before.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note_remote(&self, text: &[u8]) -> io::Result<()> {
        let new = self.inner(NEW)?;
        put(self, &mut 0, &new, |file| file.write_all(text), NAME)
    }

    /// What was said last. `None`: nothing.
    pub fn remote_note(&self) -> Option<Vec<u8>> {
        let file = open_to_read(&*self.private(), NAME).ok()?;
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).ok().map(|_| text)
    }

    /// No process keeps the folder and the remote alike any more.
    pub fn forget_remote(&self) {
        let _ = rustix::fs::unlinkat(&*self.private(), NAME, AtFlags::empty());
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
