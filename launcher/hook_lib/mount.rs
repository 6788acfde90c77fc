use std::path::Path;

use crate::error::HookError;

/// Whether the file at `path` may be mapped as executable. If not, the dynamic linker prints
/// "failed to map segment", and goes on without the library.
///
/// # Errors
/// Returns an error if its file system is mounted `noexec`. If that cannot be found out, it counts as
/// not mounted so.
#[cfg(target_os = "linux")]
pub(super) fn executes(path: &Path) -> Result<(), HookError> {
    use rustix::fs::{StatVfsMountFlags, statvfs};

    let noexec = |fs: rustix::fs::StatVfs| fs.f_flag.contains(StatVfsMountFlags::NOEXEC);
    if statvfs(path).is_ok_and(noexec) {
        Err(HookError::NoExec {
            path: path.to_owned(),
        })
    } else {
        Ok(())
    }
}

/// On other systems no such mounts are known.
#[cfg(not(target_os = "linux"))]
pub(super) fn executes(_: &Path) -> Result<(), HookError> {
    Ok(())
}
