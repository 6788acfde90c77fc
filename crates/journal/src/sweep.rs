//! Servers that never come back, and what they left.

use std::time::{Duration, SystemTime};

use contextpilot_private_folder::PrivateFolder;
use rustix::fs::AtFlags;

use crate::Identity;
use crate::file::{self, Opened};

/// A server that moved to another port leaves its journal for ever, if it crashed
/// there. After this time nobody will start it again at the old one, and the index
/// has been restarted or reset since.
const OLD: Duration = Duration::from_secs(30 * 24 * 3600);

/// So that a folder full of anything does not hold up the start.
const MOST: usize = 10_000;

/// Removes old journals of other instances that nobody holds, and whatever old
/// files were set aside. Errors do not matter: the next start tries again.
pub(crate) fn sweep(folder: &PrivateFolder, own: &Identity, now: SystemTime) {
    let own = own.to_string();
    let Ok(entries) = std::fs::read_dir(folder.path()) else {
        return;
    };
    for entry in entries.take(MOST).flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // Of the link itself, if it is one.
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.map(|time| now.duration_since(time).unwrap_or_default());
        if !age.is_ok_and(|age| age > OLD) {
            continue;
        }
        let Some((_, kind)) = name.split_once(".journal") else {
            continue;
        };
        // Held until the name is gone, so that nobody takes it in between.
        let _lock = match kind {
            "" if name.starts_with(&own) => continue,
            "" => match file::open(folder, &name, false) {
                Ok(Opened::File(file, _)) => Some(file),
                _ => continue,
            },
            ".new" => None,
            kind if kind.starts_with(".bad-") => None,
            _ => continue,
        };
        let _ = rustix::fs::unlinkat(folder, &name, AtFlags::empty());
    }
}
