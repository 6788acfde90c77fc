//! Which prompts are kept on request: for other processes, the next one, and people.

use std::fs::File;
use std::io::{self, Read, Write};

use contextpilot_kv_store::{MOST_KEPT, Name};
use rustix::fs::AtFlags;

use crate::Folder;
use crate::folder::{NEW, open_to_read};
use crate::writer::put;

/// Where that is written: a file for each, with the name of the chunk that the prompt ends in.
const FOLDER: &str = "kept";
/// More of a file is not read, bytes.
const LONGEST: u64 = 32;

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
        put(self, &mut 0, &new, write, &format!("{FOLDER}/{end}"))
    }

    /// That prompt is kept no longer.
    pub fn release(&self, end: &Name) {
        let path = format!("{FOLDER}/{end}");
        // It may have been removed.
        let _ = rustix::fs::unlinkat(&*self.private(), path, AtFlags::empty());
    }

    /// The chunks that kept prompts end in, and until when they are kept.
    pub fn kept(&self) -> Vec<(Name, u64)> {
        let until = |name: &Name| {
            let file = open_to_read(&*self.private(), &format!("{FOLDER}/{name}")).ok()?;
            let mut text = String::new();
            file.take(LONGEST).read_to_string(&mut text).ok()?;
            text.trim().parse().ok()
        };
        let names = self.names_in(FOLDER);
        let kept = names.filter_map(|name| Some((name, until(&name)?)));
        kept.take(MOST_KEPT).collect()
    }
}
