//! Journals of other servers with the same index on the same machine.
//!
//! A program that starts llama-server by itself may kill it, and give the next one another port: Ollama does, each
//! time. No server would ever start again at the address of the first. So each start takes over what *any* dead
//! server of its family left.

use std::fs::File;
use std::io::Read;

use contextpilot_private_folder::PrivateFolder;
use rustix::fs::{Mode, OFlags};

use crate::Identity;
use crate::file::{MAX_NUMBER, name_of};
use crate::record;

/// The most files that are looked at, so that a full folder does not delay the start.
const MOST: usize = 10_000;

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
