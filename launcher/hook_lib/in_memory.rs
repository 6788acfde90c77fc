//! The library as a file in memory, if no folder can be used: a read-only root,
//! a user without a home, a file system that is mounted `noexec`.

#[cfg(target_os = "linux")]
use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::io::Write;
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

#[cfg(target_os = "linux")]
use rustix::fs::{MemfdFlags, SealFlags};

/// A path from which this process can load `content`, and also the processes that it starts while it
/// lives. `name` is shown in memory maps. The descriptor stays open, and exec passes it on. The file
/// can no longer be changed, not even by this process.
///
/// # Errors
/// The system has no such files, does not let them be executed (`vm.memfd_noexec`), or shows none
/// (`/proc` is not there).
#[cfg(target_os = "linux")]
pub(super) fn hold(name: &str, content: &[u8]) -> io::Result<PathBuf> {
    let mut file = File::from(create(name)?);
    file.write_all(content)?;
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, all)?;
    // Use the process id, not "self": a process that the server starts may not have the descriptor
    // any more.
    let process = std::process::id();
    let path = PathBuf::from(format!("/proc/{process}/fd/{}", file.as_raw_fd()));
    File::open(&path)?;
    // For the life of the process.
    std::mem::forget(file);
    Ok(path)
}

/// Without `CLOEXEC`, because it must stay open across exec.
#[cfg(target_os = "linux")]
fn create(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::ALLOW_SEALING;
    // Linux before 6.3 does not know the second flag; later ones warn in the kernel's log if it
    // is missing.
    let made = match rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    };
    Ok(made?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn hold(_: &str, _: &[u8]) -> io::Result<PathBuf> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}
