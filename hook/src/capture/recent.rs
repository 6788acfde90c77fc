//! Ids that have just arrived, kept by the thread that received them: whatever ends the process
//! from then on, the next start finds them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use contextpilot_journal::Recent;
use contextpilot_residency::Arrival;

/// None before the worker has opened its journal, or if there is no memory for it.
static RECENT: OnceLock<Recent> = OnceLock::new();

/// From now on ids are kept there.
pub(crate) fn use_for_life(recent: Recent) {
    let _ = RECENT.set(recent);
}

/// Keeps the id of a request that the worker has not heard of. Some stores, nothing else. False if
/// it cannot be kept.
pub(crate) fn note(arrival: Arrival, id: &str) -> bool {
    let recent = RECENT.get();
    recent.is_some_and(|recent| recent.note(arrival.0, id))
}

/// Maps a file of this many bytes, for the life of the process.
pub(crate) fn map(file: &File, bytes: usize) -> io::Result<&'static [AtomicU64]> {
    // Pages that were never touched would make the first threads to store into them wait.
    #[cfg(target_os = "linux")]
    const FLAGS: i32 = libc::MAP_SHARED | libc::MAP_POPULATE;
    #[cfg(not(target_os = "linux"))]
    const FLAGS: i32 = libc::MAP_SHARED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a mapping at an address that the kernel chooses changes no memory that is in use.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            access,
            FLAGS,
            file.as_raw_fd(),
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: so many bytes are mapped, at a page's beginning, and never unmapped. Any bytes are
    // such integers. What other processes do to the file is what atomic integers are for; that
    // it is not cut short is the concern of whoever chose the file.
    Ok(unsafe { std::slice::from_raw_parts(memory.cast(), bytes / size_of::<AtomicU64>()) })
}
