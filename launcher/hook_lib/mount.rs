use std::path::Path;

use crate::error::HookError;

/// Whether what lies at `path` may be mapped to be executed. The dynamic linker says
/// "failed to map segment", and goes on without the library.
///
/// # Errors
/// Its file system is mounted `noexec`. One that cannot be asked is not.
#[cfg(target_os = "linux")]
pub(super) fn executes(path: &Path) -> Result<(), HookError> {
    use rustix::fs::{StatVfsMountFlags, statvfs};

    let noexec = |fs: rustix::fs::StatVfs| fs.f_flag.contains(StatVfsMountFlags::NOEXEC);
    match statvfs(path).is_ok_and(noexec) {
        true => Err(HookError::NoExec {
            path: path.to_owned(),
        }),
        false => Ok(()),
    }
}

/// Elsewhere nobody has been seen to do this.
#[cfg(not(target_os = "linux"))]
pub(super) fn executes(_: &Path) -> Result<(), HookError> {
    Ok(())
}
