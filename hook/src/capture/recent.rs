//! Stores ids that have just arrived in shared memory. The thread that received the request does it, so
//! the next start finds the id even if the process is killed right afterwards.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use contextpilot_journal::Recent;
use contextpilot_residency::Arrival;

/// Not set before the worker has opened the journal, or if there is no shared memory.
static RECENT: OnceLock<Recent> = OnceLock::new();

/// From now on ids are stored there.
pub(crate) fn use_for_life(recent: Recent) {
    let _ = RECENT.set(recent);
}

/// Stores the id of a request that the worker has not received yet. This takes some stores and nothing
/// else. False if there is no room.
pub(crate) fn store_id(arrival: Arrival, id: &str) -> bool {
    let recent = RECENT.get();
    recent.is_some_and(|recent| recent.note(arrival.0, id))
}

/// Maps a file of this many bytes, for the life of the process.
pub(crate) fn map(file: &File, bytes: usize) -> io::Result<&'static [AtomicU64]> {
    // Allocate the pages now, so that the first threads to write to them need not wait.
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
    // SAFETY: so many bytes are mapped, at the beginning of a page, and never unmapped. All bit patterns
    // are valid integers. They are atomic, because other processes may write to the file. The caller
    // makes sure that the file is not truncated.
    Ok(unsafe { std::slice::from_raw_parts(memory.cast(), bytes / size_of::<AtomicU64>()) })
}
