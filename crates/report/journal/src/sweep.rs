//! Removes old journals of servers that never started again.

use std::time::{Duration, SystemTime};

use contextpilot_private_folder::PrivateFolder;
use rustix::fs::AtFlags;

use crate::Identity;
use crate::file::{self, Opened};

/// How old a file must be. A server that crashed and was then moved to another port never
/// takes its old journal again. After this time probably no server starts at the old port,
/// and the index was restarted or reset.
const OLD: Duration = Duration::from_secs(30 * 24 * 3600);

/// The most files that are looked at, so that a full folder does not delay the start.
const MOST: usize = 10_000;

/// Removes old journals of other instances that no process holds, old damaged files that were set
/// aside, and old temporary files. Errors do not matter: the next start tries again.
pub(crate) fn sweep(folder: &PrivateFolder, own: &Identity, now: SystemTime) {
    let own = own.to_string();
    let Ok(entries) = std::fs::read_dir(folder.path()) else {
        return;
    };
    for entry in entries.take(MOST).flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // If it is a link, this is the time of the link itself.
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.map(|time| now.duration_since(time).unwrap_or_default());
        if !age.is_ok_and(|age| age > OLD) {
            continue;
        }
        let Some((_, kind)) = name.split_once(".journal") else {
            continue;
        };
        // The lock is held until the name is gone, so that no start takes the file in between.
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
