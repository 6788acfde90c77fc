//! How people call the models whose KV is in the folder: the fingerprint of a chunk tells a person nothing.

use std::fs::File;
use std::io::Read;

use contextpilot_kv_store::Fingerprint;
use rustix::fs::{Mode, OFlags};

use crate::Folder;

/// Where the names are.
const FOLDER: &str = "models";
/// More of a name is not read, bytes.
const LONGEST: u64 = 4096;

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
}
