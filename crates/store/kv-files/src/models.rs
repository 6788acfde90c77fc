//! Of which models the folder has KV: the fingerprint of a chunk tells a person nothing.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime};

use contextpilot_kv_store::{Fingerprint, Origin};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::Folder;
use crate::folder::open_to_read;

/// Where the names are.
const FOLDER: &str = "models";
/// More of a name is not read, bytes.
const LONGEST: u64 = 4096;

/// Where origins are.
const ORIGINS: &str = "origins";
/// More of an origin is not read, bytes.
const LONGEST_ORIGIN: u64 = 1 << 20;

/// Where the origin of chunks with this fingerprint is.
pub(crate) fn origin_name(fingerprint: &Fingerprint) -> String {
    format!("{ORIGINS}/{fingerprint}")
}

/// Where a model's name is.
pub(crate) fn file_name(fingerprint: &Fingerprint) -> String {
    format!("{FOLDER}/{fingerprint}")
}

impl Folder {
    /// How people call the model with this fingerprint, as the server that wrote its first chunk said. `None`:
    /// no server did.
    pub fn model_name(&self, fingerprint: &Fingerprint) -> Option<String> {
        let file = open_to_read(&*self.private(), &file_name(fingerprint)).ok()?;
        let mut name = String::new();
        let read = file.take(LONGEST).read_to_string(&mut name);
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
        let file = open_to_read(&*self.private(), &origin_name(fingerprint)).ok()?;
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
        let of = self.fingerprints_in(ORIGINS);
        of.iter().filter_map(|one| self.origin(one)).collect()
    }

    /// Those that were written down within this time, the last one first. Servers do that every few hours for what they
    /// use.
    pub fn origins_within(&self, time: Duration) -> Vec<Origin> {
        let of = self.fingerprints_in(ORIGINS).into_iter();
        let of = of.filter_map(|one| Some((self.age(&origin_name(&one))?, one)));
        let mut of: Vec<_> = of.filter(|(age, _)| *age < time).collect();
        of.sort_unstable();
        let of = of.iter();
        of.filter_map(|(_, one)| self.origin(one)).collect()
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
            (FOLDER, file_name as fn(&Fingerprint) -> String),
            (ORIGINS, origin_name),
        ] {
            for one in self.fingerprints_in(folder) {
                let path = path(&one);
                if !is_used(&one) && self.age(&path).is_some_and(|age| age > LONG) {
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
