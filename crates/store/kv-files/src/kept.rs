//! Which prompts somebody asked to keep: for other processes, the next one, and people.

use std::fs::File;
use std::io::{self, Read, Write};

use contextpilot_kv_store::{MOST_KEPT, Name};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use crate::Folder;

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
        let folder = self.inner(FOLDER)?;
        // Half of a number is another time: it is written under another name.
        let (name, new) = (end.to_string(), format!("{end}.{}", std::process::id()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&folder, &*new, flags | OFlags::CLOEXEC, mode)?;
        File::from(file).write_all(until.to_string().as_bytes())?;
        Ok(rustix::fs::renameat(&folder, &*new, &folder, &*name)?)
    }

    /// That prompt is kept no longer.
    pub fn release(&self, end: &Name) {
        let path = format!("{FOLDER}/{end}");
        // It may have been removed.
        let _ = rustix::fs::unlinkat(&*self.private(), path, AtFlags::empty());
    }

    /// The chunks that kept prompts end in, and until when they are kept.
    pub fn kept(&self) -> Vec<(Name, u64)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::openat(&*self.private(), FOLDER, flags, Mode::empty()) else {
            return Vec::new();
        };
        let entries = Dir::read_from(&folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
        let until = |name: &Name| {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&folder, name.to_string(), flags, Mode::empty()).ok()?;
            let mut text = String::new();
            File::from(file)
                .take(LONGEST)
                .read_to_string(&mut text)
                .ok()?;
            text.trim().parse().ok()
        };
        let kept = names.filter_map(|name| Some((name, until(&name)?)));
        kept.take(MOST_KEPT).collect()
    }
}
