//! Of which models the folder has KV: the fingerprint of a chunk tells a person nothing.

use std::fs::File;
use std::io::Read;

use contextpilot_kv_store::{Fingerprint, Name, Origin};
use rustix::fs::{Dir, Mode, OFlags};

use crate::Folder;

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
    /// nobody did.
    pub fn model_name(&self, fingerprint: &Fingerprint) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = file_name(fingerprint);
        let file = rustix::fs::openat(&*self.private(), path, flags, Mode::empty()).ok()?;
        let mut name = String::new();
        let read = File::from(file).take(LONGEST).read_to_string(&mut name);
        (read.is_ok() && !name.is_empty()).then_some(name)
    }

    /// Of what the fingerprint was made, as the server that used it last said. `None`: an older program has
    /// written it, or it says something else.
    pub fn origin(&self, fingerprint: &Fingerprint) -> Option<Origin> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = origin_name(fingerprint);
        let file = rustix::fs::openat(&*self.private(), path, flags, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        let mut file = File::from(file).take(LONGEST_ORIGIN);
        file.read_to_end(&mut bytes).ok()?;
        let origin = Origin::decode(&bytes)?;
        (origin.facts.fingerprint() == *fingerprint).then_some(origin)
    }

    /// The origins of all models that servers have used the folder for.
    pub fn origins(&self) -> Vec<Origin> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&*self.private(), ORIGINS, flags, Mode::empty());
        let entries = folder.and_then(Dir::read_from);
        let names = entries.into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let fingerprints = names.filter_map(|name| Some(Fingerprint(name.parse::<Name>().ok()?.0)));
        let origins = fingerprints.filter_map(|fingerprint| self.origin(&fingerprint));
        origins.collect()
    }
}
