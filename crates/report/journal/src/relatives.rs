//! Journals of other servers on the same machine: those with the same index, which are taken over, and old ones, which are
//! removed.
//!
//! A program that starts llama-server by itself may kill it, and give the next one another port: Ollama does, each
//! time. No server would ever start again at the address of the first. So each start takes over what *any* dead
//! server of its family left.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime};

use contextpilot_private_folder::PrivateFolder;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::file::{self, MAX_NUMBER, Opened, name_of};
use crate::{Identity, record};

/// The most files that are looked at, so that a full folder does not delay the start.
const MOST: usize = 10_000;
/// How old a file must be. A server that crashed and was then moved to another port never
/// takes its old journal again. After this time probably no server starts at the old port,
/// and the index was restarted or reset.
const OLD: Duration = Duration::from_secs(30 * 24 * 3600);

/// Journals of this family that have other identities, and their numbers. Nothing is locked: otherwise a
/// server of another family could find its own journal taken when it starts.
pub(crate) fn journals(folder: &PrivateFolder, own: &Identity) -> Vec<(Identity, u32)> {
    let Ok(entries) = std::fs::read_dir(folder.path()) else {
        return Vec::new();
    };
    let names = entries.take(MOST).flatten().map(|entry| entry.file_name());
    let journals = names.filter_map(|name| parse(own, name.to_str()?));
    journals
        .filter(|(identity, number)| identity != own && begins_as_ours(folder, identity, *number))
        .collect()
}

/// The identity and the number of a journal of this name.
fn parse(own: &Identity, name: &str) -> Option<(Identity, u32)> {
    let (identity, number) = name.strip_suffix(".journal")?.split_once('-')?;
    let number = number.parse().ok()?;
    let identity = own.relative(identity)?;
    ((1..=MAX_NUMBER).contains(&number) && name == name_of(&identity, number))
        .then_some((identity, number))
}

fn begins_as_ours(folder: &PrivateFolder, identity: &Identity, number: u32) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let name = name_of(identity, number);
    let Ok(file) = rustix::fs::openat(folder, &name, flags, Mode::empty()) else {
        return false;
    };
    let ours = record::opening(identity);
    let mut found = vec![0; ours.len()];
    File::from(file).read_exact(&mut found).is_ok() && found == ours
}

/// Removes old journals of servers that never started again: those of other instances that no process holds, old damaged
/// files that were set aside, and old temporary files. Errors do not matter: the next start tries again.
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
