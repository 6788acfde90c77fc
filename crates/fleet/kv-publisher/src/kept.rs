//! The number of the next batch, kept in a file for the next process.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;

use contextpilot_private_folder::{Base, PrivateFolder};
use rustix::fs::{Mode, OFlags};

use crate::Host;

/// A file with the number in eight bytes. `None`: no number is kept.
#[derive(Debug)]
pub(crate) struct Kept(Option<File>);

impl Kept {
    /// Opens the file for an address and reads the number in it (0 if there is none). Call this only
    /// after listening at the address has succeeded: then no other process uses the file. `chosen`:
    /// the system chose the port. Such a port differs each time, so nothing is kept.
    pub(crate) fn open(address: SocketAddr, chosen: bool, host: &Host) -> (Self, u64) {
        if chosen {
            return (Self(None), 0);
        }
        match open(address, host) {
            Ok(file) => {
                let mut bytes = [0; 8];
                let read = file.read_exact_at(&mut bytes, 0);
                let next = read.map_or(0, |()| u64::from_be_bytes(bytes));
                (Self(Some(file)), next)
            }
            Err(why) => {
                (host.log)(&format!(
                    "[ContextPilot] The number of the next KV cache event cannot be kept ({why}): \
                     after a restart of this server, restart its routers too"
                ));
                (Self(None), 0)
            }
        }
    }

    /// Writes the number. An error is ignored: then a router sees a number twice after a restart,
    /// ignores that batch, and logs it.
    pub(crate) fn keep(&self, next: u64) {
        if let Some(file) = &self.0 {
            let _ = file.write_all_at(&next.to_be_bytes(), 0);
        }
    }
}

fn open(address: SocketAddr, host: &Host) -> Result<File, String> {
    let folder = PrivateFolder::open(Base::State, host.lookup).map_err(|e| e.to_string())?;
    let name = format!("kv-events-{address}.next").replace(['[', ']'], "");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&folder, &name, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(opened.map_err(|e| e.to_string())?);
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        _ => Err(format!("{name} is no file")),
    }
}
